"""What a change of encoding does by itself: perplexity before it and after it, before training.

The same windows and targets as in `pe.evaluation.evaluate`, so that three rows can be compared: the
weights a run began with under their own encoding, the same weights under the run's encoding, and
what the run made of them.
"""

from __future__ import annotations

from typing import Any

import torch

from pe._errors import PositionError
from pe._quiet import quiet_libraries
from pe.data import evaluation_windows, prepare
from pe.evaluation.perplexity import cell, no_cell, window_losses
from pe.model import PEForCausalLM
from pe.runs import Run, RunError
from pe.runs.provenance import now
from pe.training.build import autocast, build_config, start_model
from pe.training.progress import Progress
from pe.training.start import start_of


def evaluate_start(run: Run, *, quiet: bool = False) -> dict[str, Any]:
    """Evaluate what ``run`` began with, unless that is recorded already.

    Returns:
        The ``conversion`` part of run.json: ``before`` and ``converted``, cells by length.

    Raises:
        RunError: the run began with weights of its own, or those it began with are not on this
            machine, or the corpus is no longer what they were trained on.
    """
    recipe = run.recipe
    lengths = sorted(recipe.evaluation_lengths)
    wanted = {
        "lengths": lengths,
        "target_tokens": recipe.target_tokens,
        "windows_wanted": recipe.evaluation_windows,
    }
    known: dict[str, Any] | None = run.read().get("conversion")
    if known is not None and all(known[key] == value for key, value in wanted.items()):
        return known
    start = start_of(recipe, run.directory.parent)
    if start is None:
        raise RunError(f"{run.directory} began with weights of its own")
    data = prepare(recipe.corpus, recipe.vocab_size, recipe.tokenizer)
    if data.fingerprint != start.fingerprint:
        raise RunError(
            f"{start.parent.name} was trained on data {start.fingerprint}, and "
            f"{recipe.corpus!r} is now {data.fingerprint}"
        )
    ends = evaluation_windows(
        data.test, lengths[-1], recipe.target_tokens, recipe.evaluation_windows
    )
    with quiet_libraries():
        before: PEForCausalLM = PEForCausalLM.from_pretrained(start.weights, dtype=torch.float32)
    converted = start_model(start, recipe, build_config(recipe, data.vocab_size))
    progress, found = Progress(enabled=not quiet), {}
    for name, model in (("before", before), ("converted", converted)):
        progress.show(f"evaluating the weights {name}", last=True)
        found[name] = _perplexities(run, model, data.test, ends, lengths)
    conversion = {"created": now(), **wanted, "windows": len(ends), **found}
    with run.lock():
        run.update(conversion=conversion)
    return conversion


def _perplexities(
    run: Run, model: PEForCausalLM, split: Any, ends: Any, lengths: list[int]
) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).eval()
    cells = {}
    for length in lengths:
        try:
            losses = window_losses(
                model, split, ends, length, 2**17 if device.type == "cuda" else 2**13,
                lambda: autocast(run.recipe, device),
            )  # fmt: skip
            cells[str(length)] = cell(losses[:, -run.recipe.target_tokens :])
        except PositionError as error:
            cells[str(length)] = no_cell(error.reason)
    return cells
