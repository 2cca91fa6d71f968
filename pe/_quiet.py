"""Silence messages that libraries print whenever a model with a tied head is saved or loaded."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from transformers.utils import logging as transformers_logging


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Hide transformers' progress bars and accelerate's warning about a tied head in this block.

    The bars would stay in executed notebooks. The warning, that the weight of a tied head is stored
    once, is correct and expected, and would come with every checkpoint.
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
