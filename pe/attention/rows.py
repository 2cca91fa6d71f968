"""Attention with a bias that only a matrix can express, computed for a block of queries at a time.

Only one block of the matrix exists at any moment. It is dropped when its queries are done, and
computed a second time for the gradient, so memory grows with the length and not with its square.
The result is exact. The bias is computed twice, and torch.compile cannot look inside.

If a window or a chunk hides most keys, `attend_in_window` computes each block with the keys that it
sees. Then time grows with the length as well, and if all blocks together are small, they are kept
and not computed twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pe.attention.sdpa import sdpa_attention
from pe.attention.spans import Bounded

BLOCK = 2**27
"""The most entries of a block of the matrix, over batch and heads."""


@torch.compiler.disable  # torch.compile would unroll the blocks of all layers
def attend_by_rows(
    bias: Callable[[int, int], Tensor | None],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute attention in blocks; the queries are the last of the keys.

    Args:
        bias: called with ``start`` and ``stop``; returns the bias of the queries from ``start`` to
            ``stop`` and of all keys up to the last of these queries, or None.
        q, k, v, scale, mask, sink: as in `pe.attention.dense.dense_attention`.

    Returns:
        (B, H, Tq, D).
    """
    batch, heads, length, _ = q.shape
    before = k.shape[-2] - length
    size = max(1, BLOCK // (batch * heads * k.shape[-2]))

    def block(start: int, stop: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        allowed = mask if mask is None else mask[..., start:stop, : before + stop]
        return sdpa_attention(q, k, v, scale, bias=bias(start, stop), mask=allowed, sink=sink)

    pieces = []
    for start in range(0, length, size):
        stop = min(start + size, length)
        seen = slice(0, before + stop)
        inputs = q[:, :, start:stop], k[:, :, seen], v[:, :, seen]
        if torch.is_grad_enabled():
            piece = checkpoint(
                block, start, stop, *inputs, use_reentrant=False, preserve_rng_state=False
            )
        else:
            piece = block(start, stop, *inputs)
        pieces.append(piece)
    return torch.cat(pieces, dim=2)


LARGEST_BAND = 2**29
"""The most entries of all blocks of a window together that are kept for the gradient."""
FEWEST_ROWS = 64
"""The fewest queries of a block in a window. With fewer, the number of calls would cost more time
than the smaller number of keys saves."""
WindowBias = Callable[[slice, slice | Tensor, Tensor], Tensor | None]
"""A function from the indices of queries, the indices of keys and the mask (1 or B, 1, q, k) of
what these queries see, to their bias, broadcastable to (B, H, q, k), or None."""


@torch.compiler.disable  # the number of keys of a block depends on padding and documents
def attend_in_window(
    bias: WindowBias,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    spans: Bounded,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute attention in blocks of queries, each with the keys that it sees.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). spans: which keys each query sees.
        scale, sink: as in `pe.attention.dense.dense_attention`.

    Returns:
        (B, H, T, D).
    """
    batch, heads, length, _ = q.shape
    width = spans.widest()
    size = min(length, max(FEWEST_ROWS, width))
    while size > 1 and batch * heads * size * (size + width) > BLOCK:
        size //= 2
    recompute = torch.is_grad_enabled() and batch * heads * length * (size + width) > LARGEST_BAND

    def block(queries: slice, keys: slice | Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = spans.block(queries, keys)
        return sdpa_attention(q, k, v, scale, bias=bias(queries, keys, seen), mask=seen, sink=sink)

    blocks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    pieces = []
    for queries, keys in zip(blocks, spans.keys_of(blocks), strict=True):
        inputs = q[:, :, queries], k[:, :, keys], v[:, :, keys]
        if recompute:
            piece = checkpoint(
                block, queries, keys, *inputs, use_reentrant=False, preserve_rng_state=False
            )
        else:
            piece = block(queries, keys, *inputs)
        pieces.append(piece)
    return torch.cat(pieces, dim=2)
