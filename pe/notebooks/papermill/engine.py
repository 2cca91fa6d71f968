"""Execute one of our notebooks: check, lock, run, record (for `pe.notebooks.papermill.entry`)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import click
import nbformat
from nbclient.exceptions import CellExecutionError, DeadKernelError
from papermill.engines import NotebookExecutionManager
from papermill.log import logger

from pe._files import write_atomically
from pe.notebooks.papermill import document
from pe.notebooks.papermill.client import Client, note
from pe.notebooks.parameters import LAUNCHERS, launch
from pe.runs import Folder, Run, RunBusy, RunError
from pe.runs.models import RunRecord, Status
from pe.runs.parameters import PLANNED

LOCK = ".notebook.lock"


class _Brief(click.ClickException):
    """Ends papermill's command with a line per mistake; Python callers get the error."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Show the error; click calls this."""
        for line in self.message.splitlines():
            print(f"pe: {line}", file=file or sys.stderr)


class Refused(_Brief, ValueError):
    """The notebook's parameters describe no run: the message names what is wrong."""

    exit_code = 2


class Busy(RunBusy, _Brief):
    """Another process is writing the run's folder."""

    exit_code = RunBusy.EXIT_CODE

    def __init__(self, busy: RunBusy) -> None:
        super().__init__(busy.directory, busy.holder)
        click.ClickException.__init__(self, str(busy))


def plan(notebook: Any) -> Folder:
    """Return the run that ``notebook`` describes, or the study.

    Raises:
        Refused: a name or value that is not right.
    """
    kind = document.kind(notebook)
    if kind not in LAUNCHERS:
        raise Refused(f"this version of pe knows no notebook of the kind {kind!r}")
    try:
        return launch(kind, document.parameters(notebook), document.declared(notebook))
    except ValueError as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def hold(run: Folder) -> Iterator[None]:
    """Lock the run's folder for a notebook, from before the first write to after the last.

    The trainer locks the folder in the kernel's process while it trains (`pe.runs.Folder.lock`).
    This second lock covers the whole time that papermill runs.

    Raises:
        Busy: a trainer or another notebook has the folder; nothing in it was touched.
        Refused: it cannot be written.
    """
    with contextlib.ExitStack() as stack:
        try:
            training = run.busy()
            if training:
                raise training
            stack.enter_context(run.lock(LOCK))
        except RunBusy as error:
            raise Busy(error) from None
        except RunError as error:
            raise Refused(str(error)) from error
        yield


class Manager(NotebookExecutionManager):
    """papermill's manager, which also writes the notebook into the run's folder.

    It does so for any output path (none, ``-``, another folder), and also when a cell fails.
    """

    failure: CellExecutionError | None = None
    """The failure of the first cell that failed."""

    def __init__(self, nb: Any, copy: Path, **options: Any) -> None:
        super().__init__(nb, progress_bar=False, **options)
        self.copy = copy

    def save(self, **changes: Any) -> None:
        """Write the notebook to papermill's output path and to the run's folder."""
        super().save(**changes)
        write_atomically(self.copy, nbformat.writes(self.nb))

    def cell_exception(self, cell: Any, cell_index: int | None = None, **options: Any) -> None:
        """Keep the failure for the record."""
        super().cell_exception(cell, cell_index, **options)
        self.failure = options["exception"]


def execute(
    nb: Any,
    kernel_name: str,
    output_path: str | None = None,
    progress_bar: bool | dict[str, Any] | None = True,
    log_output: bool = False,
    autosave_cell_every: int = 30,
    **options: Any,
) -> Any:
    """Execute ``nb`` as papermill would, and record how it went. Returns the executed notebook.

    Raises:
        Refused: a parameter is wrong; nothing has been started or written.
        Busy: another process is making this run; its files are untouched.
        KeyboardInterrupt, SystemExit: a signal ended the run; the notebook is written.
    """
    run = plan(nb)
    with hold(run):
        before = run.record if isinstance(run, Run) and run.exists() else None
        quiet = progress_bar is False
        copy = run.directory / run.notebook
        document.output.path = copy
        if output_path == document.OUTPUT:
            output_path, nb.metadata.papermill["output_path"] = None, _shown(copy)
        manager = Manager(
            nb, copy, output_path=output_path, log_output=log_output,
            autosave_cell_every=autosave_cell_every,
        )  # fmt: skip
        for name in (
            "input_path",
            "timeout",
            "startup_timeout",
        ):  # papermill calls the timeouts otherwise
            options.pop(name, None)
        client = Client(
            manager, quiet, kernel_name=kernel_name, log=logger, log_output=log_output,
            startup_timeout=options.pop("start_timeout", 60),
            timeout=options.pop("execution_timeout", None), **options,
        )  # fmt: skip
        manager.notebook_start()
        reason = ""
        try:
            with client.stoppable():
                client.execute(env=_environment(run))
            if client.ignored:
                kind = document.kind(nb)
                assert kind is not None  # or `plan` would have refused the notebook
                raise Refused(
                    f"the cells of this notebook never asked for the run that the command named "
                    f"({_shown(run.directory)}): call {LAUNCHERS[kind].__name__} of "
                    "pe.notebooks.parameters in them, as the notebooks of this package do"
                )
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}"
            if manager.failure is None or not isinstance(error, DeadKernelError):
                raise  # if a kernel died in a cell, the output of the cell says so
        finally:
            manager.notebook_complete()
            failure = manager.failure
            if failure is not None:
                reason = f"{failure.ename}: {failure.evalue}" if failure.evalue else failure.ename
            stopped = client.stopped_by if reason else None
            if stopped and not client.killed:
                reason = f"stopped by {stopped.name}"
            busy = failure is not None and failure.ename == RunBusy.__name__
            # The record of a busy folder belongs to the process that holds it.
            if reason and isinstance(run, Run) and not busy:
                _record_failure(run, before, " ".join(reason.split()), stopped)
    if stopped:
        note(f"stopped by {stopped.name}; the same command resumes. Record: {_shown(copy.parent)}")
        if stopped == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + stopped)
    if not quiet:
        note(f"{'Failed' if reason else 'Recorded'}: {_shown(copy.parent)}")
    return manager.nb


def _environment(run: Folder) -> dict[str, str]:
    """Return the kernel's environment: the folders of this process, and libraries kept quiet."""
    quiet = {
        "TRANSFORMERS_VERBOSITY": "error",
        "ACCELERATE_LOG_LEVEL": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    folders = {PLANNED: str(run.directory), "PE_RUNS": str(run.records)}
    return quiet | os.environ | folders


def _record_failure(
    run: Run, before: RunRecord | None, reason: str, stopped: signal.Signals | None
) -> None:
    """Write into run.json that the run failed.

    Nothing is written if the trainer has done so, or if the run was complete before: then only the
    display of its results failed.
    """
    if before is not None and before.status == "complete":
        return
    wanted: Status = "interrupted" if stopped else "failed"
    name = stopped.name if stopped else None
    try:
        now = run.record if run.exists() else None
        if now is None or now == before or now.status not in (wanted, "interrupted"):
            run.fail(reason, wanted, name)
        elif name:  # the kernel always gets SIGINT; the record names the signal that we got
            run.update(signal=name)
    except (ValueError, OSError) as error:
        note(f"pe: the failure could not be recorded: {error}")


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
