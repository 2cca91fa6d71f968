"""Whether a recorded evaluation is the one that a recipe asks for. Imports no torch."""

from __future__ import annotations

from typing import Any

from pe.data.needles import DEPTHS
from pe.recipes.recipe import Recipe


def covers(known: dict[str, Any], recipe: Recipe, float32_residual: bool = False) -> bool:
    """Same lengths, targets and windows, and at least as many prompts, a temperature if asked.

    In any precision, unless ``float32_residual`` asks for that of the residual stream.
    """
    retrieval = known.get("retrieval") or {"samples": 0}
    asked = recipe.retrieval_samples
    if asked and recipe.retrieval_tasks:
        needles = known.get("needles") or {"count": 0, "tasks": {}}
        prompted = needles["count"] >= asked * len(DEPTHS) and set(recipe.retrieval_tasks) <= set(
            needles["tasks"]
        )
    else:
        prompted = retrieval["samples"] >= asked
    return bool(
        known["lengths"] == sorted(recipe.evaluation_lengths)
        and known["target_tokens"] == recipe.target_tokens
        and known.get("windows_wanted", recipe.evaluation_windows) == recipe.evaluation_windows
        and prompted
        and ("tempered" in known or not recipe.fit_temperature)
        and (not float32_residual or known.get("precision", {}).get("residual") == "float32")
    )
