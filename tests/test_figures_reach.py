"""The picture of all encodings of a budget: who is on top, what a row without a far value shows."""

from __future__ import annotations

from pathlib import Path

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


def test_further_seeds_share_the_cells_and_do_not_move_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pe, seed in (("rope", 0), ("nope", 0), ("nope", 1)):
        book_records.write(tmp_path, pe, seed, study="made-up")
    rows = results.rows("made-up", runs.find(tmp_path, "made-up"))
    shares = {0: [0.75, 0.5], 1: [1.0, 0.25]}
    monkeypatch.setattr(figures_reach, "_found", lambda row, names: shares[row.seeds[0]])
    monkeypatch.setattr(figures_reach, "cut", lambda row, quantity: 0.1)
    lines, cells = figures_reach.reach(rows, PLACES, far=8).axes
    written = {
        (round(t.get_position()[0], 2), t.get_position()[1]): t.get_text() for t in cells.texts
    }
    assert written[-0.25, 0] + written[0.25, 0] == "75100", "both seeds in one cell"
    assert written[0.75, 0] + written[1.25, 0] == "5025"
    assert written[0, 1] + written[1, 1] == "7550"
    heights = [line.get_ydata()[0] for line in lines.lines if line.get_marker() == "o"]  # type: ignore[index]
    assert sorted(heights) == [0, 0.28, 1]


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
