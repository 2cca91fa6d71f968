"""Estimate the memory and the time of a training step before it begins. Imports no torch.

The factors were fitted to steps of NoPE, RoPE, FIRE and RoPE + ALiBi on a CPU, with width 64 to
1,024. The estimate is for whoever asks for sizes that are far too large: a machine without memory
ends the process, and Python cannot be interrupted in the middle of a step.
"""

from __future__ import annotations

from typing import NamedTuple

from pe.tasks.core.base import Task
from pe.tasks.measure.record import Settings

ATTENTION = 2**31
"""The most attention weights of a layer at a time. More are computed in groups of models."""
STATE_NUMBERS = 11
"""Numbers per parameter: models as they are drawn and stacked, moments, gradients and updates."""
WIDTH_NUMBERS, FEEDFORWARD_NUMBERS, ATTENTION_NUMBERS = 12, 6, 7
"""Numbers that a layer keeps for the backward pass, per token and channel of the width, per token
and channel of the feed-forward block, and per attention weight (half of these for a bias)."""
OPERATIONS_PER_SECOND = {"cpu": 1e10, "mps": 1e12, "cuda": 1e13}
"""Assumed floating-point operations per second; on a CPU per thread."""


class StepCost(NamedTuple):
    """The cost of one training step of all models of an encoding."""

    gib: float
    """Memory in GiB."""
    operations: float
    """Floating-point operations, forward and backward."""

    def seconds(self, device: str, threads: int = 1) -> float:
        """Estimate the time on a type of device; ``threads`` counts on a CPU only."""
        return self.operations / OPERATIONS_PER_SECOND[device] / (threads if device == "cpu" else 1)


def step_cost(made: Task, sizes: Settings, models: int) -> StepCost:
    """Estimate a training step of ``models`` models on a task."""
    tokens, layers, width = made.longest("train"), sizes.layers, sizes.width
    block = 4 * width**2 + 3 * width * sizes.feedforward
    parameters = made.vocab_size * width + layers * block
    weights = sizes.batch_size * sizes.heads * tokens**2  # of a layer of one model
    together = min(models, max(1, ATTENTION // weights))
    per_token = WIDTH_NUMBERS * width + FEEDFORWARD_NUMBERS * sizes.feedforward
    kept = sizes.batch_size * tokens * per_token + ATTENTION_NUMBERS * weights
    numbers = STATE_NUMBERS * models * parameters + together * layers * kept
    products = 6 * parameters + 12 * layers * tokens * width
    return StepCost(4 * numbers / 2**30, float(models * sizes.batch_size * tokens * products))


def refuse_too_large(made: Task, sizes: Settings, models: int, gib: float) -> None:
    """Raise ValueError if a step is expected to need more than ``gib`` GiB of memory."""
    cost = step_cost(made, sizes, models)
    if cost.gib > gib:
        raise ValueError(
            f"a step of {models:,} models needs about {cost.gib:,.0f} GiB of memory, and there are "
            f"{gib:,.0f}; choose a smaller width ({sizes.width:,}), batch_size "
            f"({sizes.batch_size:,}) or number of layers ({sizes.layers:,}), or fewer seeds and "
            "rates"
        )
