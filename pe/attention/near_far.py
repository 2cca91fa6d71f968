"""Attention whose near keys have one kind of logit and whose far keys have another, by kernels.

    o = (2^{l_n} o_n + 2^{l_f} o_f) / (2^{l_n} + 2^{l_f})

o_n is attention to the keys at distances below w alone, o_f to those at w and more, and l_n and l_f
are the logarithms, base 2, of the sums that their softmax divides by: the softmax over all keys is
made of the two, as each block of keys is in FlashAttention (arXiv:2205.14135). Query i has the far
keys 0 .. i - w, so without the first w queries and the last w keys far attention is causal
attention, which the kernel of plain attention computes. There is no gradient: the kernels have none
for l.
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
    """An encoding with two kinds of logits: its `rotate` gives those of near keys."""

    neighbor_window: int
    """w: the distance from which keys are far."""

    def far(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, H, T, D), (B, K, T, D): queries and keys whose products are those of far keys."""


class Far(NamedTuple):
    """What `attend_in_two` needs besides the near queries and keys."""

    q: Tensor
    k: Tensor
    window: int


def attend_in_two(q: Tensor, k: Tensor, v: Tensor, scale: float, far: Far) -> Tensor:
    """(B, H, T, E), (B, K, T, E), (B, K, T, D) -> (B, H, T, D) in v's dtype, causal."""
    from pe.attention.kernels.flash import op
    from pe.attention.kernels.flash.launch import ALL_KEYS

    def one(q: Tensor, k: Tensor, v: Tensor, *shown: object) -> tuple[Tensor, Tensor]:
        out, total, _ = op.attend(q, k, v, scale, NONE, None, [], 0, *shown, None)
        return out, total

    length, window = q.shape[2], far.window
    near = spans(KeyRange(window=window), length, q.device)
    out, total = one(q, k, v, *near)
    if length <= window:
        return out
    keys = slice(0, length - window)
    far_q, far_k, far_v = far.q[:, :, window:], far.k[:, :, keys], v[:, :, keys]
    far_out, far_total = one(*(x.contiguous() for x in (far_q, far_k, far_v)), *ALL_KEYS)
    share = torch.sigmoid((far_total - total[:, :, window:]) * math.log(2.0))[..., None]
    joined = torch.lerp(out[:, :, window:].float(), far_out.float(), share)
    return torch.cat((out[:, :, :window], joined.to(out.dtype)), dim=2)
