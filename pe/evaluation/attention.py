"""Attention probabilities of one sequence, and how widely they are spread over the keys.

    entropy of a query  =  -sum_j p_j log p_j        nats; log(n) for equal weights of n keys

In long contexts attention may spread over ever more keys ("dispersion"; see Scalable-Softmax,
arXiv:2501.19399). If the entropy of a head grows with the position while answers get worse, the
head no longer finds its keys. `spread_by_length` records this for a trained run in evaluation.json,
and the run's page shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pe._errors import PositionError
from pe.evaluation.scorer import Scorer, no_value
from pe.model import PEForCausalLM

WINDOWS = 4
"""The most test windows whose attention is measured."""
QUERIES = 64
"""How many of the last tokens of a window are queries; they are the same at every length."""
LOGITS = {"cpu": 2**26, "cuda": 2**29}
"""The most logits of a layer, heads x T x T, by device. Longer windows are left out."""


def spread_by_length(scorer: Scorer) -> dict[str, Any]:
    """Return the entry ``attention`` of evaluation.json: the mean entropy per head and length.

    The queries are the last `QUERIES` tokens, or as many as the shortest length has, of the first
    `WINDOWS` windows; they are the same at each length. Each window is computed by itself, with the
    dense backend.
    """
    config, device = scorer.model.config, scorer.model.device
    most = LOGITS.get(device.type, LOGITS["cpu"])
    ends, queries = scorer.ends[:WINDOWS], min(QUERIES, scorer.lengths[0])
    lengths: dict[str, Any] = {}
    for length in scorer.lengths:
        if config.num_attention_heads * length**2 > most:
            reason = f"more than {most:,} logits per layer: not computed on this device"
            lengths[str(length)] = {"entropy": None, "reason": reason}
            continue
        try:
            means = [_spread_of_window(scorer, end, length, queries) for end in ends]
        except PositionError as error:
            lengths[str(length)] = {"entropy": None, "reason": no_value(error)}
            continue
        by_head = torch.stack(means).mean(dim=0)  # (layers, heads)
        if not by_head.isfinite().all():
            lengths[str(length)] = {"entropy": None, "reason": "no value: it is not finite"}
            continue
        rounded = [[round(value, 4) for value in layer] for layer in by_head.tolist()]
        lengths[str(length)] = {"entropy": rounded, "reason": None}
    return {"queries": queries, "windows": len(ends), "lengths": lengths}


def _spread_of_window(scorer: Scorer, end: int, length: int, queries: int) -> Tensor:
    """Return the mean entropy of the last queries of a window in nats, (layers, heads)."""
    tokens = np.asarray(scorer.split.tokens[end - length - 1 : end], dtype=np.int64)[None]
    spreads: list[Tensor] = []
    with _collecting_entropies(scorer.model, spreads, queries):
        scorer.apply(tokens, lambda hidden, some: hidden[:, -1:, :1].float())
    return torch.stack(spreads)


@contextmanager
def _collecting_entropies(
    model: PEForCausalLM, spreads: list[Tensor], queries: int
) -> Iterator[None]:
    """In this block every layer appends the entropies of its heads, (heads,), to ``spreads``.

    The probabilities of a layer are dropped before the next layer computes its own.
    """

    def ask(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"output_attentions": True}

    def read(module: nn.Module, args: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> Any:
        out, weights = output
        spreads.append(entropies(weights[0, :, -queries:].float()).mean(dim=-1).cpu())
        return out, None

    hooks: list[Any] = [model.model.register_forward_pre_hook(ask, with_kwargs=True)]
    for layer in model.model.layers:
        hooks.append(layer.attention.register_forward_hook(read))  # type: ignore[union-attr]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def attention_maps(model: PEForCausalLM, tokens: Sequence[int] | Tensor) -> Tensor:
    """Return the attention probabilities of every head, computed with the dense backend.

    Args:
        tokens: (T,) token ids of one sequence. Memory grows with T squared.

    Returns:
        (layers, heads, T, T) in float32 on the CPU; rows are queries. A row sums to 1, or to less
        if the encoding has a sink.

    Raises:
        ValueError: ``tokens`` has another shape.
        PositionError: the encoding has fewer than T positions.
    """
    ids = torch.as_tensor(tokens)
    if ids.dim() != 1 or not len(ids):
        raise ValueError(f"tokens: expected one sequence, (T,), got shape {tuple(ids.shape)}")
    ids = ids.to(next(model.parameters()).device)[None]
    out = model(input_ids=ids, output_attentions=True, use_cache=False)
    return torch.stack([layer[0].float().cpu() for layer in out.attentions])


def entropies(weights: Tensor) -> Tensor:
    """Return the entropy in nats of each row of probabilities, (..., T, T) -> (..., T)."""
    spread: Tensor = torch.special.entr(weights).sum(dim=-1)
    return spread
