"""Intervals against published or worked values, and what may be called a difference."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from pe.results.intervals import NO_DIFFERENCE, Interval, mean_interval, paired, verdict, wilson


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
    assert found.half_width == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)  # t(0.975, 2)


def test_one_seed_has_no_interval() -> None:
    with pytest.raises(ValueError, match="at least two"):
        mean_interval([10.0])


def test_pairs_find_what_two_means_hide() -> None:
    first = [3.0, 5.0, 1.0, 4.0]
    second = [3.1, 5.1, 1.1, 4.11]
    assert verdict(mean_interval(first), mean_interval(second)) == NO_DIFFERENCE
    assert verdict(paired(first, second)) == "lower"
    assert verdict(paired(second, first)) == "higher"
    with pytest.raises(ValueError, match="one length"):
        paired(first, second[:2])


def test_what_overlaps_is_no_difference() -> None:
    assert verdict(wilson(70, 110), wilson(52, 110)) == NO_DIFFERENCE  # 63.6% against 47.3%
    assert verdict(wilson(70, 110), wilson(33, 110)) == "higher"
    assert verdict(Interval(1, 0, 2, 5), Interval(3, 2, 4, 5)) == NO_DIFFERENCE  # they touch
    assert verdict(paired([1.0, 2.0, 3.0], [2.0, 1.0, 3.0])) == NO_DIFFERENCE


def test_it_brings_no_torch() -> None:
    code = "import sys, pe.results.intervals; print('torch' in sys.modules, 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
