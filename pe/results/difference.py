"""Compare two rows on their common seeds, seed by seed.

A seed is the initial weights and the order of the text. Two single runs are compared on the same
windows, or on the same prompts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from pe.results import intervals, quantities
from pe.results.intervals import Interval
from pe.results.measure import measure, over_seeds, recorded, right_and_asked
from pe.results.quantities import GUESSING, signed
from pe.results.rows import Row, common_seeds

NO_DIFFERENCE = "no difference shown"
LEVEL = 0.05
"""A difference is shown where p is below this level."""


@dataclass(frozen=True)
class Difference:
    """The difference of two rows on their common seeds.

    ``value`` and ``interval`` are in nats for perplexities, in shares for shares. ``p`` is that of
    the test, None where one seed leaves nothing to test. ``over`` says what was paired: "seeds",
    "windows", "prompts", or "" where prompts could not be matched.
    """

    quantity: str
    value: float
    interval: Interval | None
    p: float | None
    over: str
    guessing: bool = False
    """One of the two perplexities is above the size of the vocabulary."""

    @property
    def verdict(self) -> str:
        """``"lower"``, ``"higher"`` or `NO_DIFFERENCE`."""
        if self.p is None or self.p >= LEVEL:
            return NO_DIFFERENCE
        return "lower" if self.value < 0 else "higher"

    def text(self, gap: float) -> str:
        """Write a difference: ``−12`` (percent), ``+50`` (points) or ``−0.012``."""
        where = quantities.at(self.quantity)
        if where and where.is_perplexity:
            return signed(100 * math.expm1(min(gap, 700.0)))
        return signed(100 * gap) if where and where.is_share else signed(gap, 3)

    @property
    def unit(self) -> str:
        """The unit, which `text` leaves out."""
        where = quantities.at(self.quantity)
        if where and where.is_perplexity:
            return "%"
        return " points" if where and where.is_share else ""


def difference(first: Row, second: Row, quantity: str) -> Difference:
    """Compare ``first`` with ``second`` on the seeds that both have.

    If they were trained on windows of different lengths, ``quantity`` is at a multiple of the
    shorter one.

    Several seeds are compared by paired differences. Their interval and their p are no smaller than
    those over prompts or windows, if these are recorded. Of one seed, perplexities are compared
    over the same windows, and shares over the same prompts by McNemar's exact test. Records of
    ``needle`` have only the number of right prompts at each depth. If that does not tell which
    prompts were right, Fisher's exact test is used, which treats the prompts as unrelated.

    Raises:
        ValueError: no seed in common, a quantity that is not recorded, or perplexities of other
            windows.
    """
    common = common_seeds([first, second])
    if not common:
        raise ValueError(f"{first.label} and {second.label} have no seed in common")
    one, other = first.of(common), second.of(common)
    where = quantities.at(quantity)
    shorter = quantities.trained_length([*one.runs, *other.runs])
    both = [(row, quantities.rescaled(quantity, row.runs[0], shorter)) for row in (one, other)]
    values = [[recorded(row, run, name) for run in row.runs] for row, name in both]
    if where and where.is_share:
        return _of_shares(both, quantity, intervals.paired(*values))
    guessing, over = False, "seeds"
    if where and where.is_perplexity:
        if not same_targets([one, other]):
            raise ValueError(f"{quantity}: {one.label} and {other.label} have other windows")
        guessing = max(map(max, values)) > quantities.vocabulary(one.runs[0])
        values = [[math.log(value) for value in seeds] for seeds in values]
        if len(common) == 1:
            over = "windows"
            values = [quantities.windows(row.runs[0], name) for row, name in both]
    gaps = intervals.paired(*values)
    if len(gaps) < 2:
        return Difference(quantity, gaps[0], None, None, "", guessing)
    interval = intervals.mean_interval(gaps)
    p = intervals.p_of_mean(gaps)
    if over == "seeds" and where and where.is_perplexity and (of_windows := _by_window(both)):
        test = intervals.mean_interval(of_windows)
        low, high = min(interval.low, test.low), max(interval.high, test.high)
        interval = replace(interval, low=low, high=high)
        p = max(p, intervals.p_of_mean(of_windows))
    return Difference(quantity, interval.value, interval, p, over, guessing)


def _by_window(both: Sequence[tuple[Row, str]]) -> list[float] | None:
    """Return the difference of the losses of each window, averaged over seeds, if recorded."""
    gaps: list[list[float]] = []
    for one, other in zip(*(row.runs for row, _ in both), strict=True):
        pair = [
            quantities.recorded_windows(run, name)
            for run, (_, name) in zip((one, other), both, strict=True)
        ]
        if pair[0] is None or pair[1] is None:
            return None
        gaps.append(intervals.paired(pair[0], pair[1]))
    return [fmean(window) for window in zip(*gaps, strict=True)]


def _of_shares(both: Sequence[tuple[Row, str]], quantity: str, gaps: Sequence[float]) -> Difference:
    counts = [right_and_asked(row, name) for row, name in both]
    prompts = intervals.newcombe(*(intervals.wilson(*count) for count in counts))
    discordant = _discordant(both)
    over = "prompts" if discordant else ""
    p = intervals.mcnemar(*discordant) if discordant else intervals.fisher(*counts)
    if len(gaps) < 2:
        return Difference(quantity, prompts.value, prompts, p, over)
    p = max(p, intervals.p_of_mean(gaps))
    interval = over_seeds(gaps, prompts, least=-1.0)
    return Difference(quantity, interval.value, interval, p, "seeds")


def _discordant(both: Sequence[tuple[Row, str]]) -> tuple[int, int] | None:
    """Count the prompts that only one row answered; None where the records do not say."""
    total = [0, 0]
    cells = [[quantities.answers(run, name) for run in row.runs] for row, name in both]
    for first, second in zip(*cells, strict=True):
        if first is None or second is None or first[:2] != second[:2]:
            return None  # the runs were asked different prompts
        pair = intervals.discordant(first.right or (), second.right or (), first.samples)
        if pair is None:
            return None
        total = [a + b for a, b in zip(total, pair, strict=True)]
    return total[0], total[1]


def same_targets(found: Sequence[Row]) -> bool:
    """Return whether the perplexities of these rows are of the same tokens of the same text.

    Windows are drawn from the documents that have room for the longest evaluated length.
    """
    settings = set()
    for run in (run for row in found for run in row.runs):
        evaluation, data = run.evaluation() or {"lengths": [0]}, run.read()["data"] or {}
        targets = evaluation.get("target_tokens"), evaluation.get("windows")
        settings.add((data.get("fingerprint"), max(evaluation["lengths"]), *targets))
    return len(settings) == 1


def order(found: Sequence[Row], quantity: str) -> str:
    """Write the titles of rows by ``quantity``, best first: ``PoPE < RoPE ≈ YaRN``.

    ``<`` says that a difference between the two is shown, ``≈`` that none is.

    Raises:
        ValueError: a row of a single seed, which ranks runs and not methods, or without a value.
    """
    if min(len(row.runs) for row in found) < 2:
        raise ValueError("rows of one seed each are not ranked")
    where = quantities.at(quantity)
    sign = -1 if where and where.is_share else 1
    # A row without a value may stand anywhere: `difference` raises an error that names it.
    ranked = sorted(found, key=lambda row: (sign * (measure(row, quantity).value or 0), row.title))
    text = ranked[0].title
    for one, other in itertools.pairwise(ranked):
        shown = difference(one, other, quantity).verdict != NO_DIFFERENCE
        text += (" < " if shown else " ≈ ") + other.title
    return text


def write_difference(first: Row, second: Row, quantity: str) -> str:
    """Write for prose: ``lower by 12% (10 to 14%)``, or that no difference is shown.

    Raises:
        ValueError: one seed that leaves nothing to test, or a perplexity worse than guessing.
    """
    gap = difference(first, second, quantity)
    if gap.interval is None:
        raise ValueError(f"{quantity}: one seed of {first.label} says nothing of another")
    if gap.guessing:
        raise ValueError(f"{quantity} of {first.label} or {second.label} is {GUESSING}")
    if gap.verdict == NO_DIFFERENCE:
        return NO_DIFFERENCE
    where = quantities.at(quantity)
    if where and where.is_perplexity:  # a difference of losses is a ratio of perplexities
        ends = sorted(abs(math.expm1(x)) for x in (gap.interval.low, gap.interval.high))
        size, low, high = (f"{100 * x:.2g}" for x in (abs(math.expm1(gap.value)), *ends))
        return f"{gap.verdict} by {size}% ({low} to {high}%)"
    size = gap.text(abs(gap.value)).removeprefix("+")
    test = f" (paired prompts, {p_value(gap.p)})" if gap.over == "prompts" else ""
    return f"{gap.verdict} by {size}{gap.unit}{test}"


def p_value(p: float | None) -> str:
    """Write ``p = 0.016``, or ``p < 0.001``."""
    assert p is not None
    return f"p = {p:.2g}" if p >= 0.001 else "p < 0.001"
