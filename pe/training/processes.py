"""One run in several processes: ``PE_PROCESSES=2 papermill notebooks/train.ipynb -p pe rope``.

    this process            prepares the text, starts the others, shows their progress, waits
    process 0, 1, ...       train together, each on a GPU, or on the CPU; 0 writes the record

They are started with the variables that torchrun sets, so `pe.training.loop` knows one way only.
The first process that ends with an error ends all: what ended it is raised here, as if it had
happened here. A signal to this process goes to all of them, and they save and stop together; if
this process dies, so do they. torch's own launcher kills what it started 30 seconds after a signal
(torch.distributed.elastic); a checkpoint of a large model takes longer. Imports no torch.
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
"""How long the other processes may take to end by themselves once one has failed. Those that wait
for it in NCCL never would."""
SAVE_SECONDS = 120.0
"""How long a process may take to save and end once the one that started it is gone."""
POLL_SECONDS = 0.1


class ProcessDied(RuntimeError, Explained):
    """One of the processes of a run ended and left no error, as one that was killed."""


class Interrupted(RuntimeError, Explained):
    """Training was asked to stop, and saved a checkpoint before it did."""

    def __init__(self, message: str, signal: str | None = None) -> None:
        super().__init__(message)
        self.signal = signal
        """Name of the signal; None where another process got it."""


class Failure(NamedTuple):
    """Why the processes of a run ended."""

    error: BaseException
    recorded: bool
    """Whether process 0, which writes the record, met it itself."""


def wanted() -> int:
    """How many processes train a run here: ``$PE_PROCESSES``, or 1.

    In a process that is one of several itself, as torchrun starts them, it is 1.

    Raises:
        ValueError: the variable is no whole number from 1 on, or asks for more than there are GPUs.
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


def _check_devices(count: int) -> None:
    import torch

    from pe import devices

    kind = devices.choose().type
    there = {"cuda": torch.cuda.device_count(), "mps": 1}.get(kind, count)
    if count > there:
        raise ValueError(
            f"{PROCESSES} asks for {count} processes, and this machine has {there} "
            f"{'GPU' if there == 1 else 'GPUs'} for them; each needs its own"
        )


def launch(
    run: Run, count: int, progress: Progress, record: Callable[[BaseException], None]
) -> None:
    """Train ``run`` in ``count`` processes of this machine, to the end of its recipe.

    Args:
        progress: shows that of process 0.
        record: called with an error that process 0 could not write into the record.

    Raises:
        RunBusy: another process is writing the run's folder.
        ProcessDied: a process was killed; says which, and by what.
        BaseException: whatever `pe.train` raises in one process.
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
        """Start all of them."""
        command = provenance.command() or notebook_command(
            notebook_parameters(self.run.recipe, self.run.study)
        )
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        threads = str(max(1, (cores or 1) // self.count))
        common = {
            "WORLD_SIZE": str(self.count), "LOCAL_WORLD_SIZE": str(self.count),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()),
            "PE_COMMAND": f"{PROCESSES}={self.count} {command}",
            # An encoding of the user's own is found where this process finds it.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or threads,
        }  # fmt: skip
        for rank, log in enumerate(self.logs):
            task = {
                "directory": str(self.run.directory), "recipe": self.run.recipe.to_dict(),
                "error": str(self._error_file(rank)), "parent": os.getpid(),
            }  # fmt: skip
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self.processes.append(_started(task, common | own, log))
        reports = self.processes[0].stdout
        threading.Thread(target=self._listen, args=(reports,), daemon=True).start()

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self.reports.put(line)

    def wait(self, progress: Progress) -> Failure | None:
        """Show the progress of process 0 until all have ended; None if they ended well."""
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    text, last = json.loads(self.reports.get_nowait())
                    progress.show(text, last)
            codes = [process.poll() for process in self.processes]
            if all(code == 0 for code in codes):
                return None
            if any(code not in (None, 0) for code in codes):
                break
            time.sleep(POLL_SECONDS)
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end and any(p.poll() is None for p in self.processes):
            time.sleep(POLL_SECONDS)
        self.kill()
        return self._cause()

    def kill(self) -> None:
        """End at once those that still run."""
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.killed.add(rank)
                process.kill()
            process.wait()

    def _cause(self) -> Failure:
        """The failure that came first, as far as can be told.

        A process that was killed comes before all errors, and an error that explains itself before
        one that does not: a process whose partner is gone reports a broken connection.
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
                how += ", as the system does where memory runs out"
        return ProcessDied(
            f"process {rank} of {self.count} {how}; the others were ended, and the same command "
            f"goes on from the last checkpoint. What it wrote: {self.logs[rank]}"
        )

    def _error_file(self, rank: int) -> Path:
        return self.folder / f"error-{rank}"

    def _error(self, rank: int) -> BaseException | None:
        path = self._error_file(rank)
        if not path.exists():
            return None
        error, text = pickle.loads(path.read_bytes())
        error.__cause__ = _Remote(f"\n{text}")
        return error  # type: ignore[no-any-return]

    def forget_logs(self) -> None:
        """Remove what the processes wrote beside their progress."""
        for log in self.logs:
            log.unlink(missing_ok=True)

    @contextlib.contextmanager
    def signals_forwarded(self) -> Iterator[None]:
        """Hand the first SIGINT or SIGTERM to all processes; a second one kills them."""

        def received(number: int, frame: FrameType | None) -> None:
            self.signals.append(number)
            if len(self.signals) > 1:
                raise KeyboardInterrupt
            for process in self.processes:
                if process.poll() is None:
                    process.send_signal(number)

        before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for wished in (signal.SIGINT, signal.SIGTERM):
                before[wished] = signal.signal(wished, received)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Remote(Exception):
    """The traceback of an error in another process, as the cause of the error."""


def _started(
    task: Mapping[str, Any], environment: Mapping[str, str], log: Path
) -> subprocess.Popen[str]:
    """A process of `pe.training.worker`: standard output is a pipe, all else goes to ``log``."""
    with log.open("w") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "pe.training.worker", json.dumps(task)],
            env=os.environ | environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out,
            start_new_session=True,  # signals reach it through the process that started it alone
        )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stop_with_parent(parent: int, patience: float | None = None) -> None:
    """Ask this process to stop once its parent is gone; end it after ``patience`` seconds more."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)
    if patience is not None:
        time.sleep(patience)
        os._exit(1)
