"""Where to compute, and what follows from it: CUDA, Apple's MPS, or the CPU.

                                CUDA            MPS               CPU
    chosen                      if there is one only if asked for otherwise
    precision: auto             bfloat16        float32           float32
    compile: auto               on              off               off
    tokens per forward pass     131,072         8,192             8,192
    of an evaluation
    peak memory in the record   allocated       none              resident

``PE_DEVICE`` (``cuda``, ``mps``, ``cpu``) overrules the choice. MPS has to be asked for, because it
has no float64, in which the rotary encodings compute their phases, and because no Mac was at hand:
all of its column is untested.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import torch

from pe._errors import unknown

DEVICES = ("cuda", "mps", "cpu")


def choose() -> torch.device:
    """The device on which models are trained, evaluated and sampled.

    Raises:
        ValueError: PE_DEVICE names no device, or one that this machine does not have.
    """
    there = {
        "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True,
    }  # fmt: skip
    asked = os.environ.get("PE_DEVICE", "")
    if not asked:
        return torch.device("cuda" if there["cuda"] else "cpu")
    if asked not in DEVICES:
        raise unknown("device in PE_DEVICE", asked, DEVICES)
    if not there[asked]:
        has = ", ".join(name for name in DEVICES if there[name])
        raise ValueError(f"PE_DEVICE asks for {asked}, and this machine has {has}; choose from it")
    return torch.device(asked)


def narrow(precision: str, device: torch.device) -> bool:
    """Whether a recipe's ``precision`` (or, on ``auto``, the device) asks for bfloat16."""
    return precision == "bfloat16" or (precision == "auto" and device.type == "cuda")


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """bfloat16 autocast where a recipe's ``precision`` asks for it (`narrow`)."""
    if narrow(precision, device):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def compiles(setting: str, device: torch.device) -> bool:
    """Whether a recipe's ``compile`` (or, on ``auto``, the device) asks for torch.compile."""
    return setting == "on" or (setting == "auto" and device.type == "cuda")


def tokens_per_batch(device: torch.device) -> int:
    """Tokens that an evaluation gives to the model at once."""
    return 2**17 if device.type == "cuda" else 2**13


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its queue; a CPU has none."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def free_memory(device: torch.device) -> None:
    """Hand unused memory back to the device, for other processes."""
    if device.type != "cpu":
        torch.accelerator.empty_cache()


def gpu_memory() -> float | None:
    """GiB of the GPU on which models are trained; None without one."""
    if choose().type != "cuda":
        return None
    return float(torch.cuda.get_device_properties(0).total_memory / 2**30)


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Parameters of glibc's mallopt(3)."""


def keep_memory(device: torch.device) -> None:
    """On a CPU with glibc: keep the memory of freed tensors, for the whole process.

    glibc maps memory for every large tensor and returns it when it is freed, so each training step
    would take all its pages from the system again (benchmarks/LOG.md). What the user sets through
    glibc's own variables stays; other allocators and systems are left alone.
    """
    users_own = any(name.startswith("MALLOC_") for name in os.environ)
    if device.type == "cpu" and platform.libc_ver()[0] == "glibc" and not users_own:
        glibc = ctypes.CDLL(None)
        glibc.mallopt(M_MMAP_MAX, 0)
        glibc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)  # -1, which mallopt(3) names, has no effect


def peak_memory(device: torch.device) -> float | None:
    """GiB at most so far: allocated on a GPU, resident on a CPU; None where nothing counts it."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    if device.type != "cpu" or sys.platform == "win32":
        return None
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


@contextlib.contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """Inside, torch takes deterministic algorithms only: the same bits from run to run.

    This package's own kernels add in a fixed order and always give the same bits. cuDNN's attention
    does not: it adds up the gradient of queries in whatever order its blocks come. Nor does the
    gradient of an embedding as torch's compiler makes it. Torch has a slower way for both
    (book/speed.md says how much slower). The same machine and versions are still needed: another
    card rounds otherwise.

    Raises:
        RuntimeError: torch's, where an operation has no such algorithm; it names the operation.
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
    # Filling fresh memory finds who reads what was never written. Nobody here does (tests).
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        memory.fill_uninitialized_memory = filling
