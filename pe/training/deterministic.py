"""The same bits from run to run, for what they cost (book/speed.md says how much).

This package's own kernels add in a fixed order and always give the same bits. Not so cuDNN's
attention, which adds up the gradient of queries in whatever order its blocks come, nor the gradient
of an embedding as torch's compiler makes it. Torch has a slower way for both and takes it on
request. The same machine and versions are still needed: another card rounds otherwise.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch


@contextlib.contextmanager
def deterministic(wanted: bool = True) -> Iterator[None]:
    """Inside, torch takes deterministic algorithms only.

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
