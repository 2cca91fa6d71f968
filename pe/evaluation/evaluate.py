"""Judge a trained run beyond the context it was trained on, and write evaluation.json."""

from __future__ import annotations

import time
from typing import Any

import torch

from pe.data import evaluation_windows, prepare
from pe.evaluation.covers import covers
from pe.evaluation.load import load_model
from pe.evaluation.perplexity import by_position, cell, no_cell, window_losses
from pe.evaluation.retrieval import evaluate_retrieval
from pe.runs import SCHEMA_VERSION, Run, RunError
from pe.training.build import autocast
from pe.training.progress import Progress
from pe.training.record import now


def evaluate(run: Run, *, quiet: bool = False) -> dict[str, Any]:
    """Evaluate ``run`` at the lengths of its recipe, unless that is recorded already.

    Returns:
        evaluation.json as recorded.

    Raises:
        RunError: the run is not trained, its checkpoint is not on this machine, or the corpus is no
            longer what it was trained on.
    """
    recipe = run.recipe
    lengths = sorted(recipe.evaluation_lengths)
    known = run.evaluation()
    if known is not None and covers(known, recipe):
        return known
    record = run.read()
    if record["status"] != "complete":
        raise RunError(f"{run.directory} is {record['status']}; train it before evaluating it")
    if not lengths:
        raise ValueError("the recipe has no evaluation_lengths")
    with run.lock():
        found = _evaluate(run, record, lengths, Progress(enabled=not quiet))
        run.write_evaluation(found)
    return found


def _evaluate(
    run: Run, record: dict[str, Any], lengths: list[int], progress: Progress
) -> dict[str, Any]:
    recipe, begun = run.recipe, time.perf_counter()
    data = prepare(recipe.corpus, recipe.vocab_size, recipe.tokenizer)
    if data.fingerprint != record["data"]["fingerprint"]:
        raise RunError(
            f"{run.directory} was trained on data {record['data']['fingerprint']}, and "
            f"{recipe.corpus!r} is now {data.fingerprint}; train it again in another study"
        )
    model = load_model(run)
    ends = evaluation_windows(
        data.test, lengths[-1], recipe.target_tokens, recipe.evaluation_windows
    )
    tokens_per_batch = 2**17 if model.device.type == "cuda" else 2**13
    last: dict[str, Any] = {}
    whole: dict[str, Any] = {}
    positions: dict[str, Any] = {"length": None, "edges": [0], "nll": []}
    for length in lengths:
        progress.show(f"evaluating at {length:,} tokens", last=True)
        try:
            losses = window_losses(
                model, data.test, ends, length, tokens_per_batch,
                lambda: autocast(recipe, model.device),
            )  # fmt: skip
        except ValueError as error:
            last[str(length)] = whole[str(length)] = no_cell(_reason(error))
            continue
        last[str(length)] = cell(losses[:, -recipe.target_tokens :])
        whole[str(length)] = cell(losses)
        positions = by_position(losses)
    retrieval = None
    if recipe.retrieval_samples:
        progress.show("looking for hidden numbers", last=True)
        retrieval = evaluate_retrieval(
            model, data.load_tokenizer(), data.test, lengths, recipe.retrieval_samples,
            tokens_per_batch, lambda: autocast(recipe, model.device),
        )  # fmt: skip
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    found = {
        "schema": SCHEMA_VERSION,
        "created": now(),
        "lengths": lengths,
        "target_tokens": recipe.target_tokens,
        "windows": len(ends),
        "windows_wanted": recipe.evaluation_windows,
        "seconds": round(time.perf_counter() - begun, 2),
        "perplexity": last,
        "window_perplexity": whole,
        "loss_by_position": positions,
    }
    return found if retrieval is None else found | {"retrieval": retrieval}


def _reason(error: ValueError) -> str:
    text = str(error)
    if "longest position" not in text:
        raise error  # another mistake: not something to record and forget
    return text[text.index("longest position") :]
