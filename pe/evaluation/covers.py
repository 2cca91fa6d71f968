"""Decide whether a recorded evaluation is what a recipe asks for. This module imports no torch."""

from __future__ import annotations

from typing import Any

from pe.data.needles import DEPTHS
from pe.recipes.recipe import Recipe


def covers(evaluation: dict[str, Any], recipe: Recipe, float32_residual: bool = False) -> bool:
    """Return whether ``evaluation`` contains what ``recipe`` asks for.

    It must have the same lengths, targets and windows, at least as many prompts, and a fitted
    temperature if the recipe asks for one. Its precision does not matter, unless
    ``float32_residual`` demands a residual stream in float32.
    """
    samples = recipe.retrieval_samples
    if samples and recipe.retrieval_tasks:
        needles = evaluation.get("needles") or {"count": 0, "tasks": {}}
        has_tasks = set(recipe.retrieval_tasks) <= set(needles["tasks"])
        has_prompts = has_tasks and needles["count"] >= samples * len(DEPTHS)
    else:
        has_prompts = (evaluation.get("retrieval") or {"samples": 0})["samples"] >= samples
    windows = evaluation.get("windows_wanted", recipe.evaluation_windows)
    residual = evaluation.get("precision", {}).get("residual")
    return bool(
        evaluation["lengths"] == sorted(recipe.evaluation_lengths)
        and evaluation["target_tokens"] == recipe.target_tokens
        and windows == recipe.evaluation_windows
        and has_prompts
        and ("tempered" in evaluation or not recipe.fit_temperature)
        and (not float32_residual or residual == "float32")
    )
