"""The decoder, its configuration, and the conversion of trained models."""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector while the imports in this block run.

    Imports create a great many objects, nearly all of which live until the process ends. The
    collector went through them many times, which took a fifth of the time of the imports.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


with without_collections():
    from pe.model.config import PEConfig
    from pe.model.decoder import PEForCausalLM, PEModel, PEPreTrainedModel
