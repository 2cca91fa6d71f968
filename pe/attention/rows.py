"""Attention with a bias that only a matrix can express, a block of query rows at a time.

Of the matrix one block is ever there: it is dropped when its rows are done and made again for the
gradient, so memory grows with the length and not with its square. Nothing is approximated; the
price is that the bias is computed twice, and that a compiler sees one call.

Where a window or a chunk hides most keys, a block is computed with those that it sees
(`attend_in_window`). Then time, too, grows with the length alone, and while all blocks together
are small none is made twice.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from pe.attention.sdpa import sdpa_attention
from pe.attention.spans import Bounded

BLOCK = 2**27
"""Entries of a block of rows."""


@torch.compiler.disable  # a compiler would unroll the blocks of all layers
def attend_by_rows(
    bias: Callable[[int, int], Tensor | None],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | None,
    sink: Tensor | None = None,
) -> Tensor:
    """(B, H, Tq, E), (B, K, Tk, E), (B, K, Tk, D) -> (B, H, Tq, D); queries are the last keys.

    ``bias(start, stop)`` is that of the queries from ``start`` to ``stop`` and of all keys that
    the last of them sees, or None. ``mask`` and ``sink`` as in `pe.attention.dense`.
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
"""Entries of all blocks of a window together, up to which they are kept for the gradient."""
FEWEST_ROWS = 64
"""Queries of a block in a window, at least: fewer would cost more calls than they save keys."""
WindowBias = Callable[[slice, slice | Tensor, Tensor], Tensor | None]
"""From queries, keys and the mask (1 or B, 1, q, k) of what they see to their bias."""


@torch.compiler.disable  # how many keys a block has depends on padding and documents
def attend_in_window(
    bias: WindowBias,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    spans: Bounded,
    sink: Tensor | None = None,
) -> Tensor:
    """(B, H, T, E), (B, K, T, E), (B, K, T, D) -> (B, H, T, D), each query with what it sees."""
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
