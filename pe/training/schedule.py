"""The learning rate, a function of the step alone: t of S steps, W of them warmup.

warmup   peak (t + 1) / W                                       t < W
cosine   low + (peak - low) (1 + cos(pi (t - W) / (S - W))) / 2
wsd      peak, then linearly down to low over the last D steps   (arXiv:2404.06395)
"""

from __future__ import annotations

import math

from pe.recipes.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rate of optimizer step ``step``, counted from 0."""
    peak, low = recipe.learning_rate, recipe.min_learning_rate
    if step < recipe.warmup_steps:
        return peak * (step + 1) / recipe.warmup_steps
    if recipe.schedule == "cosine":
        done = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
        return low + (peak - low) * (1 + math.cos(math.pi * done)) / 2
    left = recipe.steps - step
    if left > recipe.decay_steps:
        return peak
    return low + (peak - low) * left / (recipe.decay_steps + 1)
