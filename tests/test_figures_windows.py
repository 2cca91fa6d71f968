"""The picture of window sizes: right with few records and with many, with one seed and with two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import book_records
import pytest

from pe.figures.windows import by_window, schedule_of
from pe.results import beyond
from pe.results import rows as results
from pe.results.measure import beside_cutting

LENGTHS = (256, 512, 1024, 2048, 4096)


def row(root: Path, name: str, pe: str, *seeds: int, far: float = 1.0) -> results.Row:
    """A row whose perplexity is 20 at the training length and ``far`` times that beyond it."""
    runs = []
    for seed in seeds:
        run = book_records.write(root, name, seed, study="made-up")
        run.write(run.read() | {"pe": pe})
        evaluation = book_records.evaluation("rope")
        cell = evaluation["perplexity"]["256"]
        cells: dict[str, Any] = {}
        hits: dict[str, Any] = {}
        for length in LENGTHS:
            value = (20.0 + seed) * (1.0 if length == 256 else far)
            windows = [cell["nll"] + 0.1 * (far - 1) * i * (length > 256) for i in (9, 10, 11)]
            cells[str(length)] = cell | {"value": value, "window_nll": windows}
            hits[str(length)] = {"prompts": "1" * 20 if length == 256 else "10" * 10}
            hits[str(length)] |= {"reason": None, "numbers": 0.5, "digits": 0.5, "controls": None}
        needles = {"count": 20, "seed": 20_240_404, "digits": 7, "tasks": {"multikey": hits}}
        run.write_evaluation(
            evaluation | {"perplexity": cells, "lengths": list(LENGTHS), "needles": needles}
        )
        runs.append(run)
    return results.Row(name, name, pe, tuple(runs))


def test_a_schedule_is_read_off_the_spec(tmp_path: Path) -> None:
    assert schedule_of(row(tmp_path, "a", "3*(rope+window:64), nope", 0)) == (64, "nope")
    assert schedule_of(row(tmp_path, "b", "3*rope, nope", 0)) == (None, "nope")
    assert schedule_of(row(tmp_path, "c", "rope", 0)) == (None, "rope")


def test_one_record_is_a_picture_and_so_are_many_with_more_seeds(tmp_path: Path) -> None:
    small = row(tmp_path, "nope-64", "3*(rope+window:64), nope", 0)
    figure = by_window([small])
    assert len(figure.axes) == 6
    assert [text.get_text() for text in figure.axes[-1].get_xticklabels()] == ["64", "none"]

    two = row(tmp_path, "nope-256", "3*(rope+window:256), nope", 0, 1)
    full = row(tmp_path, "nope-full", "3*rope, nope", 0, far=50.0)
    plain, best = row(tmp_path, "rope", "rope", 0, 1), row(tmp_path, "best", "alibi", 0)
    figure = by_window([full, two, small, plain], plain, best)
    first, second, *_, found = figure.axes
    joined = [line for line in first.get_lines() if len(line.get_xdata()) == 3]  # type: ignore[arg-type]
    assert [list(line.get_ydata()) for line in joined] == [[20.0, 20.0, 20.0]]  # type: ignore[arg-type]
    alone = [line for line in first.get_lines() if line.get_markerfacecolor() == "none"]
    assert [list(line.get_ydata()) for line in alone] == [[21.0], [21.0]]  # type: ignore[arg-type]
    above = [line for line in second.get_lines() if line.get_marker() == "^"]
    assert len(above) == 1, "a value above the panel is a mark at its top"
    legend = {text.get_text() for text in figure.legends[0].get_texts()}
    assert legend == {
        "NoPE in the layers that see everything", "RoPE in the layers that see everything",
        "rope, cut to the training length", "best",
    }  # fmt: skip
    assert found.get_ylim() == pytest.approx((-0.05, 1.05))


def test_without_a_seed_in_common_nothing_is_joined(tmp_path: Path) -> None:
    one = row(tmp_path, "nope-64", "3*(rope+window:64), nope", 1)
    other = row(tmp_path, "nope-256", "3*(rope+window:256), nope", 0)
    figure = by_window([one, other], other)
    assert all(len(line.get_xdata()) == 1 for line in figure.axes[0].get_lines())  # type: ignore[arg-type]


def test_a_run_is_held_against_itself_with_its_texts_cut(tmp_path: Path) -> None:
    level = row(tmp_path, "level", "rope", 0)
    assert beside_cutting(level, "ppl@4x") == "undecided"
    assert beside_cutting(level, "ppl@1x") == "", "nothing is cut there"
    assert beside_cutting(level, "passkey@4x") == "", "not asked"
    assert beside_cutting(row(tmp_path, "up", "rope", 0, far=2.0), "ppl@4x") == "worse"
    assert beside_cutting(row(tmp_path, "down", "rope", 0, far=0.5), "ppl@4x") == "better"
    assert beside_cutting(level, "multikey@16x") == "better"  # 50% beside the last sixteenth
    low, high = row(tmp_path, "low", "rope", 0, far=0.5), row(tmp_path, "high", "rope", 1, far=2.0)
    mixed = results.Row("mixed", "mixed", "rope", (*low.runs, *high.runs))
    assert beside_cutting(mixed, "ppl@4x") == "better (0), worse (1)"


def test_the_table_of_how_far_a_row_beats_its_cut_texts_counts_the_worst_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    better = {  # by row and seed, the multiples at which it finds more
        ("steady", 0): "2 4 8 16", ("steady", 1): "2 4", ("gap", 0): "2 8 16", ("none", 0): "",
    }  # fmt: skip
    worse = {("gap", 0): "4", ("none", 0): "2"}

    def ahead(one: results.Row, quantity: str) -> int:
        where = quantity.partition("@")[2].removesuffix("x")
        key = one.label, one.seeds[0]
        return (where in better[key].split()) - (where in worse.get(key, "").split())

    monkeypatch.setattr(beyond, "ahead_of_cut", ahead)
    rows = [row(tmp_path, name, "rope", *seeds, far=0.5)
            for name, seeds in (("none", [0]), ("gap", [0]), ("steady", [0, 1]))]  # fmt: skip
    assert beyond.farthest(rows[1], "multikey") == 2, "nothing counts beyond a loss"
    better["steady", 1] = "4"  # and nothing is shown at 2
    assert beyond.farthest(rows[2].of([1]), "multikey") == 4
    lines = book_records.lines(beyond.beyond_table(rows, {"steady-s1": "page"}))[1:]
    assert [line[0] for line in lines] == ["steady", "gap", "none"]
    assert lines[0][2:5] == ["16×, 4×", "16×, 4×", "50%"], "one number where seeds agree"
    assert lines[0][6:] == ["20.0, 21.0", "10.0, 10.5"]
    assert lines[2][2:4] == ["–", "–"]
