"""Attention by its definition, in float32, with which every faster backend is compared.

    softmax(scale q k^T + bias, over the keys that the mask allows) v

A sink adds one more logit to the softmax, s_h for head h, whose weight is multiplied with no value.

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
    """Compute attention; memory grows with Tq x Tk.

    Args:
        q: (B, H, Tq, E). k: (B, K, Tk, E). v: (B, K, Tk, D). K divides H.
        scale: factor of the logits. bias: is added to them, broadcastable to (B, H, Tq, Tk).
        mask: True where a query sees a key, broadcastable to (B, H, Tq, Tk). None: causal, and the
            queries are the last of the keys.
        sink: (H,), a further logit per head.

    Returns:
        (B, H, Tq, D) in the type of ``v``. A query that sees no key gets 0.
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
    """Return the probabilities (B, H, Tq, Tk) of `dense_attention`.

    They are in float64 if ``q`` is, and otherwise in float32. A row sums to 1, to less with a sink,
    and to 0 if the query sees no key.
    """
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys = k.to(wide).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    with torch.autocast(q.device.type, enabled=False):
        logits = (q.to(wide) @ keys.transpose(-1, -2)) * scale
        if bias is not None:
            logits = logits + bias
        if mask is None:
            mask = lower_right_causal(q.shape[-2], k.shape[-2], q.device)
        # The smallest number and not -inf, because a row of -inf alone gives NaN, forward and
        # backward.
        logits = logits.masked_fill(~mask, torch.finfo(wide).min)
        if sink is not None:
            sinks = sink.to(wide)[:, None, None].expand(*logits.shape[:-1], 1)
            logits = torch.cat((logits, sinks), dim=-1)
        weights = logits.softmax(dim=-1)[..., : k.shape[-2]]
        return weights.masked_fill(~mask, 0.0)
