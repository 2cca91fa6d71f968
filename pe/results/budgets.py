"""Several seeds, and one question asked at two budgets: cells, orders, and what changes places.

    over_seeds   a quantity of a row with the interval over its seeds
    against      a row's differences to another row, seed by seed
    order        rows from best to worst, and between which neighbours a difference is shown
    swapped      pairs of rows that stand in another order at another budget

An interval over seeds of a share is never narrower than that over its prompts: seeds that agree by
chance would otherwise look certain. Imports no torch.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pe.results import rows as results
from pe.results.intervals import NO_DIFFERENCE, Interval, mean_interval
from pe.results.rows import Cell, Row
from pe.study.plan import Planned


def each(row: Row) -> list[Row]:
    """One row a seed."""
    return [
        Row(row.label, f"{row.title}, seed {results.seed_of(r)}", row.origin, (r,))
        for r in row.runs
    ]


def over_seeds(row: Row, quantity: str) -> Cell:
    """``quantity`` of a row; the interval is over seeds, and None for one seed."""
    found = results.measure(row, quantity)
    if found.value is None or not is_share(quantity):
        return found
    if len(row.runs) < 2:
        return Cell(found.value)
    assert found.interval is not None
    seeds = mean_interval([_value(one, quantity) for one in each(row)])
    low = max(0.0, min(seeds.low, found.interval.low))
    high = min(1.0, max(seeds.high, found.interval.high))
    return Cell(seeds.value, Interval(seeds.value, low, high, seeds.n))


def is_share(quantity: str) -> bool:
    """Whether it is a share of prompts, of which more is better."""
    return quantity.removeprefix("tempered.").startswith(("needle@", "passkey@"))


def is_perplexity(quantity: str) -> bool:
    """Whether it is a perplexity at some length."""
    return quantity.removeprefix("tempered.").startswith("ppl@")


def write(cell: Cell, quantity: str, n: int) -> str:
    """``31.1<br>25.8–37.4<br>n = 2``; a value without an interval is of one seed."""
    if cell.value is None:
        return "–" if cell.reason == results.NOT_EVALUATED else cell.reason or "–"
    if is_share(quantity):
        text = f"{cell.value:.0%}"
        ends = cell.interval and f"{100 * cell.interval.low:.0f}–{100 * cell.interval.high:.0f}%"
    else:
        text, _, rest = results.write(cell, quantity).partition(" ")
        ends = cell.interval and rest.strip("()")
    return f"{text}<br>" + (f"{ends}<br>" if ends else "") + f"n = {n}"


def against(row: Row, base: Row, quantity: str) -> str:
    """``−4.1%<br>−9.8 to +2.0<br>n = 2``, in bold where the interval leaves out zero.

    Perplexities are compared as ratios and shares in points, each with the same seed's and so the
    same order of the data. One seed gives a difference and no interval.
    """
    pairs = list(zip(*results.same_seeds(row, base), strict=True))
    values = [(_value(a, quantity), _value(b, quantity)) for a, b in pairs]
    if is_perplexity(quantity):
        gaps, unit = [math.log(a / b) for a, b in values], "%"
    else:
        gaps = [a - b for a, b in values]
        unit = " points" if is_share(quantity) else ""

    def text(gap: float) -> str:
        if not unit:
            return _signed(gap, 3)
        return _signed(_percent(gap) if unit == "%" else 100 * gap)

    middle = text(statistics.fmean(gaps)) + unit
    if len(gaps) < 2:
        return f"{middle}<br>n = 1"
    gap = mean_interval(gaps)
    low, high = gap.low, gap.high
    if is_share(quantity):  # as in `over_seeds`
        _, prompts = results.difference(row, base, quantity)
        low, high = max(min(low, prompts.low), -1.0), min(max(high, prompts.high), 1.0)
    line = f"{middle}<br>{text(low)} to {text(high)}<br>n = {gap.n}"
    return f"**{line}**" if low > 0 or high < 0 else line


def _percent(nats: float) -> float:
    return 100 * math.expm1(min(nats, 700.0))


def _signed(value: float, digits: int | None = None) -> str:
    size = abs(value)
    if digits is not None:
        text = f"{size:.{digits}f}"
    elif size < 9.95:
        text = f"{size:.1f}"
    else:
        text = f"{size:,.0f}" if size < 1e4 else results.large(size, 1e4)
    if not text.strip("0."):
        return "0"
    return ("+" if value > 0 else "−") + text


def _value(row: Row, quantity: str) -> float:
    found = results.measure(row, quantity).value
    if found is None:
        raise ValueError(f"{quantity} is not recorded for {row.title}")
    return found


@dataclass(frozen=True)
class Order:
    """Rows from best to worst; ``shown[i]``: a difference is shown between i and i + 1."""

    rows: tuple[Row, ...]
    shown: tuple[bool, ...]

    def __str__(self) -> str:
        """``PoPE < RoPE ≈ YaRN``."""
        signs = [" < " if shown else " ≈ " for shown in self.shown]
        return "".join(
            a + b for a, b in zip([r.title for r in self.rows], [*signs, ""], strict=True)
        )


def order(rows: Sequence[Row], quantity: str) -> Order:
    """Rows by ``quantity``, best first, equal ones by name."""
    sign = -1 if is_share(quantity) else 1
    ranked = sorted(rows, key=lambda row: (sign * _value(row, quantity), row.title))
    shown = [told_apart(a, b, quantity) for a, b in itertools.pairwise(ranked)]
    return Order(tuple(ranked), tuple(shown))


def told_apart(one: Row, other: Row, quantity: str) -> bool:
    """Whether a difference is shown: over common seeds, or over windows or prompts of a single one.

    Shares of several seeds are told apart by their intervals over seeds (`over_seeds`).
    """
    common, _ = results.same_seeds(one, other)
    if is_share(quantity) and len(common) > 1:
        first, second = (over_seeds(row, quantity).interval for row in (one, other))
        assert first is not None
        assert second is not None
        return not first.overlaps(second)
    return results.difference(one, other, quantity)[0] != NO_DIFFERENCE


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


def missing(plan: Sequence[Planned], runs: Sequence[results.RunLike]) -> dict[str, list[int]]:
    """Label -> seeds of the planned runs that are not among ``runs``, in the order of the plan."""
    there = {run.name for run in runs}
    found: dict[str, list[int]] = {}
    for planned in plan:
        if planned.name not in there:
            found.setdefault(planned.label, []).append(planned.recipe.seed)
    return found
