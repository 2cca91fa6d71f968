"""The trial of somebody else's model that pretrained.ipynb makes."""

from __future__ import annotations

from pe.notebooks.parameters.common import (
    Count,
    Options,
    Positive,
    Switch,
    Whole,
    Words,
    launcher,
    refuse_strange_study,
    whole_numbers_in,
)
from pe.pretrained.configure import pretrained_run
from pe.pretrained.record import PretrainedRun


@launcher
def configure_pretrained(
    model: str | None = None,
    pe: str = "yarn",
    factor: Positive | None = None,
    pe_options: Options | None = None,
    corpus: str = "stdlib",
    lengths: Words | None = None,
    windows: Count | None = None,
    target_tokens: Count = 256,
    prompts: Whole = 11,
    steps: Whole = 0,
    context_length: Count | None = None,
    batch_size: Count = 8,
    learning_rate: Positive = 1e-4,
    seed: Whole = 0,
    compiled: Switch | None = None,
    study: str = "pretrained",
) -> PretrainedRun:
    """Return the folder and settings of a trial of somebody else's model. Writes nothing.

    Raises:
        ValueError: the model cannot be explained (`pe.explain` says why), an unknown encoding or
            option, or lengths that are too short.
    """
    refuse_strange_study(study)
    run = pretrained_run(
        model=model, pe=pe, factor=factor, pe_options=pe_options, corpus=corpus,
        lengths=whole_numbers_in(lengths, "lengths"), windows=windows,
        target_tokens=target_tokens, prompts=prompts, steps=steps, context_length=context_length,
        batch_size=batch_size, learning_rate=learning_rate, seed=seed, study=study,
    )  # fmt: skip
    if compiled is not None:
        run.compile = "on" if compiled else "off"
    return run
