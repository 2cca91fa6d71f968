"""Loss on fixed windows of the validation split."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from pe.data import Batches
from pe.data.batches import Batch
from pe.model.loss import IGNORE
from pe.model.rng import same_draws

BATCHES = 8


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    batches: Batches,
    micro: int,
    inputs: Callable[[Batch, slice], dict[str, Tensor]],
    precision: Callable[[], contextlib.AbstractContextManager[Any]],
) -> float:
    """Mean loss of the first batches, ``micro`` windows at a time; the model is left training."""
    model.eval()
    total, count = 0.0, 0
    for index in range(max(1, min(BATCHES, batches.windows // batches.batch_size))):
        batch = batches.at(index)
        for start in range(0, batches.batch_size, micro):
            given = inputs(batch, slice(start, start + micro))
            with precision(), same_draws(given["shift_labels"].device):
                total += float(model(**given, num_items_in_batch=1).loss)
            count += int((given["shift_labels"] != IGNORE).sum())
    model.train()
    return total / count
