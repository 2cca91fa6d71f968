"""Attention in which near keys and far keys have different logits (Self-Extend), by kernels.

    o = (2^{l_n} o_n + 2^{l_f} o_f) / (2^{l_n} + 2^{l_f})

o_n is attention to keys at distances below w only, and o_f to keys at distances from w on. l_n and
l_f are the base-2 logarithms of the sums by which their softmax divides. The softmax over all keys
follows from the two in the same way as from blocks of keys in FlashAttention (arXiv:2205.14135).
The far keys of query i are 0 .. i - w. So without the first w queries and the last w keys, far
attention is plain causal attention, for which there is a kernel. There is no gradient, because the
kernels have none for l.
"""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pe.attention.spans import spans
from pe.encodings.core.forms import NONE
from pe.encodings.core.key_range import KeyRange


class NearFar(Protocol):
    """An encoding with two kinds of logits; its `rotate` is for near keys."""

    neighbor_window: int
    """w: the distance from which on keys are far."""

    def far(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, T, D) and keys (B, K, T, D), rotated for the logits of far keys."""


class Far(NamedTuple):
    """Queries and keys for the logits of far keys."""

    q: Tensor
    """(B, H, T, D)."""
    k: Tensor
    """(B, K, T, D)."""
    window: int
    """w: the distance from which on keys are far."""


def attend_in_two(q: Tensor, k: Tensor, v: Tensor, scale: float, far: Far) -> Tensor:
    """Compute causal attention with near and far logits.

    Args:
        q: (B, H, T, E) and k: (B, K, T, E), rotated for near keys. v: (B, K, T, D).
        scale: factor of all logits. far: queries and keys for far logits.

    Returns:
        (B, H, T, D) in the type of ``v``.
    """
    from pe.attention.kernels.flash import op
    from pe.attention.kernels.flash.launch import ALL_KEYS

    def attend(q: Tensor, k: Tensor, v: Tensor, *shown: object) -> tuple[Tensor, Tensor]:
        out, lse, _ = op.attend(q, k, v, scale, NONE, None, [], 0, *shown, None)
        return out, lse

    length, window = q.shape[2], far.window
    near = spans(KeyRange(window=window), length, q.device)
    out, lse = attend(q, k, v, *near)
    if length <= window:
        return out
    keys = slice(0, length - window)
    far_q, far_k, far_v = far.q[:, :, window:], far.k[:, :, keys], v[:, :, keys]
    far_out, far_lse = attend(*(x.contiguous() for x in (far_q, far_k, far_v)), *ALL_KEYS)
    share = torch.sigmoid((far_lse - lse[:, :, window:]) * math.log(2.0))[..., None]
    joined = torch.lerp(out[:, :, window:].float(), far_out.float(), share)
    return torch.cat((out[:, :, :window], joined.to(out.dtype)), dim=2)
