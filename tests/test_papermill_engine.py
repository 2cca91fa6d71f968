"""The engine from Python, and its parts."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
import pytest
from papermill.engines import NBClientEngine, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill_stub import DIES, FAILS, REPORTS, folder, write_stub

from pe.notebooks.papermill import engine
from pe.notebooks.papermill.client import note
from pe.notebooks.papermill.engine import Refused
from pe.notebooks.papermill.entry import PeEngine
from pe.notebooks.parameters import configure, launch, parameters
from pe.recipes.named import RECIPES
from pe.runs import Run, RunBusy
from pe.runs.models import RunRecord
from pe.runs.parameters import PLANNED


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def test_the_engine_is_registered_and_is_the_default() -> None:
    assert papermill_engines.get_engine("pe") is PeEngine
    assert papermill_engines.get_engine(None) is PeEngine
    assert papermill_engines.get_engine("nbclient") is NBClientEngine


def test_the_engine_is_registered_when_it_is_imported_before_papermill() -> None:
    """As it is when papermill comes first, which it does in this file."""
    code = "import pe.notebooks.papermill.entry, papermill; "
    code += "from papermill.engines import papermill_engines as e; "
    code += "assert e.get_engine('pe') is e.get_engine(None)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_notebook_without_our_mark_is_left_to_papermill(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        NBClientEngine, "execute_managed_notebook", lambda manager, *a, **k: seen.append(manager)
    )
    notebook = write_stub(tmp_path / "nb.ipynb", FAILS, mark={})
    papermill.execute_notebook(notebook, tmp_path / "out.ipynb", progress_bar=False)
    assert len(seen) == 1
    assert (tmp_path / "out.ipynb").exists()
    assert not runs.exists()


def test_an_explicit_output_and_the_runs_folder_both_get_the_notebook(
    tmp_path: Path, runs: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", REPORTS)
    papermill.execute_notebook(notebook, tmp_path / "out.ipynb", {"pe": "pope"})
    written = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert written == nbformat.read(folder(runs) / "train.ipynb", as_version=4)
    assert written.cells[-1].outputs[0].data["text/plain"] == "step 5/5"
    assert "encryption" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [({"pee": "pope"}, "unknown parameter 'pee'"), ({"pe": "rpoe"}, "did you mean 'rope'")],
)
def test_python_callers_get_a_value_error_and_nothing_is_written(
    given: dict[str, Any], message: str, tmp_path: Path, runs: Path
) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", FAILS)
    with pytest.raises(ValueError, match=message):
        papermill.execute_notebook(notebook, tmp_path / "out.ipynb", given)
    assert list(tmp_path.iterdir()) == [notebook]


def test_a_dead_kernel_is_a_failed_cell(tmp_path: Path, runs: Path) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", DIES)
    with pytest.raises(PapermillExecutionError, match="the kernel died"):
        papermill.execute_notebook(notebook, None, {"pe": "pope"}, progress_bar=False)
    record = Run(folder(runs)).read()
    assert record["status"] == "failed"
    assert record["reason"].startswith("DeadKernelError: the kernel died while it ran this cell")
    kept = nbformat.read(folder(runs) / "train.ipynb", as_version=4)
    assert kept.cells[-1].outputs[-1].ename == "DeadKernelError"


@pytest.mark.parametrize("by", ["a trainer", "a notebook"])
def test_a_busy_folder_is_not_touched(by: str, tmp_path: Path, runs: Path) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", FAILS)
    run = configure(pe="pope", recipe="demo")
    run.fail("as it was")
    (run.directory / "train.ipynb").write_text("the first one's notebook")
    before = (run.directory / "run.json").read_bytes()
    given = {"pe": "pope", "recipe": "demo"}
    with run.lock() if by == "a trainer" else engine.hold(run), pytest.raises(RunBusy):
        papermill.execute_notebook(notebook, tmp_path / "out.ipynb", given)
    assert (run.directory / "run.json").read_bytes() == before
    assert (run.directory / "train.ipynb").read_text() == "the first one's notebook"
    assert not (tmp_path / "out.ipynb").exists()


def failed(
    run: Run,
    before: RunRecord | None,
    reason: str = "ValueError: x",
    stopped: signal.Signals | None = None,
) -> Any:
    engine._record_failure(run, before, reason, stopped)
    return run.read() if run.exists() else None


def test_what_the_trainer_recorded_is_kept(runs: Path) -> None:
    run = configure(recipe="demo")
    run.fail("NonFiniteLoss: step 7")
    assert failed(run, before=None)["reason"] == "NonFiniteLoss: step 7"
    # the same record from an earlier attempt says nothing about this one
    assert failed(run, before=run.record)["reason"] == "ValueError: x"
    run.fail("stopped after step 3 of 9", "interrupted", "SIGINT")
    record = failed(run, None, "stopped by SIGTERM", signal.SIGTERM)
    assert (record["reason"], record["signal"]) == ("stopped after step 3 of 9", "SIGTERM")
    run.fail("KeyboardInterrupt: ")
    assert failed(run, None, "stopped by SIGTERM", signal.SIGTERM)["status"] == "interrupted"


def test_a_run_that_was_complete_before_stays_complete(runs: Path) -> None:
    run = configure(recipe="demo")
    run.fail("")
    run.update(status="complete", reason=None)
    assert failed(run, before=run.record)["status"] == "complete"
    assert failed(run, before=None)["status"] == "failed", "it only just became complete"


def test_a_run_held_by_another_process_is_not_called_failed(tmp_path: Path, runs: Path) -> None:
    busy = "from pe.runs import RunBusy\nfrom pathlib import Path\nraise RunBusy(Path('x'), 'me')"
    notebook = write_stub(tmp_path / "nb.ipynb", busy)
    with pytest.raises(PapermillExecutionError):
        papermill.execute_notebook(notebook, tmp_path / "out.ipynb", {"recipe": "demo"})
    assert not configure(recipe="demo").exists()


def test_a_closed_terminal_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Closed())
    note("x")


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"steps": 30.0}, "steps", 30),
        ({"learning_rate": "1e-4"}, "learning_rate", 1e-4),  # YAML reads 1e-4 as text
        ({"learning_rate": 1}, "learning_rate", 1.0),
        ({"pe": "yarn", "pe_options": '{"factor": 8}'}, "pe_options", {"factor": 8}),
        ({"overrides": "{qk_norm: true}"}, "qk_norm", True),
        ({"overrides": None}, "qk_norm", False),
        ({"PAPERMILL_INPUT_PATH": "x.ipynb", "my_own": 3}, "steps", RECIPES["demo"].steps),
    ],
)
def test_values_are_accepted_in_every_form_papermill_gives(
    given: dict[str, Any], name: str, value: Any, runs: Path
) -> None:
    run = launch("train", {"recipe": "demo"} | given, also=["my_own"])
    assert isinstance(run, Run)
    assert getattr(run.recipe, name) == value


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": True}, "steps: expected a whole number, got True"),
        ({"steps": -1}, "steps: expected 0 or more, got -1"),
        ({"seed": -1}, "seed: expected 0 or more, got -1"),
        ({"learning_rate": float("nan")}, "learning_rate: expected a number"),
        ({"study": 7}, "study: expected text, got 7; .* write -r study 7"),
        ({"study": "../up"}, "study names a folder"),
        ({"weight_decay": 0.1}, "one of the overrides"),
        ({"stepz": 1}, r"unknown parameter 'stepz' \(did you mean 'steps'\?\)"),
        ({"overrides": {"steps": 3}}, "steps has a parameter of its own"),
        ({"overrides": {"hiden_size": 3}}, "did you mean 'hidden_size'"),
        ({"overrides": "hidden_size"}, "overrides: expected a dictionary"),
        ({"overrides": {"vocab_size": 300}}, "multiple of 8"),
        ({"overrides": {"evaluation_lengths": []}}, "evaluation_lengths: expected at least 1"),
        ({"recipe": "dmo"}, "did you mean 'demo'"),
        ({"corpus": "stdlb"}, "did you mean 'stdlib'"),
        ({"pe": "yarn", "pe_options": {"factr": 2}}, "did you mean 'factor'"),
        ({"steps": "x", "seed": "y"}, "seed: .*; steps: "),
    ],
)
def test_wrong_values_are_named(given: dict[str, Any], message: str, runs: Path) -> None:
    with pytest.raises(ValueError, match=message):
        configure(**({"recipe": "demo"} | given))


def test_what_is_not_given_is_as_the_recipe_says(runs: Path) -> None:
    run = configure(recipe="demo", steps=None, corpus=None, learning_rate=None)
    assert run.recipe == RECIPES["demo"]
    halved = configure(recipe="demo", learning_rate=run.recipe.learning_rate / 2).recipe
    assert halved.min_learning_rate == pytest.approx(run.recipe.min_learning_rate / 2)
    assert run.directory == runs / "local" / run.recipe.run_name()
    assert json.loads(json.dumps([p.default for p in parameters().values()]))


ANOTHER = """
from pe.runs import Folder
from pe.runs.parameters import launcher


