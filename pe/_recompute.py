"""Activation checkpointing that can be switched off for `torch.func.vmap`.

`checkpoint` drops a function's intermediate results and computes them a second time for the
gradient, as torch's function of that name does. `torch.func.vmap`, which trains many small models
at once, refuses that. Inside `kept` the intermediate results stay in memory: the numbers are the
same, and more memory is used.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.checkpoint import checkpoint as torch_checkpoint

_KEPT = contextvars.ContextVar("kept", default=False)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """In this block `checkpoint` calls the function, and nothing is computed a second time."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


def checkpoint(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call ``function``; arguments and result are those of `torch.utils.checkpoint.checkpoint`."""
    if _KEPT.get():
        return function(*arguments)
    return torch_checkpoint(function, *arguments, **options)
