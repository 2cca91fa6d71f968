"""Execute one of our notebooks: check, lock, run, record (for `pe.notebooks.papermill.entry`)."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import click
import nbformat
from nbclient.exceptions import DeadKernelError
from papermill.engines import NotebookExecutionManager
from papermill.log import logger

from pe.notebooks.papermill import command_line, document
from pe.notebooks.papermill.client import Client
from pe.notebooks.papermill.terminal import ProgressLine
from pe.notebooks.parameters import LAUNCHERS, PLANNED, launch
from pe.runs import Folder, Run, RunBusy, RunError, write_atomically
from pe.runs.models import RunRecord, Status

LOCK = ".notebook.lock"


class _OneLine(click.ClickException):
    """Ends papermill's command with one line; callers of its Python function get the error."""

    def show(self, file: IO[Any] | None = None) -> None:
        """Called by click."""
        print(f"pe: {' '.join(self.message.split())}", file=file or sys.stderr)


class Refused(_OneLine, ValueError):
    """The notebook's parameters describe no run: the message names what is wrong."""

    exit_code = 2


class Busy(RunBusy, _OneLine):
    """Another process is writing the run's folder."""

    exit_code = RunBusy.EXIT_CODE

    def __init__(self, busy: RunBusy) -> None:
        super().__init__(busy.directory, busy.holder)
        click.ClickException.__init__(self, str(busy))


def plan(notebook: Mapping[str, Any]) -> Folder:
    """The run that ``notebook`` describes, or the study.

    Its parameters are the defaults of its cell, overridden by those that papermill stored in it:
    what the kernel will see.

    Raises:
        Refused: a name or value that is not right.
    """
    kind = document.kind(notebook)
    if kind not in LAUNCHERS:
        raise Refused(f"this version of pe knows no notebook of the kind {kind!r}")
    values = document.defaults(notebook) | document.stored(notebook)
    try:
        return launch(kind, values, document.declared(notebook))
    except ValueError as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def hold(run: Folder) -> Iterator[None]:
    """Hold the run's folder for a notebook, from before the first write to after the last.

    The trainer locks the folder while it trains, in the kernel's process (`pe.runs.Folder.lock`).
    This second lock covers the rest of papermill's life.

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
    """papermill's manager, which also keeps the notebook in the run's folder.

    Whatever the output path is (none, ``-``, another folder), and also when a cell fails.
    """

    def __init__(self, nb: Any, copy: Path, **options: Any) -> None:
        super().__init__(nb, progress_bar=False, **options)
        self.copy = copy

    def save(self, **changes: Any) -> None:
        """Write the notebook to papermill's output path and to the run's folder."""
        super().save(**changes)
        write_atomically(self.copy, nbformat.writes(self.nb))


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
        line = ProgressLine(quiet=progress_bar is False)
        copy = run.directory / run.notebook
        command_line.output.path = copy
        if output_path == command_line.OUTPUT:
            output_path, nb.metadata.papermill["output_path"] = None, _shown(copy)
        manager = Manager(
            nb, copy, output_path=output_path, log_output=log_output,
            autosave_cell_every=autosave_cell_every,
        )  # fmt: skip
        client = Client(manager, line, **_client_options(kernel_name, log_output, options))
        manager.notebook_start()
        reason: str | None = None
        try:
            with client.stop:
                client.execute(env=_environment(run))
        except DeadKernelError:
            if not client.dead:  # it died outside of a cell, so that no cell reports it
                reason = "the kernel died"
                raise
        except BaseException as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise
        finally:
            line.end_cell()
            manager.notebook_complete()
            failure = _failure(manager.nb)
            reason = failure.reason if failure else reason
            busy = failure is not None and failure.error == RunBusy.__name__
            stopped = client.stop.signal_name if reason else ""
            if stopped and not client.stop.killed:
                reason = f"stopped by {stopped}"
            # The record of a busy folder belongs to the process that holds it.
            if reason and isinstance(run, Run) and not busy:
                _record_failure(run, before, reason, stopped, line)
    if stopped:
        line.note(
            f"stopped by {stopped}; the same command resumes. Record: {_shown(run.directory)}"
        )
        if client.stop.number == signal.SIGINT:
            raise KeyboardInterrupt
        raise SystemExit(128 + client.stop.number)
    if not line.quiet:
        line.note(f"{'Failed' if reason else 'Recorded'}: {_shown(run.directory)}")
    return manager.nb


def _client_options(kernel_name: str, log_output: bool, options: dict[str, Any]) -> dict[str, Any]:
    """papermill's words for the client's settings, and all the others as they come."""
    options = {k: v for k, v in options.items() if k != "input_path"}
    return options | {
        "kernel_name": kernel_name,
        "log": logger,
        "log_output": log_output,
        "startup_timeout": options.pop("start_timeout", 60),
        "timeout": options.pop("execution_timeout", None) or options.get("timeout"),
    }


# glibc maps memory for every large tensor and returns it when it is freed, so each training step on
# a CPU takes all its pages from the system. With these it keeps them (benchmarks/LOG.md). Other
# allocators and systems ignore them.
KEEP_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}


def _environment(run: Folder) -> dict[str, str]:
    """The kernel's environment: the same folders wherever it works, and a page without chatter."""
    environment = KEEP_MEMORY | os.environ
    environment.setdefault("TRANSFORMERS_VERBOSITY", "error")
    environment.setdefault("ACCELERATE_LOG_LEVEL", "error")
    environment.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    return environment | {PLANNED: str(run.directory), "PE_RUNS": str(run.records)}


class _Failure(NamedTuple):
    """The first error of a notebook."""

    error: str
    """Name of its type, as the kernel reported it."""
    reason: str
    """Type and message in one line."""


def _failure(nb: Any) -> _Failure | None:
    for cell in nb.cells:
        if not cell.metadata.get("papermill", {}).get("exception"):
            continue
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                value = " ".join(str(output.evalue).split())
                return _Failure(output.ename, f"{output.ename}: {value}" if value else output.ename)
        return _Failure("", "a cell failed")
    return None


def _record_failure(
    run: Run, before: RunRecord | None, reason: str, stopped: str, line: ProgressLine
) -> None:
    """Say in run.json that the run failed, unless the trainer did so or it was complete before."""
    if before is not None and before.status == "complete":
        return  # only showing it failed
    wanted: Status = "interrupted" if stopped else "failed"
    try:
        now = run.record if run.exists() else None
        if now is None or now == before or now.status not in (wanted, "interrupted"):
            run.fail(reason, wanted, stopped or None)
        elif stopped:  # the kernel is always sent SIGINT; the record names what we were sent
            run.update(signal=stopped)
    except (ValueError, OSError) as error:
        line.note(f"pe: the failure could not be recorded: {error}")


def _shown(path: Path) -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
