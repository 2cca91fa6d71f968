"""Train one run in several processes on one machine.

    PE_PROCESSES=2 papermill notebooks/train.ipynb -p pe rope

    this process            prepares the text, starts the others, shows their progress and waits
    process 0, 1, ...       train together, each on its GPU or all on the CPU; 0 writes the record

The processes get the environment variables that torchrun sets, so `pe.training.loop` works in the
same way under both. If one process ends with an error, all are ended, and the error is raised in
this process. A signal to this process is passed on to all of them, and they save a checkpoint and
stop together. If this process dies, they stop as well. torch's own launcher is not used, because it
kills its processes 30 seconds after a signal (torch.distributed.elastic), and writing a checkpoint
of a large model takes longer. This module imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple

from pe._errors import Explained
from pe.recipes.command import notebook_command, notebook_parameters
from pe.runs import Run, RunBusy, provenance
from pe.training.progress import Progress

PROCESSES = "PE_PROCESSES"
GRACE_SECONDS = 15.0
"""How long the other processes may take to end by themselves after one has failed. A process that
waits for it in NCCL would never end."""
SAVE_SECONDS = 120.0
"""How long a process may take to save a checkpoint and end after its parent process has died."""
POLL_SECONDS = 0.1
READ_SECONDS = 5.0
"""How long to wait for the last lines of processes that have ended."""


class ProcessDied(RuntimeError, Explained):
    """One of the processes of a run ended without an error, usually because it was killed."""


class Interrupted(RuntimeError, Explained):
    """Training was asked to stop, and did so after it saved a checkpoint."""

    def __init__(self, message: str, signal: str | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        """Name of the signal; None if another process received it."""


class Failure(NamedTuple):
    """Why the processes of a run ended."""

    error: BaseException
    recorded: bool
    """Whether process 0 raised the error, and so has written it into the record."""


def wanted() -> int:
    """Return how many processes this one has to start: ``$PE_PROCESSES``, or 1 for none.

    It is 1 in a process that is one of several itself, started by torchrun or by `launch`.

    Raises:
        ValueError: the variable is not a whole number from 1 on, or exceeds the number of GPUs.
    """
    text = os.environ.get(PROCESSES, "").strip()
    if not text or "RANK" in os.environ:
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"{PROCESSES}: expected a whole number from 1 on, got {text!r}")
    count = int(text)
    if count > 1:
        _check_devices(count)
    return count


def together() -> int:
    """Return how many processes train a run together: this one's group, or as many as `wanted`."""
    if "RANK" in os.environ:
        return int(os.environ.get("WORLD_SIZE", "1"))
    return wanted()


def _check_devices(count: int) -> None:
    """Raise ValueError if there are fewer GPUs than ``count`` processes."""
    import torch

    from pe import devices

    kind = devices.choose().type
    available = {"cuda": torch.cuda.device_count(), "mps": 1}.get(kind, count)
    if count > available:
        raise ValueError(
            f"{PROCESSES} asks for {count} processes, and this machine has {available} "
            f"{'GPU' if available == 1 else 'GPUs'} for them; each needs its own"
        )


def launch(
    run: Run, count: int, progress: Progress, record: Callable[[BaseException], None]
) -> None:
    """Train ``run`` in ``count`` processes of this machine, to the end of its recipe.

    Args:
        progress: shows the progress of process 0.
        record: called with an error that process 0 did not write into the record.

    Raises:
        RunBusy: another process is writing the run's folder.
        ProcessDied: a process was killed; the message says which one, and by what.
        BaseException: the error that `pe.train` raised in one of the processes.
    """
    busy = run.busy()
    if busy:
        raise busy
    with tempfile.TemporaryDirectory(prefix="pe-processes-") as folder:
        group = _Group(run, count, Path(folder))
        try:
            with group.signals_forwarded():
                group.start()
                failed = group.wait(progress)
        finally:
            group.kill()
        if failed is None:
            group.forget_logs()
            return
        if not (failed.recorded or isinstance(failed.error, RunBusy)):
            record(failed.error)
        raise failed.error


