"""Methods that extend a trained rotary model without training.

Every frequency transform that learns nothing is a method with the transform's name. An encoding may
declare more methods when it is registered. Such a `Variant` computes options from the factor, for
example a larger base.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from pe.encodings.core.frequencies import base_frequencies


class Rotary(NamedTuple):
    """The RoPE of a trained model."""

    theta: float
    dim: int
    """Rotated width d in channels."""
    original_length: int
    """Training length in tokens."""


Options = Callable[[Rotary, float], dict[str, Any]]
"""Computes the options of the extending encoding from the model's RoPE and the factor."""


class Method(NamedTuple):
    """A method that extends a model."""

    name: str
    spec: str
    """The encoding that the model is converted to."""
    options: Options
    scaled: bool
    """Whether it has a factor. Otherwise the text's length decides, or nothing is stretched."""


class Variant(NamedTuple):
    """A method that an encoding declares in `register`, besides the one of its name."""

    name: str
    title: str
    paper: str
    options: Options
    scaled: bool = True


def raised_base(rope: Rotary, factor: float) -> float | None:
    """The smallest base that gives no frequency a new angle in ``factor`` times the length.

        b' = b s^(d / 2i),    i: the first frequency that completed no rotation in training

    The base b' slows frequency i by (b'/b)^(2i/d). Frequency i is thus slowed by the factor s,
    later ones by more, and earlier ones, which met every angle in training, by less. The result is
    None if the very first frequency completed no rotation, or if all did.
    """
    spectrum = base_frequencies(rope.dim, rope.theta).inv_freq
    short = (spectrum * rope.original_length < 2 * math.pi).nonzero()
    first = int(short[0]) if len(short) else 0
    return float(rope.theta * factor ** (rope.dim / (2 * first))) if first else None


def with_raised_base(rope: Rotary, factor: float) -> dict[str, Any]:
    """Options of a RoPE that extends ``rope`` by a larger base.

    Xiong et al. 2023 (arXiv:2309.16039) raise the base to 500,000 for 8 times 4,096 tokens and
    continue training. Here `raised_base` gives the base.

    Raises:
        ValueError: no base follows from the factor.
    """
    base = raised_base(rope, factor)
    if base is None:
        raise ValueError(
            f"theta {rope.theta:g}: in {rope.original_length} tokens all frequencies completed a "
            "rotation, or not even the first did, so no larger base follows from the factor; "
            "convert to rope with another theta"
        )
    return {"theta": base}
