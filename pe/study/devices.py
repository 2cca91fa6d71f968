"""The devices of this machine, and how runs take turns on them.

A device is a GPU, or as many GPUs as ``PE_PROCESSES`` says, which train a run together.

To start Python, a kernel and torch takes longer than many evaluations, and needs no GPU. So the
worker of a device has two runs at a time: one trains, while the other has imported everything and
waits for the lock of each GPU. Only one of them uses the device, so its speed is measured as if it
were alone.
"""

from __future__ import annotations

import os
import tempfile

from filelock import FileLock

from pe._errors import whole
from pe.training import processes

MUTEX = "PE_GPU_MUTEX"
"""Environment variable: the files, one per GPU, that a process locks while it uses the device."""

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
        ValueError: what was asked for is no whole number above 0.
    """
    if workers is None:
        return len(visible_gpus()) or 1
    return whole("workers", workers, 1)


def mutex_of(device: str) -> str:
    """Return the value of ``$PE_GPU_MUTEX`` for a device, which may be several GPUs with commas.

    Other studies of this user lock the same files. They are sorted, so that two processes which
    share several GPUs do not wait for each other.
    """
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
    names = ("".join(c if c.isalnum() else "-" for c in gpu) for gpu in device.split(","))
    files = (f"pe-gpu-{user}-{name}.lock" for name in sorted(names))
    return os.pathsep.join(os.path.join(tempfile.gettempdir(), file) for file in files)


def wait_for_device() -> None:
    """Wait until no other process uses this one's GPUs, then hold them until this process ends.

    It returns at once if ``$PE_GPU_MUTEX`` is not set or this process already holds them.
    """
    paths = os.environ.get(MUTEX)
    if not paths or _held:
        return
    for path in paths.split(os.pathsep):
        lock = FileLock(path)
        lock.acquire()
        _held.append(lock)  # a lock that is collected is released
