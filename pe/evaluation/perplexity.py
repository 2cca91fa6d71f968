"""Perplexity by context length, on the same target tokens.

    perplexity(L) = exp( - mean over windows w and the last K targets t of log p(t | L tokens) )

Every window lies inside one document. Its last K targets are scored with L inputs in
front of and among them, L from 1 to 16 times the training context, so the numbers differ by context
alone. Means weigh each token the same. No start token is put in front: windows begin inside a
document, as most training windows do.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from pe.data import Split
from pe.model import PEForCausalLM
from pe.model.loss import token_losses
from pe.model.rng import same_draws

POSITION_BINS = 32
Context = Callable[[], contextlib.AbstractContextManager[Any]]


@torch.no_grad()
def window_losses(
    model: PEForCausalLM,
    split: Split,
    ends: Sequence[int],
    length: int,
    tokens_per_batch: int,
    autocast: Context = contextlib.nullcontext,
) -> np.ndarray:
    """Loss of every target of every window: float64 (windows, length), nats.

    Where positions are random, all windows get the same ones, however many run at once.
    A window with end e has inputs tokens[e-length-1 : e-1] and targets tokens[e-length : e].

    Raises:
        PositionError: the encoding has fewer positions.
    """
    device = model.device
    rows = max(1, tokens_per_batch // length)
    found = []
    for start in range(0, len(ends), rows):
        text = np.stack(
            [np.asarray(split.tokens[e - length - 1 : e], dtype=np.int64)
             for e in ends[start : start + rows]]
        )  # fmt: skip
        tokens = torch.from_numpy(text).to(device)
        with autocast(), same_draws(device):
            out = model.model(input_ids=tokens[:, :-1], use_cache=False)
            losses = _losses(model, out.last_hidden_state, tokens[:, 1:])
        found.append(losses.cpu().double().numpy())
    return np.concatenate(found)


def _losses(model: PEForCausalLM, hidden: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """(B, T) losses; logits are made for a few thousand tokens at a time."""
    flat, wanted = hidden.flatten(0, 1), targets.reshape(-1)
    parts = [
        token_losses(h, model.lm_head.weight, t)
        for h, t in zip(torch.split(flat, 4096), torch.split(wanted, 4096), strict=True)
    ]
    return torch.cat(parts).view(targets.shape)


def cell(losses: np.ndarray) -> dict[str, Any]:
    """Record of one length from (windows, tokens) losses."""
    nll = float(losses.mean())
    per_window = [round(float(x), 6) for x in losses.mean(axis=1)]
    return {
        # A model far beyond its context can reach losses whose exponential is no float.
        "value": round(math.exp(nll), 4) if nll < 700 else None,
        "nll": round(nll, 6),
        "window_nll": per_window,
        "reason": None if nll < 700 else "the perplexity is too large for a number",
    }


def no_cell(reason: str) -> dict[str, Any]:
    """Record of a length at which there is no value."""
    return {"value": None, "nll": None, "window_nll": None, "reason": f"no value: {reason}"}


def by_position(losses: np.ndarray, bins: int = POSITION_BINS) -> dict[str, Any]:
    """Mean loss in equal bins of positions, from (windows, length) losses."""
    length = losses.shape[1]
    bins = min(bins, length)  # no empty ones
    edges = [round(i * length / bins) for i in range(bins + 1)]
    means = losses.mean(axis=0)
    nll = [round(float(means[a:b].mean()), 6) for a, b in itertools.pairwise(edges)]
    return {"length": length, "edges": edges, "nll": nll}
