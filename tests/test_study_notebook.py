"""``papermill notebooks/study.ipynb -p study NAME``: plan, live view, results, failures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from notebook_tools import shown
from papermill.exceptions import PapermillExecutionError
from study_tools import by_label, write

import pe
from pe.notebooks import study_page
from pe.notebooks.papermill.engine import Refused
from pe.notebooks.parameters import configure_study
from pe.study import load_plan

STUDY = Path(__file__).resolve().parents[1] / "notebooks" / "study.ipynb"


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


def outputs_of(nb: Any) -> list[Any]:
    return [o for cell in nb.cells for o in cell.get("outputs", [])]


def pages(nb: Any) -> str:
    return "\n".join(o.get("data", {}).get("text/markdown", "") for o in outputs_of(nb))


def test_the_notebook_carries_a_study_out_and_ends_with_what_failed(
    tmp_path: Path, own_runs: Path
) -> None:
    """The broken run has a file where its folder would be, and needs no kernel to fail."""
    after = {"pe": "rope", "start": {"run": "broken", "at": "1/2"}}
    study = write(tmp_path, {"rope": {"pe": "rope"}, "broken": {"pe": "nope"}, "after": after})
    plan = by_label(load_plan(study))
    in_the_way = plan["broken"].run().directory
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    given = {"study": study, "workers": 1, "retries": 0}
    expected = "2 of 3 runs failed: broken: .*cannot be written"
    with pytest.raises(PapermillExecutionError, match=expected):
        papermill.execute_notebook(STUDY, None, given, progress_bar=False)
    folder = own_runs / "small"
    nb = nbformat.read(folder / "study.ipynb", as_version=4)
    errors = [o for o in outputs_of(nb) if o.output_type == "error"]
    assert [error.ename for error in errors] == ["StudyFailed"]
    assert errors[0] in nb.cells[-1].outputs
    outputs = outputs_of(nb)
    assert not [o for o in outputs if o.output_type == "stream"], "no chatter on a page"
    (view,) = [o.data["text/plain"] for o in outputs if o.get("metadata", {}).get("pe_progress")]
    assert "1 of 3 runs done" in view
    assert "skipped" in view
    text = pages(nb)
    assert re.search(r"\| broken +\| +0 \| drawn weights +\| planned +\| +0 of 16 \|", text)
    assert "0 of 3 runs done; 0.0 M tokens" in text
    assert "| RoPE " in text
    assert "2 of 3 runs are not done" in text
    assert plan["rope"].done()
    trained = plan["rope"].run()
    for name in ("loss.svg", "perplexity.svg", "metrics.jsonl"):
        assert (trained.directory / name).stat().st_size > 0
    executed = nbformat.read(trained.directory / "train.ipynb", as_version=4)
    assert not [o for o in outputs_of(executed) if o.output_type in ("stream", "error")]
    assert "RoPE" in pages(executed)
    lines = [x for x in pages(executed).splitlines() if str(tmp_path / "corpus") not in x]
    assert not [line for line in lines if str(tmp_path) in line], "nothing about the machine"
    command = trained.read()["command"]
    assert command.startswith("papermill notebooks/train.ipynb -y")
    assert sorted(p.name for p in folder.iterdir() if p.is_file()) == [
        ".notebook.lock", in_the_way.name, "study.ipynb",
    ]  # fmt: skip


def test_a_dry_run_lists_and_runs_nothing(tmp_path: Path, own_runs: Path) -> None:
    text = shown(STUDY, study=write(tmp_path, {"rope": {"pe": "rope"}}), dry_run=1)
    assert re.search(r"\| rope +\| +0 \| drawn weights +\| planned +\| +0 of 16 \|", text)
    assert "No run of this study is done." in text
    assert not own_runs.exists()
    assert configure_study(study="scaffold", dry_run=True).notebook == "plan.ipynb"


def test_a_mistake_stops_the_notebook_before_a_kernel_starts(own_runs: Path) -> None:
    """In a command the engine's `Refused` is one line and exit code 2 (test_papermill_command)."""
    expected = r"^unknown study 'scafold' \(did you mean 'scaffold'\?\); choose from: "
    with pytest.raises(Refused, match=expected):
        papermill.execute_notebook(STUDY, None, {"study": "scafold"}, progress_bar=False)
    assert not own_runs.exists()


def test_parameters_that_fit_no_study_are_refused(tmp_path: Path) -> None:
    for given, message in (
        ({}, "study: name one"),
        ({"study": "scaffold", "mini": 2}, "mini: expected True or False, got 2"),
        ({"study": "scaffold", "address": "a:1", "workers": 2}, "leave one of the two out"),
        ({"study": str(tmp_path / "no.yaml")}, "no.yaml' does not exist"),
    ):
        with pytest.raises(ValueError, match=message):
            configure_study(**given)
    assert configure_study(study="scaffold", mini=1).name == "scaffold-mini"  # type: ignore[arg-type]


def test_results_of_branches_and_seeds_are_told_apart(tmp_path: Path, own_runs: Path) -> None:
    runs = {"rope": {"pe": "rope", "branches": ["1/2"]}}
    more = {"schedule": "wsd", "decay_steps": 2, "validate_every": 0}
    study = configure_study(study=write(tmp_path, runs, **more))
    for planned in study.plan:
        pe.evaluate(pe.train(planned.run(), quiet=True), quiet=True)
    text = study_page.outcome(study).data
    assert text.index("| RoPE  ") < text.index("| RoPE, 8 steps")  # as in the file
    assert "a branch" in study_page.plan(study).data
    assert study_page.end(None).data == "Nothing failed."
