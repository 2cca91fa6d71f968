"""One papermill at a time for a run's folder, from before the first write to after the last.

The trainer locks the folder while it trains (`pe.runs.Run.lock`), in the kernel's process. This
second lock covers the rest of papermill's life, so that a second command finds out before it
touches the first one's notebook.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator

from pe.runs import Run, RunBusy

LOCK = ".notebook.lock"


@contextlib.contextmanager
def hold(run: Run) -> Iterator[None]:
    """Hold the run's folder for a notebook; RunBusy if a trainer or a notebook has it."""
    training = run.busy()
    if training:
        raise RunBusy(training)
    run.directory.mkdir(parents=True, exist_ok=True)
    with open(run.directory / LOCK, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another notebook"
            raise RunBusy(
                f"{run.directory} is being written by {holder}; wait for it, stop it, or choose "
                "another study or seed"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def busy(run: Run) -> str | None:
    """Why `hold` would refuse, or None. Creates nothing."""
    if not (run.directory / LOCK).exists():
        return run.busy()
    try:
        with hold(run):
            return None
    except RunBusy as error:
        return str(error)
