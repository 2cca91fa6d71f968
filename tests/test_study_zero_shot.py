"""The zero-shot part of a study: one task, measured once, also where the weights are lost."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_tools import SMALL, by_label, lose_weights, run_in_this_process
from tiny_training import write_corpus

import pe
from pe.encodings import extension_methods
from pe.evaluation import extension
from pe.notebooks import study_page
from pe.runs import Run, RunError
from pe.study import Planned, load_plan, run_study, show
from pe.study.parents import with_retrained_parents
from pe.study.planned import StudyFolder
from pe.study.show import rows, text
from pe.study.worker import _retrain, carry_out_task
from pe.study.zero_shot import ZeroShot, carry_out

SEARCH = {"iterations": 1, "population": 4, "windows": 2}
PART: dict[str, Any] = {
    "run": "first/rope", "factors": [2, 4], "methods": ["pi", "resonance", "longrope"],
    "search": SEARCH,
}  # fmt: skip
CELLS = ["pi@2", "pi@4", "resonance@1", "longrope@2", "longrope@4"]


@pytest.fixture
def studies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two studies: `first` trains RoPE, `second` trains PI from it and extends it."""
    folder = tmp_path / "studies"
    folder.mkdir()
    monkeypatch.setattr("pe.study.reading.FOLDER", folder)
    corpus = write_corpus(tmp_path / "corpus")
    common = {"recipe": "demo", "set": SMALL | {"corpus": str(corpus), "steps": 4}}
    write(folder, "first", common | {"runs": {"rope": {"pe": "rope"}}})
    longer = {
        "pe": "pi", "pe_options": {"factor": 2.0}, "start": {"run": "first/rope", "at": "end"},
        "set": {"context_length": 32, "steps": 2, "warmup_steps": 0, "batch_size": 2},
    }  # fmt: skip
    write(folder, "second", common | {"runs": {"pi": longer}, "zero_shot": PART})
    return folder


def write(folder: Path, name: str, content: dict[str, Any]) -> None:
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def as_task(planned: Planned) -> dict[str, Any]:
    assert planned.zero_shot
    return {
        "directory": str(planned.run().directory), "recipe": planned.recipe.to_dict(),
        "study": planned.study, "notebook": False, "zero_shot": planned.zero_shot.to_dict(),
    }  # fmt: skip


def test_the_zero_shot_part_is_one_task_of_the_plan(studies: Path, own_runs: Path) -> None:
    (parent,), plan = load_plan("first"), by_label(load_plan("second"))
    assert list(plan) == ["zero-shot", "pi"]
    task = plan["zero-shot"]
    assert task.run().directory == parent.run().directory
    assert task.zero_shot is not None
    assert task.zero_shot.cells() == CELLS
    assert ZeroShot.model_validate(task.zero_shot.to_dict()) == task.zero_shot
    assert not task.done()
    lines = [line.split() for line in text(list(plan.values())).splitlines()]
    assert [line[-5:] for line in lines if line[:1] == ["zero-shot"]] == [
        ["0", "of", "5", "0.0", "M"],
    ]  # fmt: skip
    with pytest.raises(RunError, match="train it first"):
        run_study([task], workers=1, notebooks=False)


def test_a_run_of_the_same_study_is_trained_first_and_then_extended(
    studies: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_this_process(monkeypatch)
    content = yaml.safe_load((studies / "first.yaml").read_text())
    part = {"run": "rope", "factors": [2], "methods": ["pi", "yarn"]}
    write(studies, "first", content | {"seeds": [0, 1], "zero_shot": part})
    plan = load_plan("first")
    assert [(p.label, p.recipe.seed) for p in plan] == [
        ("rope", 0), ("zero-shot", 0), ("rope", 1), ("zero-shot", 1),
    ]  # fmt: skip
    listed = with_retrained_parents(plan)
    assert [p.parent for p in listed] == [None, plan[0].key, None, plan[2].key]
    assert show.memory_needed([plan[1]]) == "", "nothing is trained"
    run_study(plan[:2], workers=1, notebooks=False)
    extended = plan[0].run().part("extension")
    assert extended is not None
    assert set(extended["cells"]) == {"pi@2", "yarn@2"}
    assert all("retrained" not in cell for cell in extended["cells"].values())
    assert [p.done() for p in plan] == [True, True, False, False]


def test_names_of_cells_are_those_that_are_measured() -> None:
    wanted = ZeroShot(run="first/rope", factors=[2, 16])
    assert len(wanted.cells()) == len(set(wanted.cells()))
    assert {"yarn@2", "yarn@16", "abf@2", "dynamic_yarn@1", "resonance@1"} <= set(wanted.cells())
    assert tuple(wanted.methods) == tuple(extension_methods())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (
            {"run": "rope"},
            "zero_shot: starts from 'rope'; expected STUDY/RUN or one of: pi",
        ),
        ({"run": "first/pope"}, "starts from 'first/pope'; runs there .*: rope"),
        ({"factors": [1]}, r"zero_shot.factors\[0\]: expected more than 1, got 1"),
        ({"factors": [float("inf")]}, "expected a finite number or 'length', got inf"),
        ({"factors": []}, r"zero_shot.factors: expected at least 1, got \[\]"),
        ({"methods": ["yarm"]}, r"unknown method 'yarm' \(did you mean 'yarn'\?\)"),
        (
            {"search": {"populaton": 4}},
            r"zero_shot.search: unknown key 'populaton' \(did you mean 'population'\?\)",
        ),
        ({"search": {"iterations": "many"}}, "iterations: expected a whole number, got 'many'"),
        ({"factors": [2, 2]}, "factors: 2.0 is there twice"),
        ({"methods": ["pi", "pi"]}, "methods: 'pi' is there twice"),
        ({"factor": [2]}, r"unknown key 'factor' \(did you mean 'factors'\?\)"),
    ],
)
def test_a_part_that_cannot_be_is_refused(
    studies: Path, own_runs: Path, part: dict[str, Any], message: str
) -> None:
    content = yaml.safe_load((studies / "second.yaml").read_text())
    write(studies, "second", content | {"zero_shot": PART | part})
    with pytest.raises(ValueError, match=message):
        load_plan("second")


