"""By which factors a method extends a model: names of the cells of extension.json.

A factor is a number, the same at every length, or `LENGTH`: at each length the factor that equals
it, in training lengths. The model as it was trained reads what is no longer than its windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from pe._errors import unknown

FACTORS = (2.0, 4.0, 8.0, 16.0)
LENGTH: Literal["length"] = "length"
"""The factor that equals each length."""
Factor = float | Literal["length"]


class Cell(NamedTuple):
    """One method with one factor."""

    method: str
    factor: Factor
    """1 where the method has none."""

    @property
    def name(self) -> str:
        """As extension.json has it: ``yarn@4``, ``yarn@length``."""
        return f"{self.method}@{self.factor if self.factor == LENGTH else f'{self.factor:g}'}"

    def at(self, lengths: Sequence[int], context_length: int) -> dict[int, float]:
        """The factor at each length."""
        if self.factor == LENGTH:
            return {n: max(1.0, n / context_length) for n in lengths}
        return dict.fromkeys(lengths, float(self.factor))


def cells(methods: Sequence[str], factors: Sequence[Factor]) -> list[Cell]:
    """Everything that methods and factors ask for; a method without a factor is there once."""
    from pe.encodings.core.extending import extension_method  # brings torch

    return [
        Cell(method, factor)
        for method in methods
        for factor in (factors if extension_method(method).scaled else (1.0,))
    ]


def refuse_unused_options(
    options: Iterable[str], wanted: Sequence[Cell], lengths: Sequence[int], context_length: int
) -> None:
    """Raise ValueError for options of a method and factor that no cell has."""
    used = [(cell.method, cell.at(lengths, context_length)) for cell in wanted]
    names = [f"{method}@{factor:g}" for method, at in used for factor in at.values()]
    for name in options:
        if name not in names:
            raise unknown("cell in options", name, list(dict.fromkeys(names)))
