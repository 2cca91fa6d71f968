"""Runs of one device take turns: the next one gets ready while the one before it is at work.

Starting Python, a kernel and torch takes a run longer than many of its evaluations do, and needs no
GPU. So a worker of a GPU has two runs: one works, and the other has imported everything and waits
here. Only one is ever on the device, so that speeds are measured as if it had been alone. A turn
ends with the process that has it. Imports no torch.
"""

from __future__ import annotations

import os
import tempfile
from typing import IO

TURN = "PE_TURN"
"""Environment variable: the file that a process holds while it is on the device."""

_held: list[IO[str]] = []


def turn_of(device: str) -> str:
    """The file for a device of this machine; other studies on it wait for the same one."""
    name = "".join(c if c.isalnum() else "-" for c in device)
    return os.path.join(tempfile.gettempdir(), f"pe-turn-{os.getuid()}-{name}")


def take_turn() -> None:
    """Wait until no other process has the device that ``$PE_TURN`` names, and keep it for good.

    Returns at once where the variable is not set, or the turn is this process's already.
    """
    import fcntl  # not on Windows, where no study has GPU workers

    path = os.environ.get(TURN)
    if not path or _held:
        return
    file = open(path, "a")  # noqa: SIM115 (it is held until the process ends)
    fcntl.lockf(file, fcntl.LOCK_EX)  # not flock: a forked child would keep that one
    _held.append(file)