def test_lost_weights_are_trained_again_and_the_cells_say_so(
    studies: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,), plan = load_plan("first"), load_plan("second")
    pe.evaluate(pe.train(parent.run(), quiet=True), quiet=True)
    carry_out(parent.run(), ZeroShot(run="first/rope", factors=[2.0], methods=["pi"]))
    first = parent.run().part("extension")
    assert first is not None
    lose_weights(own_runs)
    record = (parent.run().directory / "run.json").read_bytes()
    listed = with_retrained_parents(plan)
    assert [p.label for p in listed] == ["rope, retrained", "zero-shot", "pi"]
    assert listed[1].parent == listed[0].key
    _retrain(listed[0].run())
    losses = [line for line in listed[0].run().metric_lines() if "validation_loss" in line]
    assert [line["step"] for line in losses] == [4]  # none on the way

    carry_out_task(as_task(plan[0]))
    assert plan[0].done()
    assert (parent.run().directory / "run.json").read_bytes() == record
    found = parent.run().part("extension")
    assert found is not None
    assert sorted(found["cells"]) == sorted(CELLS)
    assert found["cells"]["pi@2"] == first["cells"]["pi@2"]  # it was there
    assert "retrained" not in found["cells"]["pi@2"]
    second = listed[0].run().read()
    for name in CELLS[1:]:
        assert found["cells"][name]["retrained"]["finished"] == second["finished"]
        assert found["cells"][name]["perplexity"]["32"]["value"]
    for factor in (2, 4):
        path = parent.run().directory / f"longrope-{factor}x.json"
        best = json.loads(path.read_text())["best"]["factors"]
        assert found["cells"][f"longrope@{factor}"]["options"]["long_factor"] == best
    assert [row.state for row in rows(plan)] == ["done", "done", "planned"]
    assert [row.step for row in rows(plan)] == [5, 4, 0]


def test_what_is_recorded_is_not_measured_again(
    studies: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (parent,), task = load_plan("first"), load_plan("second")[0]
    run = parent.run()
    pe.train(run, quiet=True)
    wanted = task.zero_shot
    assert wanted is not None
    pe.extend(run, ["longrope"], [2.0], quiet=True)
    assert wanted.missing(run) == CELLS  # YaRN's factors are not searched ones
    carry_out(run, wanted)
    assert wanted.missing(run) == []
    before = run.part("extension")

    def never(*_: object, **__: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(extension, "convert", never)
    carry_out(run, wanted)
    assert run.part("extension") == before
    lost = Run(run.directory)
    assert extension.holder(lost) is lost


def test_the_page_of_a_study_counts_its_runs_and_shows_what_was_extended(
    studies: Path, own_runs: Path
) -> None:
    (parent,), plan = load_plan("first"), load_plan("second")
    pe.evaluate(pe.train(parent.run(), quiet=True), quiet=True)
    folder = StudyFolder(plan)
    assert re.search(r"\| zero-shot +\| +0 \|", study_page.plan(folder).data)
    assert "0 of 2 runs done" in study_page.plan(folder).data
    assert study_page.outcome(folder).data == "No run of this study is done."
    assert plan[0].zero_shot
    carry_out(parent.run(), plan[0].zero_shot)
    shown = study_page.outcome(folder).data
    assert "without training" in shown
    assert re.search(r"\| LongRoPE +\| +4 \|", shown)
    assert "1 of 1 runs are not done" in shown


def test_a_run_with_searched_factors_waits_for_the_search_and_trains_with_what_it_found(
    studies: Path, own_runs: Path
) -> None:
    (parent,) = load_plan("first")
    content = yaml.safe_load((studies / "second.yaml").read_text())
    content["runs"]["pi"] |= {
        "pe": "longrope", "pe_options": {"factor": 2.0, "long_factor": "searched"},
    }  # fmt: skip
    write(studies, "second", content)
    task, run = load_plan("second", check=True)
    assert (task.label, run.parent) == ("zero-shot", task.key)
    pe.train(parent.run(), quiet=True)
    with pytest.raises(RunError, match=r"has no longrope-2x.json; search first"):
        pe.train(run.run(), quiet=True)
    assert task.zero_shot
    part = ZeroShot.model_validate(PART | {"factors": ["length"], "methods": ["longrope"]})
    carry_out(parent.run(), part)
    assert part.missing(parent.run()) == []
    best = json.loads((parent.run().directory / "longrope-2x.json").read_text())["best"]["factors"]
    record = parent.run().part("extension")
    assert record is not None
    assert record["cells"]["longrope@length"]["by_length"]["32"]["long_factor"] == best
    pe.evaluate(pe.train(run.run(), quiet=True), quiet=True)
    config = json.loads((run.run().checkpoint / "config.json").read_text())
    assert config["pe_options"]["long_factor"] == best
    lose_weights(own_runs)
    planned = [p for p in with_retrained_parents(load_plan("second")) if p.label == "pi"]
    assert planned[0].done()

    write(studies, "second", content | {"zero_shot": PART | {"factors": [4]}})
    with pytest.raises(ValueError, match="runs.pi: long_factor: searched for by no zero_shot"):
        load_plan("second")
