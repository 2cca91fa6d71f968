"""Judge a trained run beyond the context it was trained on, and write evaluation.json."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import torch

from pe._errors import PositionError
from pe.data import TokenData, evaluation_windows, prepare
from pe.evaluation.covers import covers
from pe.evaluation.load import load_model
from pe.evaluation.perplexity import by_position, cell, no_cell, window_losses
from pe.evaluation.retrieval import evaluate_retrieval
from pe.evaluation.start import evaluate_start
from pe.evaluation.temperature import fit_temperature, length_temperature
from pe.model import PEForCausalLM
from pe.runs import SCHEMA_VERSION, Run, RunError
from pe.runs.provenance import now
from pe.training.build import autocast
from pe.training.progress import Progress
from pe.training.recipe import Recipe


def evaluate(run: Run, *, quiet: bool = False) -> dict[str, Any]:
    """Evaluate ``run`` at the lengths of its recipe, unless that is recorded already.

    For a run that began with another run's weights, these are evaluated too (`pe.evaluate_start`).

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
    if recipe.start_from and recipe.start_state == "weights":
        _judge_start(run, quiet)
    with run.lock():
        found = _evaluate(run, record, lengths, Progress(enabled=not quiet))
        run.write_evaluation(found)
    return found


def _judge_start(run: Run, quiet: bool) -> None:
    """Record what the change of encoding did by itself, while the old weights are at hand."""
    try:
        evaluate_start(run, quiet=quiet)
    except RunError as error:  # they are gone: the run itself can be judged all the same
        Progress(enabled=not quiet).show(f"not evaluated before training: {error}", last=True)


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
    tokens_per_batch = 2**17 if model.device.type == "cuda" else 2**13
    judge = _Judge(model, data, recipe, lengths, tokens_per_batch, progress)
    found = {
        "schema": SCHEMA_VERSION,
        "created": now(),
        "lengths": lengths,
        "target_tokens": recipe.target_tokens,
        "windows": len(judge.ends),
        "windows_wanted": recipe.evaluation_windows,
        **judge.measure(),
    }
    if recipe.fit_temperature:
        found["tempered"] = judge.tempered()
    if model.device.type == "cuda":
        torch.cuda.empty_cache()
    return found | {"seconds": round(time.perf_counter() - begun, 2)}


@dataclass
class _Judge:
    """A model, and everything by which it is judged."""

    model: PEForCausalLM
    data: TokenData
    recipe: Recipe
    lengths: list[int]
    tokens_per_batch: int
    progress: Progress

    def __post_init__(self) -> None:
        self.ends = evaluation_windows(
            self.data.test,
            self.lengths[-1],
            self.recipe.target_tokens,
            self.recipe.evaluation_windows,
        )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        return autocast(self.recipe, self.model.device)

    def measure(self) -> dict[str, Any]:
        """Perplexities, loss by position and, where the recipe asks, retrieval."""
        last: dict[str, Any] = {}
        whole: dict[str, Any] = {}
        positions: dict[str, Any] = {"length": None, "edges": [0], "nll": []}
        for length in self.lengths:
            self.progress.show(f"evaluating at {length:,} tokens", last=True)
            try:
                losses = window_losses(
                    self.model, self.data.test, self.ends, length, self.tokens_per_batch,
                    self._autocast,
                )  # fmt: skip
            except PositionError as error:
                last[str(length)] = whole[str(length)] = no_cell(error.reason)
                continue
            last[str(length)] = cell(losses[:, -self.recipe.target_tokens :])
            whole[str(length)] = cell(losses)
            positions = by_position(losses)
        found = {
            "perplexity": last,
            "window_perplexity": whole,
            "loss_by_position": positions,
        }
        if self.recipe.retrieval_samples:
            self.progress.show("looking for hidden numbers", last=True)
            found["retrieval"] = evaluate_retrieval(
                self.model, self.data.load_tokenizer(), self.data.test, self.lengths,
                self.recipe.retrieval_samples, self.tokens_per_batch, self._autocast,
            )  # fmt: skip
        return found

    def tempered(self) -> dict[str, Any]:
        """The same with a temperature fitted on validation text; None where none can be."""
        limit: Any = self.model.model.encodings[0].max_positions
        longer = [
            n for n in self.lengths
            if n > self.recipe.context_length and (limit is None or n <= limit)
        ]  # fmt: skip
        if not longer:
            return {"fit": None, "reason": "no evaluation length is beyond the training context"}
        self.progress.show("fitting a temperature on validation text", last=True)
        fit = fit_temperature(
            self.model, self.data.validation, longer, self.recipe.target_tokens,
            self.tokens_per_batch, self._autocast,
        )  # fmt: skip
        with length_temperature(self.model, fit["value"]):
            return {"fit": fit, "reason": None, **self.measure()}
