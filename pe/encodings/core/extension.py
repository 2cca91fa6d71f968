"""Ways to extend a trained rotary model without training it.

Every frequency transform that learns nothing is one, under its own name. An encoding may declare
more of them where it is registered: options under which it extends a model, such as a base that
follows from the factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from pe.encodings.core.frequencies import base_frequencies


class Rotary(NamedTuple):
    """What is known of the RoPE of a trained model."""

    theta: float
    dim: int
    """Rotated width d."""
    original_length: int
    """Tokens of a training window."""


Options = Callable[[Rotary, float], dict[str, Any]]
"""From the model's RoPE and a factor to the options of the encoding that extends it."""


class Method(NamedTuple):
    """One way to extend a model."""

    name: str
    spec: str
    """Encoding that the model is converted to."""
    options: Options
    scaled: bool
    """Whether it has a factor; otherwise it follows from the text, or nothing is stretched."""


class Variant(NamedTuple):
    """A method beside that of the encoding's name; `register` takes them."""

    name: str
    title: str
    paper: str
    options: Options
    scaled: bool = True


def raised_base(rope: Rotary, factor: float) -> float | None:
    """The smallest base under which no frequency meets a new angle in ``factor`` times the length.

        b' = b s^(d / 2i),    i: the first frequency that completed no turn in training

    Another base b' slows frequency i by (b'/b)^(2i/d), so i is slowed by s, those after it by
    more, and those before it, which know every angle, by less. None where the very first
    frequency completed no turn, or all did.
    """
    spectrum = base_frequencies(rope.dim, rope.theta).inv_freq
    short = (spectrum * rope.original_length < 2 * math.pi).nonzero()
    first = int(short[0]) if len(short) else 0
    return float(rope.theta * factor ** (rope.dim / (2 * first))) if first else None


def with_raised_base(rope: Rotary, factor: float) -> dict[str, Any]:
    """Options of a RoPE that extends ``rope`` by another base.

    That a larger base extends a model which is trained on is from Xiong et al. 2023
    (arXiv:2309.16039), who take 500,000 for 8 times 4,096 tokens; the rule is that of
    `raised_base`.

    Raises:
        ValueError: no base follows from the factor.
    """
    base = raised_base(rope, factor)
    if base is None:
        raise ValueError(
            f"theta {rope.theta:g}: in {rope.original_length} tokens all frequencies completed a "
            "turn, or not even the first did, so no larger base follows from the factor; convert "
            "to rope with a theta of your own"
        )
    return {"theta": base}
