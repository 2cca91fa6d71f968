"""What a change of encoding does by itself: perplexity before it and after it, before training.

The same windows and targets as in `pe.evaluation.evaluate`, so that three rows can be compared: the
weights a run began with under their own encoding, the same weights under the run's encoding, and
what the run made of them.
"""

from __future__ import annotations

from typing import Any

import torch

from pe import devices
from pe._quiet import quiet_libraries
from pe.data import TokenData, prepare
from pe.evaluation.scorer import Scorer
from pe.model import PEForCausalLM
from pe.runs import Run, RunError, checked
from pe.runs.provenance import now
from pe.training.build import build_config, start_model
from pe.training.progress import Progress
from pe.training.start import check_text, start_of, with_searched_factors


def evaluate_start(
    run: Run, *, quiet: bool = False, data: TokenData | None = None
) -> dict[str, Any]:
    """Evaluate what ``run`` began with, unless that is recorded already.

    Args:
        data: the run's corpus, if it is at hand already.

    Returns:
        The ``conversion`` part of run.json: ``before`` and ``converted``, cells by length.

    Raises:
        RunError: the run began with new weights, or those it began with are not on this
            machine, or the corpus is no longer what they were trained on.
    """
    recipe = checked(run).recipe
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
        raise RunError(f"{run.directory} began with new weights")
    data = data or prepare(
        recipe.corpus, recipe.vocab_size, recipe.tokenizer, separator=recipe.separator
    )
    check_text(data, start.data, start.parent.name, "evaluate where its text is")
    with quiet_libraries():
        before: PEForCausalLM = PEForCausalLM.from_pretrained(start.weights, dtype=torch.float32)
    own = with_searched_factors(recipe, start.parent)
    converted = start_model(start, own, build_config(own, data.vocab_size))
    progress, cells, device = Progress(enabled=not quiet), {}, devices.choose()
    for name, model in (("before", before), ("converted", converted)):
        progress.show(f"evaluating the weights {name}", last=True)
        scorer = Scorer(model.to(device).eval(), data, recipe)
        cells[name] = scorer.perplexities()["perplexity"]
    conversion = {"created": now(), **wanted, "windows": len(scorer.ends), **cells}
    with run.lock():
        run.update(conversion=conversion)
    return conversion