@launcher()
def configure_another() -> Folder:  # pe's own would import torch
    return Folder("runs/local/another")


configure_another()
"""


def test_cells_that_lead_to_another_run_than_the_command_named_are_refused(
    tmp_path: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", ANOTHER)
    expected = "the command named .*pope-s0-.* lead to .*another"
    with pytest.raises(PapermillExecutionError, match=expected) as e:
        papermill.execute_notebook(notebook, None, {"pe": "pope"}, progress_bar=False)
    (line,) = e.value.traceback  # what the cell shows
    assert line.startswith("ValueError: the command named")
    assert Run(folder(runs)).record.status == "failed"
    run = configure(pe="pope")
    monkeypatch.setenv(PLANNED, engine._environment(run)[PLANNED])
    assert configure(pe="pope").directory == run.directory
    assert PLANNED not in os.environ, "later cells may configure what they like"


def test_cells_that_never_ask_for_the_run_are_refused(tmp_path: Path, runs: Path) -> None:
    notebook = write_stub(tmp_path / "nb.ipynb", "print('nothing')")
    expected = r"never asked for the run .*runs/local/pope-s0-.*: call configure of pe\.notebooks"
    with pytest.raises(Refused, match=expected):
        papermill.execute_notebook(notebook, None, {"pe": "pope"}, progress_bar=False)
    record = Run(folder(runs)).record
    assert record.status == "failed"
    assert "never asked for the run" in str(record.reason)
