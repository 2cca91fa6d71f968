"""Cells over seeds, differences seed by seed, and orders that two budgets may not share."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from test_study_results import row

from pe.results import budgets
from pe.results import rows as results
from pe.results.rows import Row
from pe.study import load_plan

T2, T3 = 12.706, 4.303
"""Student's t at 95% for two and for three values."""


def seeds(root: Path, pe: str, shifts: dict[int, float], rights: dict[int, int]) -> Row:
    """A row of several seeds: what each is off by in nats, and how many of ten it finds."""
    runs = [row(root, pe, shifts[s], rights[s], s).runs[0] for s in shifts]
    return Row(pe, pe, pe, tuple(runs))


def test_perplexities_of_seeds_are_averaged_as_losses(tmp_path: Path) -> None:
    three = seeds(tmp_path, "rope", {0: 0.0, 1: 0.1, 2: 0.2}, {0: 5, 1: 5, 2: 5})
    cell = budgets.over_seeds(three, "ppl@1x")
    half = T3 * 0.1 / math.sqrt(3)
    assert cell.interval is not None
    assert cell.value == pytest.approx(math.exp(3.1))
    assert math.log(cell.interval.low) == pytest.approx(3.1 - half, abs=1e-4)
    assert math.log(cell.interval.high) == pytest.approx(3.1 + half, abs=1e-4)
    assert budgets.write(cell, "ppl@1x", 3) == "22.2<br>17.3–28.5<br>n = 3"


def test_two_seeds_say_little_and_no_interval_reaches_below_one(tmp_path: Path) -> None:
    two = seeds(tmp_path, "nope", {0: 0.0, 1: 4.0}, {0: 5, 1: 5})
    interval = budgets.over_seeds(two, "ppl@1x").interval
    assert interval is not None
    assert interval.low == 1.0
    assert math.log(interval.high) == pytest.approx(5 + T2 * 4 / 2, abs=1e-2)
    text = budgets.write(budgets.over_seeds(two, "ppl@1x"), "ppl@1x", 2)
    assert text == "148<br>1–1.6·10¹³<br>n = 2"
    one = budgets.each(two)[1]
    assert one.title == "nope, seed 1"
    assert budgets.write(budgets.over_seeds(one, "ppl@1x"), "ppl@1x", 1) == "1,097<br>n = 1"


def test_a_share_is_never_surer_than_its_prompts(tmp_path: Path) -> None:
    agreeing = seeds(tmp_path, "rope", {0: 0.0, 1: 0.0}, {0: 5, 1: 5})
    pooled = results.measure(agreeing, "needle@1x").interval
    found = budgets.over_seeds(agreeing, "needle@1x").interval
    assert pooled is not None
    assert found is not None
    assert (found.low, found.high, found.n) == (pooled.low, pooled.high, 2)
    apart = seeds(tmp_path, "pope", {0: 0.0, 1: 0.0}, {0: 2, 1: 8})
    assert budgets.write(budgets.over_seeds(apart, "needle@1x"), "needle@1x", 2) == (
        "50%<br>0–100%<br>n = 2"
    )
    assert budgets.over_seeds(budgets.each(apart)[0], "needle@1x").interval is None


def test_differences_are_of_the_same_seed_and_bold_only_clear_of_zero(tmp_path: Path) -> None:
    base = seeds(tmp_path, "rope", {0: 0.0, 1: 1.0, 2: 2.0}, {0: 5, 1: 6, 2: 7})
    near = seeds(tmp_path, "yarn", {1: 1.2, 2: 2.21}, {1: 6, 2: 7})
    # Seeds 1 and 2, whose gaps are 0.20 and 0.21; the scatter of a nat between seeds drops out.
    assert budgets.against(near, base, "ppl@1x") == "**+23%<br>+15 to +31<br>n = 2**"
    assert budgets.against(near, base, "needle@1x") == "0 points<br>−28 to +28<br>n = 2"
    unlike = seeds(tmp_path, "pope", {0: -0.5, 1: 1.5}, {0: 10, 1: 1})
    assert budgets.against(unlike, base, "ppl@1x").startswith("0%<br>−100 to +5.7·10⁴")
    assert budgets.against(unlike, base, "needle@1x") == "0 points<br>−100 to +100<br>n = 2"
    assert budgets.against(budgets.each(near)[0], base, "ppl@1x") == "+22%<br>n = 1"
    assert budgets.against(near, base, "final_loss") == "0<br>0 to 0<br>n = 2"
    alone = seeds(tmp_path, "nope", {5: 0.0}, {5: 5})
    with pytest.raises(ValueError, match="rope have no seed in common"):
        budgets.against(alone, base, "ppl@1x")


def test_an_order_says_between_whom_a_difference_is_shown(tmp_path: Path) -> None:
    large = [
        seeds(tmp_path / "large", pe, {0: shift}, {0: right})
        for pe, shift, right in (("rope", 0.0, 5), ("yarn", 0.0001, 5), ("pope", 0.5, 10))
    ]
    small = [
        seeds(tmp_path / "small", pe, dict(enumerate(shifts)), {0: 5, 1: 5})
        for pe, shifts in (("rope", (0.3, 0.1)), ("yarn", (0.1, 0.2)), ("pope", (0.6, 0.8)))
    ]
    first, second = budgets.order(large, "ppl@1x"), budgets.order(small, "ppl@1x")
    assert str(first) == "rope < yarn < pope"  # the same windows, each a little higher
    assert str(second) == "yarn ≈ rope ≈ pope"
    assert budgets.swapped(first, second, "ppl@1x") == [("rope", "yarn")]
    assert not budgets.told_apart(small[0], small[1], "ppl@1x")
    most = budgets.order(large, "needle@1x")
    assert [r.label for r in most.rows] == ["pope", "rope", "yarn"]
    assert most.shown == (True, False)
    equal = budgets.order(small, "needle@1x")
    assert budgets.swapped(most, equal, "needle@1x") == []  # equal values contradict nothing


def test_what_is_missing_is_named_with_its_seeds() -> None:
    plan = load_plan("scaffold-seeds")
    there = [p.run() for p in plan if p.recipe.seed == 0 or p.label == "rope"]
    absent = budgets.missing(plan, there)
    assert "rope" not in absent
    assert absent["pope-dropped-at-15"] == [1, 2]
    assert budgets.missing(plan, [p.run() for p in plan]) == {}


def test_numbers_too_large_to_read_get_an_exponent() -> None:
    assert results.large(999_000.0) == "999,000"
    assert results.large(4_565_309.0) == "4.6·10⁶"
    assert results.large(1.04e20) == "1.0·10²⁰"
    assert results.large(1.0) == "1"
