"""95% intervals of shares and means, and tests of differences.

Windows of one corpus and prompts of one model are treated as independent. An interval over windows
or prompts says nothing about another seed. Imports no torch.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A value, the interval around it, and how many observations it is made of."""

    value: float
    low: float
    high: float
    n: int


def wilson(right: int, n: int) -> Interval:
    """Return Wilson's interval of a share. It stays inside 0 to 1 and is not empty at 0 of n.

    Raises ValueError unless 0 <= right <= n and n > 0.
    """
    if n < 1 or not 0 <= right <= n:
        raise ValueError(f"{right} right answers of {n}; expected 0 to n of at least one")
    return Interval(right / n, *_wilson_bounds(right, n), n)


@functools.cache
def _wilson_bounds(right: int, n: int) -> tuple[float, float]:
    from scipy.stats import binomtest

    bounds = binomtest(right, n).proportion_ci(confidence_level=LEVEL, method="wilson")
    return float(bounds.low), float(bounds.high)


def scaled(interval: Interval, factor: float) -> Interval:
    """Return the interval of a value times a known number that is not negative."""
    value, low, high = (factor * x for x in (interval.value, interval.low, interval.high))
    return Interval(value, low, high, interval.n)


def newcombe(first: Interval, second: Interval) -> Interval:
    """Return ``first - second`` of two Wilson intervals (Newcombe 1998, method 10)."""
    gap = first.value - second.value
    low = math.hypot(first.value - first.low, second.high - second.value)
    high = math.hypot(first.high - first.value, second.value - second.low)
    return Interval(gap, gap - low, gap + high, first.n)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean of independent values with Student's t interval.

    Raises ValueError for fewer than two: one value has no spread.
    """
    return _student(values, 1.0)


def prediction(values: Sequence[float]) -> Interval:
    """Return the 95% interval of one further value: sqrt(n + 1) times as wide as the mean's.

    Raises ValueError for fewer than two.
    """
    return _student(values, math.sqrt(len(values) + 1))


def _student(values: Sequence[float], factor: float) -> Interval:
    n = len(values)
    if n < 2:
        raise ValueError(f"an interval of a mean needs at least two values; there is {n}")
    mean = statistics.fmean(values)
    half = _quantile_of_t(n - 1) * _deviation(values) / math.sqrt(n) * factor
    return Interval(mean, mean - half, mean + half, n)


def _deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 7 times as fast as `statistics.stdev`."""
    return float(np.std(values, ddof=1))


@functools.cache
def _quantile_of_t(freedom: int) -> float:
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))


def paired(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Return ``first - second`` for each window, or each seed; both have them in the same order.

    Raises ValueError for lists of different lengths.
    """
    if len(first) != len(second):
        raise ValueError(
            f"pairs need lists of one length; these have {len(first)} and {len(second)} values"
        )
    return [a - b for a, b in zip(first, second, strict=True)]


def p_of_mean(values: Sequence[float]) -> float:
    """Return the two-sided p of Student's test that the mean is zero; 1 if all values are zero."""
    if len(set(values)) == 1:
        return 1.0 if values[0] == 0 else 0.0
    from scipy.special import stdtr

    n = len(values)
    t = statistics.fmean(values) / (_deviation(values) / math.sqrt(n))
    return 2 * float(stdtr(n - 1, -abs(t)))


def discordant(first: Sequence[int], second: Sequence[int], samples: int) -> tuple[int, int] | None:
    """Count the prompts that only ``first`` and only ``second`` answered, from counts by depth.

    Both answered the same ``samples`` prompts at each depth. None where the counts do not say:
    they do at a depth where one of the two answered all or none.
    """
    one = other = 0
    for a, b in zip(first, second, strict=True):
        if not {a, b} & {0, samples}:
            return None
        one, other = one + max(a - b, 0), other + max(b - a, 0)
    return one, other


def mcnemar(only_first: int, only_second: int) -> float:
    """Return the exact two-sided p of McNemar's test; 1 if no prompt was answered by one alone."""
    if only_first + only_second == 0:
        return 1.0
    from scipy.stats import binomtest

    return float(binomtest(only_first, only_first + only_second).pvalue)


def fisher(first: tuple[int, int], second: tuple[int, int]) -> float:
    """Return the two-sided p of Fisher's exact test. Each argument is (right, asked)."""
    from scipy.stats import fisher_exact

    table = [[right, asked - right] for right, asked in (first, second)]
    return float(fisher_exact(table).pvalue)


def holm(values: Sequence[float]) -> list[float]:
    """Adjust p values by Holm's method: by chance, any is below 0.05 in at most 5% of the cases."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    adjusted, largest = [0.0] * len(values), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(values) - place) * values[i]))
        adjusted[i] = largest
    return adjusted
