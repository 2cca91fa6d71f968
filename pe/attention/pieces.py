"""Causal attention whose near and far keys have logits of two kinds, as three flash attentions.

    near: i - j < w     far: i - j >= w

Queries and keys are rotated once for each kind. The far part is causal attention of the queries
from w on with keys that lie w before them. The near part is made in blocks of w tokens: a block
with itself is causal, and a block with the one before it is causal once both are read backwards.
The pieces are put together by the logarithms of their sums. No gradient; nothing is approximated,
and no matrix of T x T is made.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

Piece = tuple[Tensor, Tensor]
"""(B, H, T, D) and the logarithm of the sum of exponentials, (B, H, T)."""


def near_and_far(
    near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], v: Tensor, window: int, scale: float
) -> Tensor:
    """(B, H, T, D) queries and keys of each kind, and values, of as many heads -> (B, H, T, D)."""
    length, size = v.shape[2], min(window, v.shape[2])
    blocks = -(-length // size)

    def cut(x: Tensor) -> Tensor:
        """(B, H, T, D) -> (B, H, blocks, size, D)."""
        padded: Tensor = pad(x, (0, 0, 0, blocks * size - length))
        result: Tensor = padded.unflatten(2, (blocks, size))
        return result

    q, k, values = cut(near[0]), cut(near[1]), cut(v)
    own = _blockwise(q, k, values, scale)
    later, earlier, theirs = (x.flip(3) for x in (q[:, :, 1:], k[:, :, :-1], values[:, :, :-1]))
    out, lse = _blockwise(later[..., 1:, :], earlier[..., :-1, :], theirs[..., :-1, :], scale)
    # The last query of a block sees no key of the block before, and no query of the first block.
    before = (
        pad(pad(out, (0, 0, 1, 0)).flip(3), (0, 0, 0, 0, 1, 0)),
        pad(pad(lse, (1, 0), value=-torch.inf).flip(3), (0, 0, 1, 0), value=-torch.inf),
    )
    pieces: list[Piece] = [
        (x.flatten(2, 3)[:, :, :length], sums.flatten(2, 3)[:, :, :length])
        for x, sums in (own, before)
    ]
    if length > size:
        q, k = far
        out, lse = _causal(q[:, :, size:], k[:, :, :-size], v[:, :, :-size], scale)
        pieces.append((pad(out, (0, 0, size, 0)), pad(lse, (size, 0), value=-torch.inf)))
    weights = torch.stack([sums for _, sums in pieces]).softmax(0)
    total = torch.zeros_like(v, dtype=weights.dtype)
    for (x, _), weight in zip(pieces, weights, strict=True):
        total += x * weight[..., None]
    return total.to(v.dtype)


def _blockwise(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Piece:
    """Causal attention of each block, (B, H, blocks, T, D)."""
    if not q.numel():
        return torch.zeros_like(q), q.new_zeros(q.shape[:-1], dtype=torch.float32)
    shape = q.shape[:3]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    out, lse = _causal(q, k, v, scale)
    back = (shape[0], shape[2])
    return out.unflatten(0, back).transpose(1, 2), lse.unflatten(0, back).transpose(1, 2)


def _causal(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Piece:
    flash = (
        torch.ops.aten._scaled_dot_product_flash_attention
        if q.is_cuda
        else torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    )
    q, k, v = (x.contiguous() for x in (q, k, v))
    out, lse, *_ = flash(q, k, v, dropout_p=0.0, is_causal=True, scale=scale)
    return out, lse[..., : q.shape[2]]
