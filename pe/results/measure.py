"""Measure a row, and write the result.

* The value of several seeds is their mean, with Student's 95% interval. Perplexities are averaged
  as losses, in nats, so theirs is the geometric mean. One seed has no interval.
* A share of prompts has Wilson's 95% interval, also of one seed; over several seeds its interval
  is Student's where that is wider: seeds that agree by chance would otherwise look certain.

Every table, figure and number of the guide comes from `measure` and
`pe.results.difference.difference`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pe.results import intervals, quantities
from pe.results.intervals import Interval
from pe.results.quantities import GUESSING, NOT_EVALUATED, NOT_RECORDED, At, RunLike
from pe.results.rows import Row

UNDECIDED = "undecided"
"""Where no difference to the cut text is shown."""


@dataclass(frozen=True)
class Cell:
    """A value of a row, or the reason why there is none."""

    value: float | None
    interval: Interval | None = None
    reason: str = ""
    limit: int | None = None
    """The size of the vocabulary, above which a perplexity is worse than guessing."""


def measure(row: Row, quantity: str) -> Cell:
    """Measure a quantity of a row. The module says what the value and the interval of a cell are.

    Raises:
        ValueError: an unknown quantity.
    """
    values: list[float] = []
    for run in row.runs:
        value, reason = quantities.value(run, quantity)
        if value is None:  # a mean over some of the seeds would be another quantity
            return Cell(None, reason=reason)
        values.append(value)
    where = quantities.at(quantity)
    if where and where.is_share:
        prompts = intervals.wilson(*right_and_asked(row, quantity))
        return Cell(prompts.value, over_seeds(values, prompts))
    if where and where.is_perplexity:
        limit = quantities.vocabulary(row.runs[0])
        if len(values) < 2:
            return Cell(values[0], limit=limit)
        interval = _of_perplexities(intervals.mean_interval, values)
        return Cell(interval.value, interval, limit=limit)
    if len(set(values)) < 2:
        return Cell(values[0])
    interval = intervals.mean_interval(values)
    if quantity in quantities.QUANTITIES:  # losses, times, rates, counts: none is below 0
        interval = replace(interval, low=max(interval.low, 0.0))
    return Cell(statistics.fmean(values), interval)


def _of_perplexities(
    interval: Callable[[Sequence[float]], Interval], values: Sequence[float]
) -> Interval:
    """Return the interval of losses in nats, as perplexities. None of these is below 1."""
    nats = interval([math.log(value) for value in values])
    low, high = max(nats.low, 0.0), min(nats.high, 700.0)
    return Interval(math.exp(nats.value), math.exp(low), math.exp(high), nats.n)


def right_and_asked(row: Row, quantity: str) -> tuple[int, int]:
    """Return the right answers and the prompts of a share, of all depths and seeds."""
    right = asked = 0
    for run in row.runs:
        answered = quantities.answers(run, quantity)
        if answered is None or answered.right is None:
            raise ValueError(f"{quantity} is not recorded for {row.label}")
        right += sum(answered.right)
        asked += len(answered.right) * answered.samples
    return right, asked


def over_seeds(values: Sequence[float], prompts: Interval, least: float = 0.0) -> Interval:
    """Return the interval of shares or of their differences, at least as wide as ``prompts``.

    Args:
        least: the lowest possible value: 0 for shares, -1 for their differences.
    """
    if len(values) < 2:
        return prompts
    seeds = intervals.mean_interval(values)
    low, high = max(least, min(seeds.low, prompts.low)), min(1.0, max(seeds.high, prompts.high))
    return Interval(seeds.value, low, high, seeds.n)


def recorded(row: Row, run: RunLike, quantity: str) -> float:
    """Return a quantity of one run of a row. ValueError says why it has no value."""
    value, reason = quantities.value(run, quantity)
    if value is None:
        raise ValueError(f"{quantity} of {row.label} has no value: {reason}")
    return value


def cut(row: Row, quantity: str) -> float | None:
    """Return the value that a row would have if it read only the last training length of a text.

    A perplexity of the same targets is the one at 1x. A share of prompts is the one at 1x times the
    share of prompts whose numbers all lie in that last part, at a depth of at least 1 - 1/multiple.
    It is a little too high, because it leaves out the tokens of the question, of the answer and of
    the needles after that depth.

    Returns:
        None below the training length, and where a value is missing.
    """
    where = quantities.at(quantity)
    if where is None or where.multiple < 1:
        return None
    near = measure(row, _near(where)).value
    if near is None or where.is_perplexity:
        return near
    inside = _uncut(row, where)
    return None if inside is None else near * inside


def _near(where: At) -> str:
    """Return the same quantity at the training length."""
    return str(where._replace(multiple=1.0, tempered=False))


def _uncut(row: Row, where: At) -> float | None:
    """Return the share of prompts whose numbers all lie in the last training length of the text."""
    asked = quantities.answers(row.runs[0], str(where))
    if asked is None:
        return None
    return statistics.fmean(depth >= 1 - 1 / where.multiple for depth in asked.depths)


def write_cut(row: Row, quantity: str) -> str:
    """Write `cut` of a row, or a dash."""
    value = cut(row, quantity)
    limit = quantities.vocabulary(row.runs[0])
    return "–" if value is None else quantities.write(value, quantity, limit)


def beyond_cut(row: Row, quantity: str) -> Interval | None:
    """Compare a row of one run with its texts cut to the training length (`cut`).

    A perplexity is compared in nats, with Student's interval over the windows, whose last tokens
    are the same. A share has Newcombe's interval. The interval of the cut share is the one at 1x,
    times the share of prompts that lie in the cut text.

    Returns:
        None up to the training length, and where a value is missing.
    """
    where = quantities.at(quantity)
    (run,) = row.runs
    if where is None or where.multiple <= 1 or measure(row, quantity).value is None:
        return None
    if where.is_perplexity:
        both = [quantities.windows(run, name) for name in (quantity, _near(where))]
        return intervals.mean_interval(intervals.paired(*both))
    own, near = (measure(row, name).interval for name in (quantity, _near(where)))
    inside = _uncut(row, where)
    if own is None or near is None or inside is None:
        return None
    return intervals.newcombe(own, intervals.scaled(near, inside))


def ahead_of_cut(row: Row, quantity: str) -> int | None:
    """Return 1 if a row of one run is shown to be better than with its texts cut, -1 if worse.

    0 if no difference is shown, and None where `beyond_cut` has none.
    """
    gap, where = beyond_cut(row, quantity), quantities.at(quantity)
    if gap is None or where is None:
        return None
    sign = (gap.low > 0) - (gap.high < 0)
    return -sign if where.is_perplexity else sign


def beside_cutting(row: Row, quantity: str, between: str = ", ") -> str:
    """Return ``better`` or ``worse`` than with texts cut, or `UNDECIDED`.

    One word if all seeds of the row agree, else one per seed, joined by ``between``. Empty if a
    value is missing.
    """
    words = []
    for one in row.each():
        ahead = ahead_of_cut(one, quantity)
        if ahead is None:
            return ""
        words.append({1: "better", 0: UNDECIDED, -1: "worse"}[ahead])
    if len(set(words)) == 1:
        return words[0]
    return between.join(f"{word} ({seed})" for word, seed in zip(words, row.seeds, strict=True))


def cut_base(found: Sequence[Row]) -> Row | None:
    """Return RoPE or else the first row, of those with the shortest training length."""
    shortest = quantities.trained_length(run for row in found for run in row.runs)
    own = [row for row in found if quantities.trained_length(row.runs) == shortest]
    return next((row for row in own if row.label == "rope"), own[0]) if own else None


def predicted(row: Row, quantity: str) -> Interval:
    """Return the interval in which one more seed of the row would lie at 95%.

    Raises:
        ValueError: fewer than two seeds, or one without a value.
    """
    values = [recorded(row, run, quantity) for run in row.runs]
    where = quantities.at(quantity)
    if where and where.is_perplexity:
        return _of_perplexities(intervals.prediction, values)
    return intervals.prediction(values)


def write(cell: Cell, quantity: str, between: str = " ") -> str:
    """Write a cell: ``22.4``, ``22.4 (21.9–23.0)``, ``64% (54–72)``, or why there is no value."""
    if cell.value is None:
        return "–" if cell.reason in (NOT_RECORDED, NOT_EVALUATED) else cell.reason or "–"
    text = quantities.write(cell.value, quantity, cell.limit)
    if cell.interval is None or text == GUESSING:
        return text
    ends = [
        f">{cell.limit:,}"
        if cell.limit and end > cell.limit
        else quantities.write(end, quantity, cell.limit).removesuffix("%")
        for end in (cell.interval.low, cell.interval.high)
    ]
    return text if ends[0] == ends[1] else f"{text}{between}({'–'.join(ends)})"
