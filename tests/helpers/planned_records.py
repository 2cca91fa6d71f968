"""Made-up records of planned runs, with hidden numbers and a fitted temperature where asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import book_records
import numpy as np

from pe.runs import Run
from pe.study.plan import load_plan
from pe.study.planned import Planned


def carry_out(root: Path, study: str, labels: list[str] | None = None) -> dict[str, Run]:
    """Write a record for each planned run of the first seed, or for those named, by label."""
    plan = [p for p in load_plan(study) if labels is None or p.label in labels]
    plan = [p for p in plan if p.recipe.seed == plan[0].recipe.seed]
    return {p.label: write(root, study, p, place) for place, p in enumerate(plan)}


def write(root: Path, study: str, planned: Planned, place: int = 0) -> Run:
    """Write one record. Its losses rise with its place."""
    recipe = planned.recipe
    run = Run(root / study / planned.name)
    tokens = recipe.steps * recipe.batch_size * recipe.context_length
    record = book_records.record(
        study, recipe.pe, recipe.seed, run=planned.name, recipe=recipe.to_dict(),
        config_hash=recipe.config_hash(),
    )  # fmt: skip
    loss = 3.0 + 0.01 * place
    record["training"] |= {"steps": recipe.steps, "tokens": tokens, "validation_loss": loss}
    if not recipe.steps:
        record["training"] |= {"final_loss": None, "tokens_per_second": None}
    if recipe.start_from:
        where, _, name = recipe.start_from.rpartition("/")
        record["parent"] = {
            "study": where or study, "run": name, "config_hash": name[-8:],
            "step": recipe.start_step, "stream_step": recipe.start_step,
            "tokens": recipe.start_step * recipe.batch_size * recipe.context_length,
        }  # fmt: skip
    run.write(record)
    measured = _measures(planned, loss, 0.0)
    evaluation = book_records.evaluation(recipe.pe) | measured
    evaluation["lengths"] = sorted(recipe.evaluation_lengths)
    if recipe.fit_temperature:
        fit = {"value": 0.1, "nll": 3.0, "nll_without": 3.1, "lengths": [2048], "windows": 2}
        evaluation["tempered"] = {"fit": fit | {"trials": []}, "reason": None}
        evaluation["tempered"] |= _measures(planned, loss, 0.3)
    run.write_evaluation(evaluation)
    (run.directory / "metrics.jsonl").write_text(f'{{"step": 1, "validation_loss": {loss}}}\n')
    return run


def _measures(planned: Planned, loss: float, gain: float) -> dict[str, Any]:
    """Return losses that grow and answers that get fewer beyond the training length."""
    recipe, noise = planned.recipe, np.random.default_rng(len(planned.label))
    perplexity, count = {}, recipe.retrieval_samples * 11
    tasks: dict[str, dict[str, Any]] = {task: {} for task in recipe.retrieval_tasks}
    for length in sorted(recipe.evaluation_lengths):
        beyond = max(math.log2(length / recipe.context_length), 0.0)
        windows = loss + (0.9 - gain) * beyond + 0.01 * noise.standard_normal(8)
        nll = float(windows.mean())
        perplexity[str(length)] = {
            "value": math.exp(nll), "nll": nll, "window_nll": windows.tolist(), "reason": None,
        }  # fmt: skip
        for cells in tasks.values():
            hits = noise.random(count) < 0.9 / 2.5**beyond + gain * 0.1
            cells[str(length)] = {
                "prompts": "".join(str(int(hit)) for hit in hits), "reason": None,
                "numbers": float(hits.mean()), "digits": float(hits.mean()),
                "controls": {"removed": 0, "another": 0},
            }  # fmt: skip
    edges = np.linspace(0, max(recipe.evaluation_lengths), 17).astype(int).tolist()
    values = list(perplexity.values())
    curve = [float(values[min(i // 4, len(values) - 1)]["nll"]) for i in range(16)]
    found = {
        "perplexity": perplexity, "window_perplexity": perplexity,
        "loss_by_position": {"length": edges[-1], "edges": edges, "nll": curve},
    }  # fmt: skip
    if tasks:
        found["needles"] = {"count": count, "seed": 20_240_404, "digits": 7, "tasks": tasks}
    return found
