"""One papermill at a time for a run's folder, from before the first write to after the last.

The trainer locks the folder while it trains (`pe.runs.Run.lock`), in the kernel's process. This
second lock covers the rest of papermill's life, so that a second command finds out before it
touches the first one's notebook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pe.runs import Folder, RunBusy

LOCK = ".notebook.lock"


@contextlib.contextmanager
def hold(run: Folder) -> Iterator[None]:
    """Hold the run's folder for a notebook; RunBusy if a trainer or a notebook has it."""
    training = run.busy()
    if training:
        raise training
    with run.lock(LOCK):
        yield


def busy(run: Folder) -> RunBusy | None:
    """What `hold` would raise, or None. Creates nothing."""
    return run.busy() or run.busy(LOCK)
