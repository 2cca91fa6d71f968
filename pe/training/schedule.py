"""The learning rate as a function of the step t, for S steps of which W are warmup.

warmup   peak (t + 1) / W                                       t < W
cosine   low + (peak - low) (1 + cos(pi (t - W) / (S - W))) / 2  (arXiv:1608.03983)
wsd      peak, then linearly down to low over the last D steps   (arXiv:2404.06395)

wsd stands for warmup, stable, decay. Its rates before the decay do not depend on S, so runs of
several lengths can branch from one run.
"""

from __future__ import annotations

import math

from pe.recipes.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """Return the learning rate of optimizer step ``step``, counted from 0."""
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
