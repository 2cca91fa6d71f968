"""A program of this environment without the seconds that its imports take.

It is forked from the server of `tiny_training`, which has imported torch. The server starts no
interpreter, so a few tests start each program for real (test_papermill_command.py).
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

from tiny_training import server


class Ended(NamedTuple):
    """How a program ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def _main(words: list[str], cwd: str, environment: dict[str, str], log: str) -> None:
    """Do what the console script of this name does, in a process that has begun."""
    read, write = os.pipe()
    os.close(write)
    os.dup2(read, 0)
    for descriptor, path in ((1, f"{log}.out"), (2, f"{log}.err")):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), descriptor)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    # Tests that run in a shell's background job would hand on that SIGINT is ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    here = str(Path(sys.executable).parent)  # a script's own folder, not the one it is called in
    sys.path[:] = [here, *(path for path in sys.path if path not in ("", cwd))]
    sys.argv[:] = words
    (script,) = entry_points(group="console_scripts", name=words[0])
    try:
        sys.exit(script.load()())
    except Exception:  # multiprocessing would print it past the program's own hook
        sys.excepthook(*sys.exc_info())
        sys.exit(1)


class Program:
    """A running program in a pipe that has ended; has what tests use of a Popen."""

    def __init__(self, *words: object, cwd: Path, log: Path, environment: dict[str, str]) -> None:
        self.log = log
        given = list(map(str, words)), str(cwd), environment, str(log)
        self.process = server().Process(target=_main, args=given)
        self.process.start()
        self.pid = self.process.pid

    def running(self) -> bool:
        """Return whether it has not ended."""
        return bool(self.process.is_alive())

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to this process."""
        os.kill(self.pid, number)

    def end(self, timeout: float = 120) -> Ended:
        """Wait for its end.

        Raises:
            AssertionError: it does not come in ``timeout`` seconds; the process is killed.
        """
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"hangs:\n{self._printed('err')}")
        return Ended(self.process.exitcode, self._printed("out"), self._printed("err"))

    def _printed(self, stream: str) -> str:
        path = Path(f"{self.log}.{stream}")
        return path.read_text() if path.exists() else ""
