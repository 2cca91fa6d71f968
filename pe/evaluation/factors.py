"""The cells of extension.json: a method of extension and the factor by which it extends a model.

A factor is a number, which is the same at every length, or `LENGTH`. The latter means that each
length has its own factor, the length divided by the training length, and that the model stays as it
was trained at lengths up to the training length. This module imports no torch when it is loaded.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pe._errors import unknown

FACTORS = (2.0, 4.0, 8.0, 16.0)
LENGTH: Literal["length"] = "length"
"""A factor per length: the length divided by the training length."""
Factor = float | Literal["length"]


class Cell(NamedTuple):
    """A method of extension with a factor."""

    method: str
    factor: Factor
    """1 for a method that takes no factor."""

    @property
    def name(self) -> str:
        """The key in extension.json, such as ``yarn@4`` or ``yarn@length``."""
        return f"{self.method}@{self.factor if self.factor == LENGTH else f'{self.factor:g}'}"

    def at(self, lengths: Sequence[int], context_length: int) -> dict[int, float]:
        """Return the factor at each length; lengths are in tokens."""
        if self.factor == LENGTH:
            return {n: max(1.0, n / context_length) for n in lengths}
        return dict.fromkeys(lengths, float(self.factor))


def checked_factor(value: Any) -> Factor:
    """Return ``value`` if it is a factor, a whole number as a float.

    Raises:
        ValueError: it is neither a finite number nor `LENGTH`.
    """
    if value == LENGTH:
        return LENGTH
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"expected a finite number or {LENGTH!r}, got {value!r}")
    return float(value)


def cells(methods: Sequence[str], factors: Sequence[Factor]) -> list[Cell]:
    """Return a cell for each method and factor; a method that takes no factor has one cell.

    Raises:
        ValueError: a method is unknown, a value is not a factor, or an argument is not a list.
    """
    from pe.encodings.core.extension import extension_method  # imports torch

    for name, value in (("methods", methods), ("factors", factors)):
        if isinstance(value, str | int | float):
            raise ValueError(f"{name}: expected a list, got {value!r}; write [{value!r}]")
    try:
        factors = [checked_factor(value) for value in factors]
    except ValueError as error:
        raise ValueError(f"factors: {error}") from None
    return [
        Cell(method, factor)
        for method in methods
        for factor in (factors if extension_method(method).scaled else (1.0,))
    ]


def refuse_unused_options(
    options: Iterable[str], wanted: Sequence[Cell], lengths: Sequence[int], context_length: int
) -> None:
    """Raise ValueError for options of a method and factor that are not among the cells.

    Args:
        options: names such as ``yarn@4``.
    """
    used = [(cell.method, cell.at(lengths, context_length)) for cell in wanted]
    names = [f"{method}@{factor:g}" for method, at in used for factor in at.values()]
    for name in options:
        if name not in names:
            raise unknown("cell in options", name, list(dict.fromkeys(names)))
