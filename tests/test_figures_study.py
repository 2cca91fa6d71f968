"""Figures of the committed study: what each shows, that its bytes are stable and its inks read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from study_rows import row

from pe import figures, runs
from pe.figures import extension as figures_extension
from pe.figures import retrieval as figures_retrieval
from pe.figures import study as figures_study
from pe.results import quantities
from pe.results import rows as results
from pe.results.extensions import extended, missing, table, trained, value
from pe.results.measure import cut

ROOT = Path(__file__).resolve().parent.parent
ROWS = results.rows("scaffold", runs.find(ROOT / "runs", "scaffold"))
BY_LABEL = {row.label: row for row in ROWS}
ROPE = runs.Run(ROOT / "runs" / "scaffold" / BY_LABEL["rope"].runs[0].name)
RECORD = ROPE.part("extension") or {}
BASE = trained(ROPE)

DRAW: dict[str, Callable[[], Figure]] = {
    "perplexity": lambda: figures_study.perplexity(ROWS),
    "training": lambda: figures_study.training(ROWS),
    "by_position": lambda: figures_study.by_position(ROWS),
    "needle": lambda: figures_retrieval.retrieval(ROWS, "needle"),
    "by_length": lambda: figures_extension.by_length(RECORD, 1024, BASE),
}


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return {name: figures.svg(draw()) for name, draw in DRAW.items()}


def words(text: str) -> set[str]:
    found = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
    return {"".join(element.itertext()).strip() for element in found}


@pytest.mark.parametrize("name", ["needle", "by_length"])
def test_the_same_records_give_the_same_bytes(name: str, drawn: dict[str, str]) -> None:
    assert figures.svg(DRAW[name]()) == drawn[name]


def test_figures_are_of_a_modest_size(drawn: dict[str, str]) -> None:
    assert max(len(text) for text in drawn.values()) < 200_000


@pytest.mark.parametrize("name", DRAW)
def test_no_ink_is_lost_on_a_dark_page(name: str, drawn: dict[str, str]) -> None:
    dark = re.sub(r'(href|url|id)[=(]"?#?\w+', "", figures.darken(drawn[name]))
    lines = set(re.findall(r"#[0-9a-fA-F]{6}\b", dark))
    assert not lines & {"#000000", "#ffffff", figures.INK, figures.FAINT}


def test_a_panel_holds_a_baseline_its_heirs_and_nope_in_grey() -> None:
    found = figures_study.families(ROWS)
    assert [title for title, _, _ in found] == ["RoPE", "YaRN", "PoPE"]
    for title, strong, grey in found:
        assert [row.title.partition(",")[0] for row in strong] == [title] * 3
        assert [row.label for row in grey] == ["nope"]
    assert figures_study.families([BY_LABEL["nope"], BY_LABEL["rope"]])[0][2] == []


def test_converted_runs_begin_where_the_parent_was() -> None:
    axes = figures_study.training(ROWS).axes[0]
    blue = figures.colour("rope")
    marked = [
        np.asarray(line.get_xdata(), dtype=float)
        for line in axes.lines
        if to_hex(line.get_color()) == blue and line.get_marker() not in ("None", "")
    ]
    assert [(x[0], x[-1]) for x in marked] == [(500, 8000), (5000, 8000), (7500, 8000)]


def test_heat_maps_show_the_recorded_shares() -> None:
    names = ["1x", "2x", "4x"]
    depths, shares = figures_retrieval.shares(BY_LABEL["pope"], "needle", names)
    counts = quantities.answers(BY_LABEL["pope"].runs[0], "needle@2x")
    assert counts is not None
    assert counts.right is not None
    assert shares.shape == (len(depths), 3)
    assert (shares[:, 1] * 10).round().astype(int).tolist() == list(counts.right)
    figure = figures_retrieval.retrieval(ROWS, "needle")
    assert len(figure.axes) == len(ROWS) + 1  # and the bar
    low, high = figure.axes[0].get_ylim()
    assert low > high  # the beginning of the text is at the top
    assert figures_retrieval.retrieval([], "needle").axes == []
    for count in (1, 6, 9):  # grids with panels that nothing is in
        axes = figures_retrieval.retrieval(ROWS[:count], "needle").axes
        assert len(axes) == count + 1  # and the scale


def test_a_length_without_a_value_is_not_shown_as_nothing_found(tmp_path: Path) -> None:
    one = row(tmp_path, "learned")
    run = runs.Run(tmp_path / "made-up" / one.runs[0].name)
    evaluation = run.evaluation() or {}
    none = dict.fromkeys(("exact", "greedy", "digits", "controls")) | {"reason": "no value"}
    evaluation["retrieval"]["tasks"]["needle"]["512"] = none
    run.write_evaluation(evaluation)
    axes, *_ = figures_retrieval.retrieval([one], "needle").axes
    assert [(text.get_position()[0], text.get_text()) for text in axes.texts][:1] == [(1, "–")]


def test_retrieval_by_length_has_cut_lines_and_a_colour_for_each_task() -> None:
    tasks = ["passkey", "multikey", "multivalue", "multiquery"]
    by_label = {row.label: row for row in results.rows("every", runs.find(ROOT / "runs", "every"))}
    rope = by_label["rope"].of([0])
    (axes,) = figures_retrieval.by_length(rope, tasks).axes
    wholes = [line for line in axes.lines if line.get_label() == "_cut"]
    assert len({to_hex(line.get_color()) for line in wholes}) == len(tasks)
    names = [f"passkey@{name}" for name in quantities.multiples(rope.runs)]
    expected = [np.nan if (x := cut(rope, name)) is None else x for name in names]
    assert np.array_equal(np.asarray(wholes[0].get_ydata()), expected, equal_nan=True)


def test_a_temperature_is_in_the_legend_only_where_one_was_fitted() -> None:
    every = results.rows("every", runs.find(ROOT / "runs", "every"))[:3]
    assert "with a fitted temperature" not in figures.svg(figures_study.perplexity(every))


def test_every_method_is_on_the_extension_curves(drawn: dict[str, str]) -> None:
    assert {"PI", "NTK", "Dynamic NTK", "YaRN", "Llama 3"} <= words(drawn["by_length"])
    assert "YaRN + Resonance" in words(drawn["by_length"])
    assert "factor = length" in words(drawn["by_length"])


def test_the_extension_table_is_the_record() -> None:
    cells = extended(RECORD, 1024)
    assert [c.factor for c in cells if c.pe == "yarn"] == [2, 4, 8, 16]
    found = value(RECORD, 1024, "yarn@4", 4)
    assert found == RECORD["cells"]["yarn@4"]["perplexity"]["4096"]["value"]
    lines = table(ROPE, RECORD).splitlines()
    assert len(lines) == 4 + len(RECORD["cells"])
    assert len(set(lines[3].replace("|", " ").split()[6:])) == 1, "cut to the training length"
    assert "**" not in "".join(lines), "one seed ranks nothing"
    with pytest.raises(ValueError, match=r"yarn@4"):
        value(RECORD, 1024, "yarn@5", 4)
    with pytest.raises(ValueError, match="not evaluated"):
        value(RECORD, 1024, "yarn@4", 32)
    assert "yarn" not in missing(RECORD)
    assert missing({"cells": {}})[0] == "dynamic_ntk"
