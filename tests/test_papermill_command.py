"""The command as it is typed: in a terminal, in a pipe, with mistakes, and when it is stopped."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from papermill import execute_notebook
from papermill_stub import (
    FAILS,
    REPORTS,
    SLEEPS,
    STUBBORN,
    environment,
    folder,
    papermill,
    run,
    write_stub,
)
from programs import Program

from pe.notebooks.papermill.engine import Busy
from pe.runs import RunBusy

TRAIN = Path(__file__).resolve().parent.parent / "notebooks" / "train.ipynb"


def in_terminal(words: list[str], runs: Path, cwd: Path) -> tuple[int, str]:
    """Run a command with stdin, stdout and stderr on a new terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(words[0], words, environment(runs, COLUMNS="60"))
    out = b""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other end is closed
            break
        if not piece:
            break
        out += piece
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out.decode()


def test_the_exact_command_in_a_terminal(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (tmp_path / "notebooks").mkdir()
    notebook = write_stub(tmp_path / "notebooks" / "train.ipynb", REPORTS)
    before = notebook.read_bytes()
    program = shutil.which("papermill", path=str(Path(sys.executable).parent))
    command = [program] if program else papermill()
    words = [*command, "notebooks/train.ipynb", "-p", "pe", "pope"]
    status, out = in_terminal(words, runs, tmp_path)
    assert status == 0, out
    assert folder(runs).name.startswith("pope-s0-")
    assert "pe-run:" not in out
    # drawn in place, not every step on a busy machine, then kept as a line
    assert re.search(r"\r\[5/5\] Training  step [1-4]/5\r", out), out
    assert "step 5/5\r\n" in out
    assert "Missing argument" not in out
    assert "encryption" not in out
    assert "Recorded: runs/local/pope-s0-" in out
    assert notebook.read_bytes() == before
    executed = nbformat.read(folder(runs) / "train.ipynb", as_version=4)
    display, printed = executed.cells[-1].outputs
    assert display.data["text/plain"] == "step 5/5", "only the last state is kept"
    assert printed.text.strip() == str(runs)
    assert executed.metadata.papermill.output_path.startswith("runs/local/pope-s0-")


def test_the_exact_command_in_a_pipe(tmp_path: Path) -> None:
    notebook, runs = write_stub(tmp_path / "nb.ipynb", REPORTS), tmp_path / "runs"
    before = notebook.read_bytes()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = forked("../nb.ipynb", "-p", "pe", "pope", runs=runs, cwd=elsewhere).end()
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert notebook.read_bytes() == before
    assert (folder(runs) / "train.ipynb").exists()
    assert list(elsewhere.iterdir()) == []
    lines = done.stderr.splitlines()
    assert "[5/5] Training  step 5/5" in map(str.rstrip, lines)
    assert "step 3/5" not in done.stderr, "a log gets a line every few seconds"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-p", "recipe", "dmeo"], "unknown recipe 'dmeo' (did you mean 'demo'?)"),
        (["out.ipynb", "-p", "pee", "pope"], "unknown parameter 'pee' (did you mean 'pe'?)"),
    ],
)
def test_a_mistake_stops_the_command_with_one_line(
    words: list[str], expected: str, tmp_path: Path
) -> None:
    done = run(TRAIN, *words, runs=tmp_path / "runs", cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert expected in line
    assert list(tmp_path.iterdir()) == [], "nothing may be written"


def test_a_failing_cell(tmp_path: Path) -> None:
    notebook, runs = write_stub(tmp_path / "nb.ipynb", FAILS), tmp_path / "runs"
    done = forked(notebook, "-p", "pe", "pope", runs=runs).end()
    assert done.returncode == 1
    assert "ValueError: no such luck" in done.stderr
    assert "papermill/execute.py" not in done.stderr, "papermill's own frames tell nothing"
    record = json.loads((folder(runs) / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("failed", "ValueError: no such luck")
    assert record["command"] == f"papermill {notebook} -p pe pope"
    kept = (folder(runs) / "train.ipynb").read_text()
    assert "An Exception was encountered at" in kept


def forked(*words: object, runs: Path, cwd: Path | None = None, **more: str) -> Program:
    """Papermill without its imports, by default in the folder above the runs."""
    where = {"cwd": cwd or runs.parent, "log": runs.with_name("papermill")}
    return Program("papermill", *words, environment=environment(runs, **more), **where)


def started(notebook: Path, runs: Path, **more: str) -> Program:
    """Papermill with its cell running."""
    process = forked(notebook, runs=runs, **more)
    deadline = time.monotonic() + 240
    while not list(runs.glob("*/*/begun")):
        assert process.running(), process.end()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return process


def test_sigterm_lets_the_cell_save_and_a_second_command_is_refused_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook, runs = write_stub(tmp_path / "nb.ipynb", SLEEPS), tmp_path / "runs"
    process = started(notebook, runs)
    before = {p: p.read_bytes() for p in folder(runs).iterdir() if p.is_file()}
    monkeypatch.setenv("PE_RUNS", str(runs))
    with pytest.raises(Busy) as second:  # of which papermill's command makes a line and a code
        execute_notebook(notebook, None, progress_bar=False)
    assert second.value.exit_code == RunBusy.EXIT_CODE
    second.value.show()
    (line,) = capsys.readouterr().err.splitlines()
    assert f"is being written by process {process.pid}" in line
    assert {p: p.read_bytes() for p in folder(runs).iterdir() if p.is_file()} == before
    process.send_signal(signal.SIGTERM)
    done = process.end(60)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert (folder(runs) / "saved").exists()
    record = json.loads((folder(runs) / "run.json").read_text())
    assert (record["status"], record["reason"]) == ("interrupted", "stopped by SIGTERM")
    assert "KeyboardInterrupt" in (folder(runs) / "train.ipynb").read_text()
    assert "the same command resumes" in done.stderr


def test_a_cell_that_does_not_end_in_time_is_killed(tmp_path: Path) -> None:
    notebook, runs = write_stub(tmp_path / "nb.ipynb", STUBBORN), tmp_path / "runs"
    process = started(notebook, runs, PE_GRACE_SECONDS="1")
    process.send_signal(signal.SIGINT)
    done = process.end(60)
    assert done.returncode == 1, done.stderr
    record = json.loads((folder(runs) / "run.json").read_text())
    assert record["status"] == "interrupted"
    assert "did not end in time" in record["reason"]
