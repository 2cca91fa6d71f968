"""Attention by definition, in float32: what every fast path is checked against.

    softmax(scale q k^T + bias, over the keys the mask allows) v

and with a sink the softmax is over one more logit, s_h for head h, whose weight goes nowhere.

B batch, H query heads, K key heads, Tq and Tk lengths, E query width, D value width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pe.attention.masks import lower_right_causal


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """(B, H, Tq, E), (B, K, Tk, E), (B, K, Tk, D) -> (B, H, Tq, D) in v's dtype.

    ``mask``, broadcastable to (B, H, Tq, Tk), is True where a query sees a key; None means causal
    with the queries last. ``sink`` is (H,). A query that sees no key gets 0. Memory grows with
    Tq x Tk.
    """
    weights = attention_weights(q, k, scale, bias, mask, sink)
    values = v.to(weights.dtype).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    with torch.autocast(q.device.type, enabled=False):
        return (weights @ values).to(v.dtype)


def attention_weights(
    q: Tensor,
    k: Tensor,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Probabilities (B, H, Tq, Tk) of `dense_attention`, in float32, or float64 as q is.

    A row sums to 1, to less with a sink, and to 0 where a query sees no key.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(wide) @ keys.transpose(-1, -2)) * scale
        if bias is not None:
            logits = logits + bias
        if mask is None:
            mask = lower_right_causal(q.shape[-2], k.shape[-2], q.device)
        # The least number rather than -inf: a row of -inf alone would be NaN, here and backward.
        logits = logits.masked_fill(~mask, torch.finfo(wide).min)
        if sink is not None:
            own = sink.to(wide)[:, None, None].expand(*logits.shape[:-1], 1)
            logits = torch.cat((logits, own), dim=-1)
        weights = logits.softmax(dim=-1)[..., : k.shape[-2]]
        return weights.masked_fill(~mask, 0.0)
