"""Choose the device (CUDA, Apple's MPS or the CPU), and the settings that follow from it.

                                CUDA            MPS               CPU
    chosen                      if there is one only if asked for otherwise
    precision: auto             bfloat16        float32           float32
    compile: auto               on              off               off
    tokens per forward pass     131,072         8,192             8,192
    of an evaluation
    peak memory in the record   allocated       none              resident

The environment variable ``PE_DEVICE`` (``cuda``, ``mps`` or ``cpu``) overrules the choice. MPS is
used only on request, because it has no float64, in which the rotary encodings compute their phases.
The MPS column is untested: the project had no Mac.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pe._errors import unknown

DEVICES = ("cuda", "mps", "cpu")


def choose() -> torch.device:
    """Return the device on which models are trained, evaluated and sampled.

    Raises:
        ValueError: PE_DEVICE is not the name of a device, or this machine does not have it.
    """
    available = {
        "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True,
    }  # fmt: skip
    asked = os.environ.get("PE_DEVICE", "")
    if not asked:
        return torch.device("cuda" if available["cuda"] else "cpu")
    if asked not in DEVICES:
        raise unknown("device in PE_DEVICE", asked, DEVICES)
    if not available[asked]:
        has = ", ".join(name for name in DEVICES if available[name])
        raise ValueError(f"PE_DEVICE asks for {asked}, and this machine has {has}; choose from it")
    return torch.device(asked)


def narrow(precision: str, device: torch.device) -> bool:
    """Return whether a recipe's ``precision`` asks for bfloat16; on ``auto`` the device decides."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return a context of bfloat16 autocast if a recipe's ``precision`` asks for it (`narrow`)."""
    if narrow(precision, device):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def compiles(setting: str, device: torch.device) -> bool:
    """Return whether a recipe's ``compile`` asks for it; on ``auto`` the device decides."""
    return setting == "on" or (setting == "auto" and device.type == "cuda")


def tokens_per_batch(device: torch.device) -> int:
    """Return the number of tokens in one forward pass of an evaluation."""
    return 2**17 if device.type == "cuda" else 2**13


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all operations that were launched."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Return cached, unused memory to the device, so that other processes can have it."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def gpu_memory() -> float | None:
    """Return the memory in GiB of the GPU on which models are trained; None without a GPU."""
    if choose().type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(0).total_memory / 2**30)


def memory() -> float:
    """Return the memory in GiB of the device on which models are trained; on a CPU, of the machine.

    On Linux a container may use less than the machine has (memory.max of its cgroup).
    """
    gpu = gpu_memory()
    if gpu is not None:
        return gpu
    import psutil

    has: int = psutil.virtual_memory().total
    limit = Path("/sys/fs/cgroup/memory.max")
    allowed = limit.read_text("utf-8").strip() if limit.is_file() else "max"
    return (has if allowed == "max" else min(has, int(allowed))) / 2**30


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""


def keep_memory(device: torch.device) -> None:
    """On a CPU with glibc, keep the memory of freed tensors for reuse, in the whole process.

    By default glibc maps memory for every large tensor and returns it to the system when the tensor
    is freed, so each training step would request all its memory again (benchmarks/LOG.md). If the
    user has set glibc's own MALLOC_ variables, they apply instead. Other allocators and systems
    are left unchanged.
    """
    set_by_user = any(name.startswith("MALLOC_") for name in os.environ)
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc" and not set_by_user:
        glibc = ctypes.CDLL(None)
        glibc.mallopt(M_MMAP_MAX, 0)
        glibc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # -1, which mallopt(3) names, has no effect


def forget_peak_memory(device: torch.device) -> None:
    """Let `peak_memory` start again on a GPU; on a CPU it always covers the whole process."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> float | None:
    """Return the largest memory in GiB that this process has used.

    On a GPU it is the memory that was allocated since `forget_peak_memory`, on a CPU the resident
    memory since the process began. None where neither is measured.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


@contextlib.contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """In this block torch uses deterministic algorithms only, so two runs give the same bits.

    The kernels of this package add in a fixed order and always give the same bits. Two of torch's
    operations do not: cuDNN's attention adds up the gradient of the queries in the order in which
    its blocks finish, and the compiled gradient of an embedding varies too. Torch has a slower
    algorithm for both (book/speed.md says how much slower). Two runs also need the same machine
    and the same versions, because another card rounds differently.

    Raises:
        RuntimeError: raised by torch where an operation has no deterministic algorithm; it names
            the operation.
    """
    if not wanted:
        yield
        return
    # cuBLAS reads this when it is first used; torch refuses matrix products without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic
    filling = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    # torch would also fill fresh memory, to expose code that reads values before writing them. It
    # takes time, and tests show that no code here does so.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filling
