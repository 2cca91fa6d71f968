"""The picture of all encodings of a budget: who is on top, what a row without a far value shows."""

from __future__ import annotations

import book_records
import pytest

from pe import figures, runs
from pe.figures import reach as figures_reach
from pe.results import rows as results

PLACES = {"nope": "none", "rope": "queries and keys", "pope": "queries and keys",
          "learned": "embeddings"}  # fmt: skip


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[results.Row]:
    root = tmp_path_factory.mktemp("runs")
    for pe in ("learned", "rope", "nope", "pope"):
        book_records.write(root, pe, 0, study="made-up")
    return results.rows("made-up", runs.find(root, "made-up"))


def test_the_best_at_the_longer_text_stands_on_top(rows: list[results.Row]) -> None:
    found = figures_reach.ordered(rows, 8)
    assert [(row.label, near, far) for row, near, far in found] == [
        ("pope", 38.0, 41.0), ("nope", 44.0, 900.0), ("rope", 40.0, 2100.0),
        ("learned", 43.0, None),
    ]  # fmt: skip
    (axes,) = figures_reach.reach(rows, PLACES, far=8).axes
    assert [tick.get_text() for tick in axes.get_yticklabels()] == [
        "PoPE", "NoPE", "RoPE", "Learned",
    ]  # fmt: skip
    low, high = axes.get_ylim()
    assert low > high, "the first row is on top"


def test_a_row_that_ends_has_a_dot_and_no_diamond(rows: list[results.Row]) -> None:
    (axes,) = figures_reach.reach(rows, PLACES, far=8).axes
    at = {height: set() for height in range(4)}  # type: dict[int, set[str]]
    for line in axes.lines:
        at[int(line.get_ydata()[0])].add(str(line.get_marker()))  # type: ignore[index]
    assert at[0] == {"None", "D", "o"}
    assert at[3] == {"o"}


def test_each_line_has_the_colour_of_its_place(rows: list[results.Row]) -> None:
    (axes,) = figures_reach.reach(rows, PLACES, far=8).axes
    colours = {line.get_color() for line in axes.lines if line.get_ydata()[0] == 2}  # type: ignore[index]
    assert colours == {figures_reach.PLACES["queries and keys"]}


def test_the_same_records_give_the_same_bytes(rows: list[results.Row]) -> None:
    one, other = (figures.svg(figures_reach.reach(rows, PLACES, far=8)) for _ in range(2))
    assert one == other


def test_places_are_read_off_the_encodings() -> None:
    pytest.importorskip("sphinx")
    import book_measured

    where = {name: book_measured.acts(name) for name in (
        "nope", "sinusoidal", "rope", "yarn", "randomized", "pope", "alibi", "fox", "rope+alibi",
        "ssmax",
    )}  # fmt: skip
    assert where == {
        "nope": "none", "sinusoidal": "embeddings", "rope": "queries and keys",
        "yarn": "queries and keys", "randomized": "queries and keys", "pope": "queries and keys",
        "alibi": "logits", "fox": "logits", "rope+alibi": "logits", "ssmax": "none",
    }  # fmt: skip
