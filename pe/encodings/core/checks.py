"""Checks of options. Each function returns the value or raises ValueError."""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from pe._errors import unknown


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET: Any = _Unset()
"""Default of an option for which no value, not even None, was given."""


N = TypeVar("N", int, float)


def positive(name: str, value: N) -> N:
    """Return ``value`` if it is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
    return value


def at_least(name: str, value: N, least: float) -> N:
    """Return ``value`` if it is a finite number of at least ``least``."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name}: expected a finite number of at least {least}, got {value!r}")
    return value


def choice(name: str, value: str, choices: Iterable[str]) -> str:
    """Return ``value`` if it is one of ``choices``."""
    choices = list(choices)
    if value not in choices:
        raise unknown(name, value, choices)
    return value


def rotary_width(head_dim: int, fraction: float, even: bool = True) -> int:
    """Return the number of channels that rotate: ``fraction`` of ``head_dim``, rounded down.

    With ``even``, it is rounded down to an even number.

    Raises:
        ValueError: the fraction is not in (0, 1], or no channels or half a pair would be left.
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"rotary_fraction: expected more than 0 and at most 1, got {fraction!r}")
    width = int(head_dim * fraction)
    width -= width % 2 if even else 0
    if width == 0 or (even and fraction == 1 and head_dim % 2):
        raise ValueError(
            f"head_dim {head_dim} with rotary_fraction {fraction} leaves no whole pairs to rotate; "
            "use an even head_dim and a larger fraction"
        )
    return width
