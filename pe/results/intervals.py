"""How sure a measurement is: intervals for counts and means, and paired differences.

    wilson        a share of right answers, from counts            (scipy's binomtest)
    mean_interval a mean over seeds or windows, Student's t
    paired        two runs on the same windows, or two methods on the same seeds: the mean of the
                  differences, whose interval is narrower than that of either mean
    verdict       "lower", "higher", or "no difference shown" where the interval holds zero or two
                  intervals overlap

All intervals are at 95% unless told otherwise. Windows of one text and prompts of one model are
treated as independent; an interval over windows or prompts says nothing about another seed.
Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95
NO_DIFFERENCE = "no difference shown"


@dataclass(frozen=True)
class Interval:
    """A value, the interval around it, and how many observations it is made of."""

    value: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Of a symmetric interval."""
        return (self.high - self.low) / 2

    def overlaps(self, other: Interval) -> bool:
        """Whether the two share a point."""
        return self.low <= other.high and other.low <= self.high


def wilson(right: int, n: int, level: float = LEVEL) -> Interval:
    """Wilson's interval of a share: it stays inside 0 to 1 and is not empty at 0 of n.

    Raises ValueError unless 0 <= right <= n and n > 0.
    """
    if n < 1 or not 0 <= right <= n:
        raise ValueError(f"{right} right answers of {n}; expected 0 to n of at least one")
    from scipy.stats import binomtest

    found = binomtest(right, n).proportion_ci(confidence_level=level, method="wilson")
    return Interval(right / n, float(found.low), float(found.high), n)


def mean_interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """Mean of independent values with Student's t interval.

    Raises ValueError for fewer than two: one value has no spread.
    """
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of a mean needs at least two values; there is {n}")
    from scipy.stats import t

    mean = statistics.fmean(values)
    half = float(t.ppf((1 + level) / 2, n - 1)) * statistics.stdev(values) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Interval:
    """``first - second``, value by value: the same windows, or the same seeds, in the same order.

    Raises ValueError for lists of different lengths, or shorter than two.
    """
    if len(first) != len(second):
        raise ValueError(
            f"pairs need lists of one length; these have {len(first)} and {len(second)} values"
        )
    return mean_interval([a - b for a, b in zip(first, second, strict=True)], level)


def verdict(first: Interval, second: Interval | None = None) -> str:
    """``"lower"``, ``"higher"`` or `NO_DIFFERENCE`.

    Of ``first`` against ``second``: apart only if the intervals do not overlap. Of a difference
    alone (from `paired`): apart only if its interval does not hold zero.
    """
    other = second or Interval(0.0, 0.0, 0.0, first.n)
    if first.overlaps(other):
        return NO_DIFFERENCE
    return "lower" if first.high < other.low else "higher"
