"""The page on fine-tuned extensions holds before any run is recorded, and for all of them."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pe
from pe.study.plan import load_plan
from pe.study.planned import Planned

ROOT = Path(__file__).resolve().parent.parent
import book_plans  # noqa: E402
import book_records  # noqa: E402
from book_pictures import record_figures  # noqa: E402
from book_studies import Studies  # noqa: E402

from pe.results import finetuned, markdown  # noqa: E402

PAGE = (ROOT / "book" / "finetuned.md").read_text("utf-8")
PLAN = load_plan("extend")
RUNS = [planned for planned in PLAN if not planned.zero_shot]
LENGTHS = (1024, 2048, 4096, 8192, 16384)


def imitate(runs: Path, planned: Planned, place: int) -> None:
    """A made-up record of a planned run, of the shape of a dropped one's."""
    (like,) = (runs / "scaffold-seeds").glob("nope-s0-e54909be")
    target = runs / "extend" / planned.name
    shutil.copytree(like, target)
    record = json.loads((target / "run.json").read_text())
    record |= {
        "study": "extend", "run": planned.name, "pe": planned.recipe.pe,
        "recipe": planned.recipe.to_dict(), "config_hash": planned.recipe.config_hash(),
    }  # fmt: skip
    again = {"finished": None, "commit": None, "hardware": "x", "validation_loss": 3.4}
    record["parent"] |= {"study": "scaffold-seeds", "retrained": again}
    evaluation = json.loads((target / "evaluation.json").read_text())
    for part, shift in (
        (record["conversion"]["converted"], 0.1),
        (evaluation["perplexity"], -0.01 * place),
    ):
        for cell in part.values():
            cell["nll"] += shift
            cell["value"] = math.exp(cell["nll"])
            cell["window_nll"] = [nll + shift for nll in cell["window_nll"]]
    (target / "run.json").write_text(json.dumps(record))
    (target / "evaluation.json").write_text(json.dumps(evaluation))


def extend_without_training(runs: Path) -> None:
    """Cells of the zero-shot part but one, and a search, beside the RoPE run's record."""
    (rope,) = (runs / "scaffold-seeds").glob("rope-s0-*")
    (other,) = (runs / "scaffold").glob("rope-s0-*")
    record = json.loads((other / "extension.json").read_text())
    for factor in (2, 4, 8):
        cell = json.loads(json.dumps(record["cells"][f"yarn@{factor}"]))
        cell["pe"], cell["options"]["long_factor"] = "longrope", [1.0, float(factor)]
        record["cells"][f"longrope@{factor}"] = cell
    (rope / "extension.json").write_text(json.dumps(record))
    entry = {"generation": 0, "origin": "yarn", "nll": 3.0, "perplexity": 20.1, "factors": [1.0]}
    best = entry | {"origin": "mutation of yarn", "nll": 2.9, "perplexity": 18.2}
    settings = {
        "pe": "longrope", "factor": 4.0, "magnitude": "su", "population": 32, "seed": 0,
        "windows": 16, "length": 4096, "target_tokens": 256, "windows_found": 16, "data": "x",
    }  # fmt: skip
    search = {
        "schema": 1, "created": "2026-01-01T00:00:00+00:00", "hardware": "x",
        "code": {"commit": None, "dirty": None, "version": "0"},
        "seconds": 12.3, "settings": settings, "history": [entry, best], "best": best,
    }  # fmt: skip
    (rope / "longrope-4x.json").write_text(json.dumps(search))


def load(folder: Path, planned: list[Planned], *, extended: bool) -> Studies:
    for study in ("demo", "scaffold", "scaffold-seeds"):
        shutil.copytree(
            ROOT / "runs" / study, folder / study,
            ignore=shutil.ignore_patterns("checkpoint*", "*.svg", "*.ipynb", ".*"),
        )  # fmt: skip
    for path in (folder / "scaffold-seeds").glob("*/extension.json"):
        path.unlink()  # whatever is recorded by now
    for path in (folder / "scaffold-seeds").glob("*/longrope-*.json"):
        path.unlink()
    for place, one in enumerate(planned):
        imitate(folder, one, place)
    if extended:
        extend_without_training(folder)
    return Studies.load(folder, folder, "demo")


