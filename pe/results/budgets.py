"""One question asked at two budgets: which order the rows have, and what changes places."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pe.results import quantities
from pe.results.quantities import RunLike
from pe.results.rows import NO_DIFFERENCE, Row, difference, measure
from pe.study.plan import Planned


@dataclass(frozen=True)
class Order:
    """Rows from best to worst; ``shown[i]``: a difference is shown between i and i + 1."""

    rows: tuple[Row, ...]
    shown: tuple[bool, ...]

    @property
    def seeds(self) -> int:
        """The fewest seeds of a row: one seed ranks runs and not methods."""
        return min(len(row.runs) for row in self.rows)

    def __str__(self) -> str:
        """``PoPE < RoPE ≈ YaRN``; of one seed, which ranks nothing, ``PoPE, RoPE, YaRN``."""
        signs = [(" < " if shown else " ≈ ") for shown in self.shown]
        if self.seeds < 2:
            signs = [", " for _ in signs]
        titles = [row.title for row in self.rows]
        return "".join(a + b for a, b in zip(titles, [*signs, ""], strict=True))


def order(rows: Sequence[Row], quantity: str) -> Order:
    """Rows by ``quantity``, best first, equal ones by name.

    Raises:
        ValueError: a row without a value.
    """
    where = quantities.at(quantity)
    sign = -1 if where and where.is_share else 1
    ranked = sorted(rows, key=lambda row: (sign * _value(row, quantity), row.title))
    shown = [significantly_different(a, b, quantity) for a, b in itertools.pairwise(ranked)]
    return Order(tuple(ranked), tuple(shown))


def _value(row: Row, quantity: str) -> float:
    cell = measure(row, quantity)
    if cell.value is None:
        raise ValueError(f"{quantity} of {row.title} has no value: {cell.reason}")
    return cell.value


def significantly_different(one: Row, other: Row, quantity: str) -> bool:
    """Whether a difference is shown on the seeds that both rows have."""
    return difference(one, other, quantity).verdict != NO_DIFFERENCE


def swapped(first: Order, second: Order, quantity: str) -> list[tuple[str, str]]:
    """Labels of pairs that ``first`` and ``second`` order differently; equal values are in none."""
    one, other = (
        {row.label: _value(row, quantity) for row in found.rows} for found in (first, second)
    )
    return [
        (a, b)
        for a, b in itertools.combinations(one, 2)
        if (one[a] - one[b]) * (other[a] - other[b]) < 0
    ]


def missing(plan: Sequence[Planned], runs: Sequence[RunLike]) -> dict[str, list[int]]:
    """Label -> seeds of the planned runs that are not among ``runs``, in the order of the plan."""
    there = {run.name for run in runs}
    found: dict[str, list[int]] = {}
    for planned in plan:
        if planned.name not in there:
            found.setdefault(planned.label, []).append(planned.recipe.seed)
    return found
