"""Evaluate a trained run within and beyond its training context, and write evaluation.json."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from pe import devices
from pe.data import TokenData
from pe.data.needles import DEPTHS
from pe.evaluation.attention import spread_by_length
from pe.evaluation.covers import covers
from pe.evaluation.load import complete_record, load_model
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.scorer import NO_CELL, Log, Scorer, text_of
from pe.evaluation.start import evaluate_start
from pe.evaluation.temperature import fit_temperatures
from pe.runs import SCHEMA_VERSION, Run, RunError, checked
from pe.runs.provenance import code, now
from pe.training.build import check_evaluation, lengths_beyond
from pe.training.progress import Progress
from pe.training.start import check_source


def evaluate(run: Run, *, quiet: bool = False, float32_residual: bool = False) -> dict[str, Any]:
    """Evaluate ``run`` at the lengths of its recipe, unless that is recorded already.

    If the run started from another run's weights, these are evaluated too (`pe.evaluate_start`).

    Args:
        quiet: show no progress.
        float32_residual: keep the residual stream in float32 although matrix products are in
            bfloat16, as transformers' own models do. The record names the precision.

    Returns:
        The content of evaluation.json.

    Raises:
        RunError: the run is not complete, its checkpoint is not on this machine, or the corpus or
            the source of the encoding has changed since the training.
        ValueError: the recipe has no lengths, or the text is too short for them.
    """
    recipe = checked(run).recipe
    check_source(run)
    recorded = run.evaluation()
    if recorded is not None and covers(recorded, recipe, float32_residual):
        return recorded
    complete_record(run, "evaluating")
    progress, data = Progress(enabled=not quiet), text_of(run)
    if recipe.start_from and recipe.start_state == "weights" and recipe.steps:
        try:
            evaluate_start(run, quiet=quiet, data=data)
        except RunError as error:  # the run itself can be evaluated without them
            progress.show(f"the first weights were not evaluated: {error}", last=True)
    with run.lock():
        try:
            evaluation = _evaluate(run, data, progress, float32_residual)
            run.write_evaluation(evaluation)
        except Exception as error:
            run.keep_traceback(error)
            raise
        run.traceback.unlink(missing_ok=True)
    return evaluation


def _evaluate(
    run: Run, data: TokenData, progress: Progress, float32_residual: bool
) -> dict[str, Any]:
    def log(text: str) -> None:
        progress.show(text, last=True)

    began, recipe, model = time.perf_counter(), run.recipe, load_model(run)
    check_evaluation(recipe, data, model)
    scorer = Scorer(model, data, recipe, float32_residual=float32_residual)
    record = {
        "schema": SCHEMA_VERSION,
        "created": now(),
        "code": code(),
        "lengths": scorer.lengths,
        "target_tokens": recipe.target_tokens,
        "windows": len(scorer.ends),
        "windows_wanted": recipe.evaluation_windows,
        "precision": scorer.precision(),
        **_measure(scorer, log),
        "attention": spread_by_length(scorer),
    }
    if recipe.fit_temperature:
        record["tempered"] = _tempered(scorer, log)
    devices.free_memory(model.device)
    return record | {"seconds": round(time.perf_counter() - began, 2)}


def _measure(
    scorer: Scorer, log: Log, temperatures: Mapping[int, float] | None = None
) -> dict[str, Any]:
    """Measure perplexity, loss by position and, if the recipe asks for it, retrieval."""
    parts = scorer.perplexities(temperatures, log)
    recipe = scorer.recipe
    if recipe.retrieval_samples:
        log("looking for hidden numbers")
        count = recipe.retrieval_samples * len(DEPTHS)
        parts |= evaluate_retrieval(scorer, recipe.retrieval_tasks, count, temperatures)
    return parts


def _tempered(scorer: Scorer, log: Log) -> dict[str, Any]:
    """Measure the same with a temperature per length, fitted on validation text of that length.

    In the record, ``fits`` has the fit of each length, and ``fit`` that of the shortest one. A
    length without a fit is not measured, and its perplexity has the reason in place of a value.
    """
    longer = lengths_beyond(scorer.recipe, scorer.model)
    if not longer:
        return {"fit": None, "reason": "no evaluation length is beyond the training context"}
    log("fitting a temperature on validation text")
    fits = fit_temperatures(scorer, longer)
    first = fits[longer[0]]
    record = {
        "fit": None if first["reason"] else first,
        "fits": {str(n): fit for n, fit in fits.items()},
        "reason": first["reason"],
    }
    values = {n: fit["value"] for n, fit in fits.items() if not fit["reason"]}
    measured = [n for n in scorer.lengths if n not in fits or n in values]
    parts: dict[str, Any] = {"perplexity": {}, "window_perplexity": {}}
    if measured:
        parts = _measure(scorer.of(scorer.model, measured), log, values)
    for length, fit in fits.items():
        if fit["reason"]:
            for name in ("perplexity", "window_perplexity"):
                parts[name][str(length)] = NO_CELL | {"reason": fit["reason"]}
    return record | parts
