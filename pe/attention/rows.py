"""Attention with a bias that only a matrix can express, computed for a block of queries at a time.

Only one block of the matrix exists at any moment. It is dropped when its queries are done, and
computed a second time for the gradient, so memory grows with the length and not with its square.
The result is exact. The bias is computed twice, and torch.compile cannot look inside.

If a window or a chunk hides most keys, each block has only the keys that its queries see. Then time
grows with the length as well, and if all blocks together are small, they are kept and not computed
twice.
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
LARGEST_BAND = 2**29
"""The most entries of all blocks of a window together that are kept for the gradient."""
FEWEST_ROWS = 64
"""The fewest queries of a block in a window. With fewer, the number of calls would cost more time
than the smaller number of keys saves."""
BlockBias = Callable[[slice, slice | Tensor, Tensor | None], Tensor | None]
"""A function from the indices of queries, the indices of keys and the mask (1 or B, 1 or H, q, k)
of what these queries see, to their bias, broadcastable to (B, H, q, k), or None. A mask of None is
causal."""


@torch.compiler.disable  # torch.compile would unroll the blocks, and their keys depend on padding
def attend_by_rows(
    bias: BlockBias,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Tensor | Bounded | None,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute attention in blocks of queries; the queries are the last of the keys.

    Args:
        q: (B, H, Tq, E). k: (B, K, Tk, E). v: (B, K, Tk, D).
        mask: as in `pe.attention.dense.dense_attention`, or the spans of a window.
        scale, sink: as in `pe.attention.dense.dense_attention`.

    Returns:
        (B, H, Tq, D).
    """
    batch, heads, length, _ = q.shape
    before = k.shape[-2] - length
    recompute = torch.is_grad_enabled()
    if isinstance(mask, Bounded):
        width = mask.widest()
        size = min(length, max(FEWEST_ROWS, width))
        while size > 1 and batch * heads * size * (size + width) > BLOCK:
            size //= 2
        recompute = recompute and batch * heads * length * (size + width) > LARGEST_BAND
    else:
        size = max(1, BLOCK // (batch * heads * k.shape[-2]))
    blocks = [slice(start, min(start + size, length)) for start in range(0, length, size)]
    keys_of: list[slice | Tensor] = [slice(0, before + block.stop) for block in blocks]
    if isinstance(mask, Bounded):
        keys_of = mask.keys_of(blocks)

    def attend(queries: slice, keys: slice | Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if isinstance(mask, Bounded):
            seen: Tensor | None = mask.block(queries, keys)
        else:
            seen = None if mask is None else mask[..., queries, keys]
        return sdpa_attention(q, k, v, scale, bias=bias(queries, keys, seen), mask=seen, sink=sink)

    pieces = []
    for queries, keys in zip(blocks, keys_of, strict=True):
        inputs = queries, keys, q[:, :, queries], k[:, :, keys], v[:, :, keys]
        if recompute:
            pieces.append(
                checkpoint(attend, *inputs, use_reentrant=False, preserve_rng_state=False)
            )
        else:
            pieces.append(attend(*inputs))
    return torch.cat(pieces, dim=2)
