"""Checks of options, shared by the encodings: each returns the value or says what is wrong."""

import math
from collections.abc import Iterable
from typing import Any, TypeVar

from pe._errors import unknown


class _Unset:
    def __repr__(self) -> str:
        return "unset"


UNSET: Any = _Unset()
"""Default of an option that is something else than None or a number where nobody gave it."""


N = TypeVar("N", int, float)


def positive(name: str, value: N) -> N:
    """A finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
    return value


def at_least(name: str, value: N, least: float) -> N:
    """A finite number that is not below ``least``."""
    if not (math.isfinite(value) and value >= least):
        raise ValueError(f"{name}: expected a finite number of at least {least}, got {value!r}")
    return value


def choice(name: str, value: str, choices: Iterable[str]) -> str:
    """One of the known words."""
    choices = list(choices)
    if value not in choices:
        raise unknown(name, value, choices)
    return value


def rotary_width(head_dim: int, fraction: float, even: bool = True) -> int:
    """Channels that rotate: ``fraction`` of ``head_dim``, rounded down (to an even number)."""
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
