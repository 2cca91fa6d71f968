"""`make demo` skips what is recorded and only that."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from book_records import evaluation, record

import pe

ROOT = Path(__file__).resolve().parent.parent


TOOL = str(ROOT / "tools/unrecorded.py")
finished = runpy.run_path(TOOL)["finished"]


def unrecorded(*names: str) -> list[str]:
    return [name for name in names if not finished(name)]


def test_only_finished_runs_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    names = ("nope", "rope", "yarn", "pope")
    monkeypatch.setattr(sys, "argv", [TOOL, *names])
    runpy.run_path(TOOL, run_name="__main__")
    assert capsys.readouterr().out.split() == list(names)

    for name in names:
        run = pe.configure(pe=name, recipe="demo")
        recipe = run.recipe
        run.directory.mkdir(parents=True)
        run.write(
            record("local", name, 0)
            | {"run": run.name, "recipe": recipe.to_dict(), "config_hash": recipe.config_hash()}
        )
        run.write_evaluation(evaluation(name) | {"lengths": sorted(recipe.evaluation_lengths)})
        (run.directory / "train.ipynb").touch()
    assert unrecorded(*names) == []

    runs = {name: pe.configure(pe=name, recipe="demo") for name in names}
    runs["rope"].update(status="interrupted")
    (runs["yarn"].directory / "evaluation.json").unlink()
    (runs["pope"].directory / "run.json").write_text("{")
    assert unrecorded(*names) == ["rope", "yarn", "pope"]
