"""torch's checkpoint, also where `torch.func.vmap` runs a function over many models.

vmap refuses checkpoints. Inside `kept`, what a function needs for its gradient is kept instead of
computed again: the same numbers, for more memory.
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
    """Within, `checkpoint` calls the function and nothing is computed a second time."""
    token = _KEPT.set(True)
    try:
        yield
    finally:
        _KEPT.reset(token)


def checkpoint(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """As `torch.utils.checkpoint.checkpoint`."""
    if _KEPT.get():
        return function(*arguments)
    return torch_checkpoint(function, *arguments, **options)
