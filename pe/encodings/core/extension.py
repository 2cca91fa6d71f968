"""Methods that extend a trained rotary model without training.

Every frequency transform that learns nothing is a method with the transform's name. An encoding may
declare more methods when it is registered. Such a `pe.encodings.core.registry.Variant` computes
options from the factor, for example a larger base.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pe.encodings.core.frequencies import FrequencyTransform, base_frequencies
from pe.encodings.core.parts import takes_option
from pe.encodings.core.registry import Method, in_order, list_encodings, lookup, variants


class Rotary(NamedTuple):
    """The RoPE of a trained model."""

    theta: float
    dim: int
    """Rotated width d in channels."""
    original_length: int
    """Training length in tokens."""


def raised_base(rope: Rotary, factor: float) -> float | None:
    """Return the smallest base that gives no frequency a new angle in ``factor`` times the length.

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
    """Return the options of a RoPE that extends ``rope`` by a larger base.

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


def extension_methods() -> list[str]:
    """Return the names of the methods that extend a trained rotary model without training.

    These are the transforms that learn nothing and the variants that encodings declare, such as
    ``dynamic_yarn``. A transform that does not stretch is listed alone and on top of the transform
    that its class names.
    """
    methods = list(variants())
    for name in list_encodings():
        part = lookup(name)
        if issubclass(part, FrequencyTransform) and not part.learns:
            methods += [name, *([f"{part.put_on}+{name}"] if part.put_on else [])]
    return in_order(methods)


def extension_method(name: str) -> Method:
    """Return the method of this name, which is one of `extension_methods` or another spec.

    Raises:
        ValueError: ``name`` cannot be looked up.
    """
    if name in (declared := variants()):
        return declared[name]
    scaled = takes_option(name, "factor")
    return Method(
        name, name, lambda rope, factor: {"factor": float(factor)} if scaled else {}, scaled
    )
