"""What a notebook's cell shows of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from pe.runs import Run
from pe.runs.parameters import in_one_line

CELL = """
from pe.runs import Run, RunError
def fails():
    raise {error}
try:
    fails()
except Exception as error:
    {keep}
    raise
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InteractiveShell:
    config = Config(
        {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor"}}
    )
    shell = InteractiveShell(ipython_dir=str(tmp_path), config=config)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    in_one_line()
    return shell


@pytest.mark.parametrize("error", ["ValueError", "RunError", "OSError"])
def test_what_a_message_explains_is_one_line_that_names_the_file_of_its_traceback(
    error: str, shell: InteractiveShell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(tmp_path)
    cell = CELL.format(
        error=f"{error}('no text')", keep=f"Run({str(tmp_path)!r}).keep_traceback(error)"
    )
    assert type(shell.run_cell(cell).error_in_exec).__name__ == error
    (line,) = capsys.readouterr().out.splitlines()
    assert line == f"{error}: no text (traceback: {run.traceback})"
    assert "in fails" in run.traceback.read_text()


def test_the_traceback_of_a_line_can_be_asked_for(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(CELL.format(error="ValueError('no text')", keep="pass"))
    assert capsys.readouterr().out == "ValueError: no text (%tb shows the traceback)\n"
    shell.run_line_magic("tb", "")
    assert "in fails" in capsys.readouterr().out


def test_a_defect_keeps_its_traceback(
    shell: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    shell.run_cell(CELL.format(error="KeyError('field')", keep="pass"))
    assert "in fails" in capsys.readouterr().out
