"""The GPUs of this machine: which there are, and one run at a time on each.

With ``PE_PROCESSES`` a run takes so many GPUs together, and they count as one here.

Starting Python, a kernel and torch takes a run longer than many of its evaluations do, and needs no
GPU. So a worker of a GPU has two runs: one works, and the other has imported everything and waits
for the GPU's mutex. Only one is ever on the device, so speeds are measured as if it were alone.
"""

from __future__ import annotations

import os
import tempfile

from filelock import FileLock

from pe.training import processes

MUTEX = "PE_GPU_MUTEX"
"""Environment variable: the file that a process locks while it is on the device."""

_held: list[FileLock] = []


def visible_gpus() -> list[str]:
    """Return the values of CUDA_VISIBLE_DEVICES for the runs that this machine can train at a time.

    Raises:
        ValueError: ``PE_PROCESSES`` asks for more GPUs than there are.
    """
    import torch

    from pe import devices

    if devices.choose().type != "cuda":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
    each = processes.wanted()
    return [",".join(gpus[i : i + each]) for i in range(0, len(gpus) - each + 1, each)]


def workers_here(workers: int | None = None) -> int:
    """Return the number of workers that `pe.study.run_study` starts on this machine.

    Args:
        workers: what was asked for; None: one per GPU, or one without a GPU.

    Raises:
        ValueError: less than one was asked for.
    """
    if workers is None:
        return len(visible_gpus()) or 1
    if workers < 1:
        raise ValueError(f"workers: expected 1 or more, got {workers}; leave it out for a default")
    return workers


def mutex_of(gpu: str) -> str:
    """Return the lock file of a GPU of this machine.

    Other studies of this user lock the same file.
    """
    name = "".join(c if c.isalnum() else "-" for c in gpu)
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    return os.path.join(tempfile.gettempdir(), f"pe-gpu-{user}-{name}.lock")


def wait_for_device() -> None:
    """Wait until no other process holds ``$PE_GPU_MUTEX``, then hold it until this process ends.

    Returns at once where the variable is not set, or this process already holds it.
    """
    path = os.environ.get(MUTEX)
    if not path or _held:
        return
    lock = FileLock(path)
    lock.acquire()
    _held.append(lock)  # a lock that is collected is released