class _Group:
    """The processes of one run, in the order of their ranks."""

    def __init__(self, run: Run, count: int, folder: Path) -> None:
        self.run, self.count, self.folder = run, count, folder
        self.processes: list[subprocess.Popen[str]] = []
        self.reports: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.logs = [run.directory / f"process-{rank}.log" for rank in range(count)]
        self.killed: set[int] = set()
        self.signals: list[int] = []

    def start(self) -> None:
        """Start all processes."""
        command = provenance.command() or notebook_command(
            notebook_parameters(self.run.recipe, self.run.study)
        )
        threads = str(max(1, provenance.cores() // self.count))
        common = {
            "WORLD_SIZE": str(self.count), "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()),
            "PE_COMMAND": f"{PROCESSES}={self.count} {command}",
            # So the processes can import the user's own encodings.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or threads,
        }  # fmt: skip
        for rank, log in enumerate(self.logs):
            task = {
                "directory": str(self.run.directory), "recipe": self.run.recipe.to_dict(),
                "error": str(self._error_file(rank)), "parent": os.getpid(),
            }  # fmt: skip
            ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(_start_process(task, common | ranks, log))
        reports = self.processes[0].stdout
        self.reader = threading.Thread(target=self._read_reports, args=(reports,), daemon=True)
        self.reader.start()

    def _read_reports(self, lines: IO[str]) -> None:
        for line in lines:
            self.reports.put(line)

    def wait(self, progress: Progress) -> Failure | None:
        """Show the progress of process 0 until all have ended; None if there was no error."""
        codes: list[int | None] = [None]
        while None in codes and not any(codes):
            self._show(progress)
            time.sleep(POLL_SECONDS)
            codes = [process.poll() for process in self.processes]
        failed = any(codes)
        if failed:
            end = time.monotonic() + GRACE_SECONDS
            while time.monotonic() < end and any(p.poll() is None for p in self.processes):
                time.sleep(POLL_SECONDS)
            self.kill()
        # The last lines of process 0 may not have been read yet.
        self.reader.join(READ_SECONDS)
        self._show(progress)
        return self._cause() if failed else None

    def _show(self, progress: Progress) -> None:
        """Show the lines of process 0 that have been read since the last call."""
        with contextlib.suppress(queue.Empty):
            while True:
                text, last = json.loads(self.reports.get_nowait())
                progress.show(text, last)

    def kill(self) -> None:
        """Kill the processes that still run."""
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.killed.add(rank)
                process.kill()
            process.wait()

    def _cause(self) -> Failure:
        """Return the failure that most likely caused the others.

        If a process was killed, that is the cause. Otherwise an error that explains itself is
        preferred, because processes that lose a partner report a broken connection.
        """
        errors = {rank: self._error(rank) for rank in range(self.count)}
        reported = [
            Failure(error, rank == 0) for rank, error in errors.items() if error is not None
        ]
        died = [
            rank
            for rank, process in enumerate(self.processes)
            if process.returncode != 0 and errors[rank] is None and rank not in self.killed
        ]
        if died and not self.signals:
            return Failure(self._died(died[0]), recorded=False)
        if not reported:
            name = signal.Signals(self.signals[0]).name if self.signals else None
            return Failure(Interrupted("stopped before or after its steps", name), recorded=False)
        explained = (ValueError, OSError, Explained)
        return min(reported, key=lambda failure: not isinstance(failure.error, explained))

    def _died(self, rank: int) -> ProcessDied:
        code = self.processes[rank].returncode
        how = f"ended with status {code}"
        if code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                how += ", as the system does when memory runs out"
        return ProcessDied(
            f"process {rank} of {self.count} {how}; the others were ended, and the same command "
            f"goes on from the last checkpoint. Its output is in {self.logs[rank]}"
        )

    def _error_file(self, rank: int) -> Path:
        return self.folder / f"error-{rank}"

    def _error(self, rank: int) -> BaseException | None:
        path = self._error_file(rank)
        if not path.exists():
            return None
        error, text = pickle.loads(path.read_bytes())
        error.__cause__ = _RemoteTraceback(f"\n{text}")
        return error  # type: ignore[no-any-return]

    def forget_logs(self) -> None:
        """Remove the log files of the processes, also those of an earlier session with more."""
        for log in self.run.directory.glob("process-*.log"):
            log.unlink()

    @contextlib.contextmanager
    def signals_forwarded(self) -> Iterator[None]:
        """Forward the first SIGINT or SIGTERM to all processes; a second one kills them."""

        def forward(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)
            if len(self.signals) > 1:
                raise KeyboardInterrupt
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(number)

        handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for kind in (signal.SIGINT, signal.SIGTERM):
                handlers[kind] = signal.signal(kind, forward)
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


class _RemoteTraceback(Exception):
    """The traceback of an error in another process; it becomes the cause of that error."""


def _start_process(
    task: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[str]:
    """Start `pe.training.worker`: standard output is a pipe, standard error goes to ``log``."""
    with log.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pe.training.worker", json.dumps(task)],
            env=os.environ | environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out,
            start_new_session=True,  # so Ctrl-C reaches it only through `signals_forwarded`
        )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_with_parent(parent: int, patience: float | None = None) -> None:
    """Wait until the parent process has died, then send SIGTERM to this process.

    If it still runs ``patience`` seconds later, end it.
    """
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    if patience is not None:
        time.sleep(patience)
        os._exit(1)