@pytest.fixture(scope="module")
def nothing(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return load(tmp_path_factory.mktemp("nothing"), [], extended=False)


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    return load(tmp_path_factory.mktemp("all"), RUNS, extended=True)


def directives(name: str) -> list[str]:
    return re.findall(rf"`{{3,}}\{{{name}\}} (\S+)", PAGE)


def test_every_part_that_waits_for_records_is_one_that_will_be_there(
    nothing: Studies, everything: Studies
) -> None:
    waits = directives("if-recorded")
    assert waits.count("extending") == 1
    assert book_plans.there(everything, "extending") == [], "a study of its own, not in this folder"
    waits.remove("extending")
    assert len(waits) == 7
    for text in waits:
        assert book_plans.there(nothing, text) == []
        assert book_plans.there(everything, text)
    for text, message in (
        ("extnd", "unknown study"), ("extend/ropee", "unknown row"),
        ("extend/rope.extention", "unknown part"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            book_plans.there(everything, text)


def test_the_pencil_counts_pairs_as_the_encoding_has_them() -> None:
    """The page says how many pairs of RoPE go all the way around in a window."""
    waves = 2 * math.pi / pe.encoding("rope", head_dim=64, num_heads=1).inv_freq
    around = [int((waves <= length).sum()) for length in (1024, 4096)]
    named = [int(n) for n in re.findall(r"\$(\d+)\$", PAGE)]
    slow = [len(waves) - count for count in around]
    assert named == [len(waves), *around, around[0], *slow]


def test_figures_are_drawn_from_the_runs_that_they_name(everything: Studies) -> None:
    figures = record_figures(everything)
    wanted = directives("picture")
    assert len(wanted) == 2
    assert all(draw().axes for name, (_, draw) in figures.items() if name.startswith("extend-"))
    for name in wanted:
        runs, draw = figures[name]
        assert len(runs) == (9 if name == "extend-fine-tuned" else 1)
        assert draw().axes
    panels = figures["extend-fine-tuned"][1]().axes
    assert len(panels) == 8
    for axes in panels:  # what a model that reads no more than its training length has
        (cut,) = (line for line in axes.lines if line.get_label() == "cut to 1,024 tokens")
        assert len(set(np.asarray(cut.get_ydata()))) == 1


@pytest.mark.parametrize("count", [1, 6])
def test_what_came_of_a_study_that_was_cut_short_can_be_drawn(tmp_path: Path, count: int) -> None:
    studies = load(tmp_path, RUNS[:count], extended=False)
    found = {k: v for k, v in record_figures(studies).items() if k.startswith("extend-")}
    assert {"extend-needle", "extend-training", "extend-fine-tuned"} <= set(found)
    for _, draw in found.values():
        assert draw().axes
    rows = finetuned.fine_tuned(list(studies.rows("extend").values()))
    assert len(finetuned.table(rows, {}).splitlines()) == 2 + 2 + 1 + 2 * (count - 1)


def test_no_figure_of_a_dropped_run_is_one_of_fine_tuning(nothing: Studies) -> None:
    assert not [name for name in record_figures(nothing) if name.endswith("fine-tuned")]


def test_the_table_is_the_three_records_of_each_run(everything: Studies) -> None:
    rows = finetuned.fine_tuned(list(everything.rows("extend").values()))
    assert [row.title for row in rows][:3] == ["RoPE (control)", "PI", "NTK"]
    lines = book_records.lines(finetuned.table(rows, {}))
    assert lines[0][2:] == [f"{n:,}" for n in LENGTHS]
    assert len(lines) == 1 + 2 + 1 + 2 * 8
    assert len(set(lines[2][2:])) == 1, "cut to the shortest length"
    run = rows[1].row.runs[0]
    wanted: dict[str, Any] = {
        "extended": run.read()["conversion"]["converted"],
        "and trained on": (run.evaluation() or {})["perplexity"],
    }
    for what, cells in wanted.items():
        line = next(x for x in lines[4:] if x[1] == what)
        assert float(line[2].replace(",", "")) == pytest.approx(cells["1024"]["value"], rel=0.01)


def test_a_perplexity_that_is_too_large_for_a_number_is_a_dash(everything: Studies) -> None:
    row = everything.rows("extend")["pi"]
    record = row.runs[0].read()
    cell = record["conversion"]["converted"]["2048"]
    before = dict(cell)
    cell |= {"value": None, "nll": 800.0, "reason": "the perplexity is too large for a number"}
    try:
        (tuned,) = finetuned.fine_tuned([row])
    finally:
        cell |= before
    assert tuned.extended[2048] is None


def test_methods_are_compared_with_the_control_window_by_window(everything: Studies) -> None:
    rows = everything.rows("extend")
    text = markdown.table(list(rows.values()), ["ppl"], base=rows["rope"], tokens=True)
    heads, *lines = book_records.lines(text)
    assert heads[2:] == [f"{n:,}" for n in LENGTHS]
    assert len(lines) == 8
    assert lines[0][2] == "**−1.0%<br>−1.0 to −1.0**"  # PI's losses are all 0.01 lower


def test_hidden_numbers_have_the_tokens_of_context_as_heads(everything: Studies) -> None:
    rows = list(everything.rows("extend").values())
    heads, first, *_ = book_records.lines(markdown.table(rows, ["needle"], tokens=True))
    assert heads[2] == "1,024"
    assert re.search(r"\d+%<br>\(\d+–\d+\)$", first[4])
    assert re.search(r"\d+%<br>\(\d+–\d+\)<br>cut: \d+%$", first[5])


def test_what_is_missing_is_named_once_something_is_there(
    nothing: Studies, everything: Studies
) -> None:
    unmeasured = book_plans.unmeasured_cells(nothing, PLAN)
    assert len(unmeasured) == 7 * 4 + 1
    words = book_plans.missing_runs("extend", PLAN, {}, unmeasured)
    assert words.startswith("None of the 9 planned runs is recorded yet.")
    assert "pe study extend" in words
    first = {"rope": everything.rows("extend")["rope"]}
    words = book_plans.missing_runs("extend", PLAN, first, unmeasured)
    assert "Of 9 planned runs 1 are recorded." in words
    assert "NTK with factors 2, 4, 8 and 16, PI with" in words
    assert ", Resonance, YaRN with" in words
    assert "RoPE, as PI from step 3,400: seed 0" in words
    assert "pe study extend" in words
    left = book_plans.unmeasured_cells(everything, PLAN)
    assert left == ["longrope@16"]
    words = book_plans.missing_runs("extend", PLAN, everything.rows("extend"), left)
    assert "All 9 runs of the study are recorded. 9 of them began with a model that was" in words
    assert "- measured without training: LongRoPE with factor 16\n" in words


def test_the_settings_are_those_of_the_plan() -> None:
    text = book_plans.settings("extend")
    assert "400 steps of 16 windows of 4,096 tokens, 26,214,400 in all" in text
    assert RUNS[0].recipe.start_from in text
    lines = dict(book_records.lines(book_plans.settings("scaffold")))
    steps = [part.partition(" steps")[0] for part in lines["trained for"].split("; or ")]
    assert steps == ["8,000", "3,000", "500"], "where runs differ, all ways are named"
    assert lines["starts from"].startswith("random weights; or `")


def test_a_search_shows_what_it_began_with_and_what_it_found(everything: Studies) -> None:
    (run,) = book_plans.there(everything, "scaffold-seeds/rope.searches")[:1]
    (_, line) = book_records.lines(finetuned.searches(run.searches))
    assert line == ["4", "2", "20.1", "18.2", "12"]
