"""Intervals against published or worked values, and what may be called a difference."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from pe.results.intervals import (
    fisher,
    mcnemar,
    mean_interval,
    newcombe,
    p_of_mean,
    paired,
    prediction,
    wilson,
)


def by_hand(right: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's formula as it stands in every textbook."""
    p = right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return centre - half, centre + half


@pytest.mark.parametrize(("right", "n"), [(0, 110), (110, 110), (70, 110), (1, 10), (3, 110)])
def test_wilson_is_the_textbook_formula(right: int, n: int) -> None:
    found = wilson(right, n)
    low, high = by_hand(right, n)
    assert found.low == pytest.approx(low, abs=1e-6)
    assert found.high == pytest.approx(high, abs=1e-6)
    assert found.value == right / n
    assert found.n == n
    assert -1e-12 <= found.low <= found.value <= found.high <= 1 + 1e-12


def test_no_right_answer_still_leaves_room_for_some() -> None:
    assert wilson(0, 110).high == pytest.approx(0.0337, abs=1e-3)


@pytest.mark.parametrize(("right", "n"), [(1, 0), (-1, 5), (6, 5)])
def test_impossible_counts_are_refused(right: int, n: int) -> None:
    with pytest.raises(ValueError, match="right answers"):
        wilson(right, n)


def test_a_mean_over_three_seeds() -> None:
    found = mean_interval([10.0, 11.0, 12.0])
    assert found.value == 11.0
    assert found.n == 3
    assert found.high - 11.0 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t(0.975, 2)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        mean_interval([10.0])


def test_pairs_find_what_two_means_hide() -> None:
    first = [3.0, 5.0, 1.0, 4.0]
    second = [3.1, 5.1, 1.1, 4.11]
    one, other = mean_interval(first), mean_interval(second)
    assert one.low < other.high
    assert other.low < one.high
    gap = mean_interval(paired(first, second))
    assert gap.high < 0
    assert p_of_mean(paired(first, second)) < 0.001
    assert p_of_mean([0.0, 0.0]) == 1
    with pytest.raises(ValueError, match="one length"):
        paired(first, second[:2])


def test_shares_are_compared_by_exact_tests() -> None:
    assert fisher((70, 110), (52, 110)) == pytest.approx(0.0206, abs=1e-3)
    assert mcnemar(0, 0) == 1
    gap = newcombe(wilson(56, 70), wilson(48, 80))  # Newcombe 1998, table II, case (a)
    assert (gap.low, gap.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)


def test_a_new_value_is_less_certain_than_a_mean() -> None:
    mean, new = mean_interval([1.0, 2.0, 3.0]), prediction([1.0, 2.0, 3.0])
    assert (new.high - new.low) == pytest.approx(2 * (mean.high - mean.low))


def test_it_brings_no_torch() -> None:
    code = "import sys, pe.results.intervals; print('torch' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
