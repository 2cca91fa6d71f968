"""Cells over seeds, differences seed by seed, and orders."""

from __future__ import annotations

import math
from pathlib import Path

import book_records
import pytest
from study_rows import row

from pe.results.difference import NO_DIFFERENCE, difference, order
from pe.results.intervals import wilson
from pe.results.markdown import table
from pe.results.measure import measure, predicted, write
from pe.results.rows import Row

T2 = 12.706
"""Student's t at 95% for two values."""


def seeds(root: Path, pe: str, shifts: dict[int, float], rights: dict[int, int]) -> Row:
    """A row of several seeds: what each is off by in nats, and how many of ten it finds."""
    runs = [row(root, pe, shifts[s], rights[s], s).runs[0] for s in shifts]
    return Row(pe, pe, pe, tuple(runs))


def test_two_seeds_say_little_and_no_interval_reaches_below_one(tmp_path: Path) -> None:
    two = seeds(tmp_path, "nope", {0: 0.0, 1: 3.0}, {0: 5, 1: 5})
    cell = measure(two, "ppl@1x")
    assert cell.interval is not None
    assert cell.interval.low == 1.0
    assert math.log(cell.interval.high) == pytest.approx(4.5 + T2 * 3 / 2, abs=1e-2)
    assert write(cell, "ppl@1x", "<br>") == "90.0<br>(1–>512)"
    one = two.each()[1]
    assert one.title == "nope, seed 1"
    assert write(measure(one, "ppl@1x"), "ppl@1x") == "403"


def test_a_share_is_never_surer_than_its_prompts(tmp_path: Path) -> None:
    agreeing = seeds(tmp_path, "rope", {0: 0.0, 1: 0.0}, {0: 5, 1: 5})
    pooled, found = wilson(20, 40), measure(agreeing, "needle@1x").interval
    assert found is not None
    assert (found.low, found.high, found.n) == (pooled.low, pooled.high, 2)
    apart = seeds(tmp_path, "pope", {0: 0.0, 1: 0.0}, {0: 2, 1: 8})
    assert write(measure(apart, "needle@1x"), "needle@1x") == "50% (0–100)"


def test_differences_are_of_the_same_seed_and_bold_only_clear_of_zero(tmp_path: Path) -> None:
    base = seeds(tmp_path, "rope", {0: 0.0, 1: 1.0, 2: 2.0}, {0: 5, 1: 6, 2: 7})
    near = seeds(tmp_path, "yarn", {1: 1.2, 2: 2.21}, {1: 6, 2: 7})

    def cell(row: Row, quantity: str) -> list[str]:
        return book_records.lines(table([row], [quantity], base=base))[1][1:]

    # Seeds 1 and 2, whose gaps are 0.20 and 0.21; the scatter of a nat between seeds drops out.
    assert cell(near, "ppl@1x") == ["1, 2", "**+23%<br>+15 to +31**"]
    assert cell(near, "needle@1x") == ["1, 2", "0 points<br>−20 to +20"]
    unlike = seeds(tmp_path, "pope", {0: -0.5, 1: 1.5}, {0: 10, 1: 1})
    assert cell(unlike, "needle@1x") == ["0, 1", "0 points<br>−100 to +100"]
    near_one = cell(near.each()[0], "ppl@1x")
    assert near_one == ["1", "**+22%<br>+22 to +23**"], "of one seed, over the same windows"
    alone = seeds(tmp_path, "nope", {5: 0.0}, {5: 5})
    with pytest.raises(ValueError, match="rope have no seed in common"):
        cell(alone, "ppl@1x")


def test_a_row_of_more_seeds_does_not_take_the_tests_of_the_others(tmp_path: Path) -> None:
    base = seeds(tmp_path, "rope", {0: 0.0, 1: 1.0}, {0: 5, 1: 6})
    two = seeds(tmp_path, "yarn", {0: 0.2, 1: 1.21}, {0: 5, 1: 6})
    one = seeds(tmp_path, "pope", {0: 0.3}, {0: 5})
    links = {run.name: f"{run.name}.html" for run in two.runs}
    lines = book_records.lines(table([base, two, one], ["ppl@1x"], links, base=base))[1:]
    assert [line[0] for line in lines] == ["yarn", "pope", "*yarn, mean of 2 seeds*"]
    assert lines[0][2] == table_cell(two.of([0]), base), "of one seed, over the same windows"
    assert lines[1][2] == table_cell(one, base)
    assert lines[2][2] == table_cell(two, base), "over the seeds"
    assert all(f"{run.name}.html" in lines[2][1] for run in two.runs)


def table_cell(row: Row, base: Row) -> str:
    return book_records.lines(table([row], ["ppl@1x"], base=base))[1][2]


def test_seeds_that_disagree_by_more_than_the_prompts_leave_either_sign(tmp_path: Path) -> None:
    """The prompts alone show a difference; the interval over two seeds that differ reaches -1."""
    base = seeds(tmp_path, "rope", {0: 0.0, 1: 0.0}, {0: 2, 1: 5})
    more = seeds(tmp_path, "pope", {0: 0.0, 1: 0.0}, {0: 10, 1: 6})
    gap = difference(more, base, "needle@1x")
    assert gap.interval is not None
    assert (gap.interval.low, gap.interval.high) == (-1.0, 1.0)
    assert gap.verdict == NO_DIFFERENCE


def test_differences_without_a_test_are_in_no_correction(tmp_path: Path) -> None:
    """A loss of one seed has no p; shares by depth that are not matched have Fisher's."""
    base, other = (seeds(tmp_path, pe, {0: 0.1}, {0: n}) for pe, n in (("rope", 5), ("pope", 6)))
    text = table([other], ["validation_loss", "needle@1x"], base=base)
    assert book_records.lines(text)[1][2:] == ["0", "+10 points<br>−19 to +37"]


def test_the_next_seed_has_no_perplexity_below_one(tmp_path: Path) -> None:
    apart = seeds(tmp_path, "nope", {0: 0.0, 1: 3.0}, {0: 5, 1: 5})
    assert predicted(apart, "ppl@1x").low == 1.0


def test_an_order_says_between_whom_a_difference_is_shown(tmp_path: Path) -> None:
    found = [
        seeds(tmp_path, pe, dict(enumerate(shifts)), {0: right, 1: right})
        for pe, shifts, right in (
            ("rope", (0.3, 0.1), 5), ("yarn", (0.1, 0.2), 5), ("pope", (0.9, 0.701), 10),
        )
    ]  # fmt: skip
    assert order(found, "ppl@1x") == "yarn ≈ rope < pope"
    assert order(found, "needle@1x") == "pope < rope ≈ yarn", "of shares the highest is best"
    with pytest.raises(ValueError, match="rows of one seed each are not ranked"):
        order([row.of([0]) for row in found], "ppl@1x")
    with pytest.raises(ValueError, match=r"ppl@3x of .* has no value: not evaluated"):
        order(found, "ppl@3x")
