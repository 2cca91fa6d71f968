"""Measure what a change of encoding does by itself, before any training.

A run that starts from another run's weights is evaluated three times on the same windows and
targets: its first weights under their own encoding, the same weights under the run's encoding (both
here), and the weights at its end (`pe.evaluation.evaluate`).
"""

from __future__ import annotations

from typing import Any

import torch

from pe import devices
from pe._quiet import quiet_libraries
from pe.data import TokenData
from pe.evaluation.scorer import Scorer
from pe.model import PEForCausalLM
from pe.runs import Run, RunError, checked
from pe.runs.provenance import now
from pe.training.build import start_model
from pe.training.progress import Progress
from pe.training.start import check_text, start_of, text_for, with_searched_factors


def evaluate_start(
    run: Run, *, quiet: bool = False, data: TokenData | None = None
) -> dict[str, Any]:
    """Evaluate the weights from which ``run`` started, unless that is recorded already.

    Args:
        quiet: show no progress.
        data: the run's corpus, if the caller has prepared it.

    Returns:
        The entry ``conversion`` of run.json: the perplexities ``before`` and ``converted`` by
        length (`pe.evaluation.scorer.cell`).

    Raises:
        RunError: the run started from new weights, the weights from which it started are not on
            this machine, or the text is not the one on which they were trained.
    """
    recipe = checked(run).recipe
    lengths = sorted(recipe.evaluation_lengths)
    wanted = {
        "lengths": lengths,
        "target_tokens": recipe.target_tokens,
        "windows_wanted": recipe.evaluation_windows,
    }
    recorded: dict[str, Any] | None = run.read().get("conversion")
    if recorded is not None and all(recorded[key] == value for key, value in wanted.items()):
        return recorded
    start = start_of(recipe, run.directory.parent)
    if start is None:
        raise RunError(
            f"{run.directory} started from new weights, so no encoding was changed: only a run "
            "with start_from can be evaluated before its training"
        )
    data = data or text_for(recipe)
    check_text(data, start.data, start.parent.name, "evaluate on a machine that has its text")
    with quiet_libraries():
        before: PEForCausalLM = PEForCausalLM.from_pretrained(start.weights, dtype=torch.float32)
    recipe = with_searched_factors(recipe, start.parent)
    converted = start_model(start, recipe)
    progress, cells, device = Progress(enabled=not quiet), {}, devices.choose()
    for name, model in (("before", before), ("converted", converted)):
        progress.show(f"evaluating the weights {name}", last=True)
        scorer = Scorer(model.to(device).eval(), data, recipe)
        cells[name] = scorer.perplexities()["perplexity"]
    conversion = {"created": now(), **wanted, "windows": len(scorer.ends), **cells}
    with run.lock():
        run.update(conversion=conversion)
    return conversion
