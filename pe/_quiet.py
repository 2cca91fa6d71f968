"""Silence for what libraries say about every save and load of a model with a tied head."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """No progress bars of transformers, no warning of accelerate that the tied head is kept once.

    The bars would stay in executed notebooks, and the warning comes with every checkpoint.
    """
    logger = logging.getLogger("accelerate.utils.other")
    level, bars = logger.level, transformers_logging.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            transformers_logging.enable_progress_bar()
