"""Importing transformers without looking for garbage meanwhile."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage while the imports in this block run.

    What they make is kept until the process ends, and there is a lot of it: Python looked through
    all of it many times, for a fifth of the time that the imports took.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
