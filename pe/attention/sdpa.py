"""Attention through torch's scaled_dot_product_attention: flash kernels where there is no bias.

A sink and a window are masks here, which torch's flash kernels do not take."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pe.attention.masks import lower_right_causal

SINK_WIDTH = 8
"""Channels that a sink adds: two are needed, and torch's fused kernels want multiples of 8."""


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Same contract as `pe.attention.dense.dense_attention`."""
    if sink is not None:
        q, k, v, bias, mask = _with_sink(q, k, v, scale, bias, mask, sink)
    q_length, k_length, width = q.shape[-2], k.shape[-2], v.shape[-1]
    causal = mask is None and bias is None
    if q_length != k_length:  # a branch: to a compiler lengths are symbols, to torch causal is not
        causal = False
    if mask is None and not causal and (bias is not None or q_length > 1):
        # torch's is_causal aligns the first query with the first key, which is wrong for a cache.
        mask = lower_right_causal(q_length, k_length, q.device)
    out_dtype = v.dtype
    blind = None
    if mask is not None:
        # A query that sees no key gets 0. torch's kernels do not agree on that: some give NaN.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if bias is not None:
        assert mask is not None
        mask = bias.masked_fill(~mask, float("-inf"))
        # torch wants the bias in the queries' type, and in bfloat16 neighbours at a distance of
        # 300 would get the same penalty.
        q, k, v = q.to(bias.dtype), k.to(bias.dtype), v.to(bias.dtype)
    if q.shape[-1] > width and not _takes_two_widths(q):
        v = pad(v, (0, q.shape[-1] - width))
    with torch.autocast(q.device.type, enabled=False):
        out = scaled_dot_product_attention(
            q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1]
        )
    out = out if blind is None else out.masked_fill(blind, 0.0)
    return out[..., :width].to(out_dtype)


def _with_sink(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None,
    mask: Tensor | None,
    sink: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The sink as a key before all others: its logit in `SINK_WIDTH` more channels, its value 0.

    The second channel has what rounding to the queries' type took from the first; the others are 0.
    """
    want = sink / scale
    high = want.detach().to(q.dtype)
    low = (want - high).to(q.dtype)
    channels = pad(torch.stack((high, low), -1), (0, SINK_WIDTH - 2))
    channels = channels[None, :, None].expand(*q.shape[:-1], -1)
    if mask is None:
        mask = lower_right_causal(q.shape[-2], k.shape[-2], q.device)
    # A query that sees no key sees no sink either, and gets 0.
    mask = torch.cat((mask.any(-1, keepdim=True), mask), -1)
    own = torch.cat((k.new_zeros(k.shape[-1]), k.new_ones(SINK_WIDTH)))
    key, k = own.expand(*k.shape[:2], 1, -1), pad(k, (0, SINK_WIDTH))
    bias = None if bias is None else pad(bias.expand(*bias.shape[:-1], k.shape[-2]), (1, 0))
    return torch.cat((q, channels), -1), torch.cat((key, k), -2), pad(v, (0, 0, 1, 0)), bias, mask


def _takes_two_widths(q: Tensor) -> bool:
    """Most flash kernels want one width for all three; cuDNN's, on Hopper and later, do not."""
    if torch.are_deterministic_algorithms_enabled():  # cuDNN's attention is not
        return False
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] > 128:
        return False
    return torch.cuda.get_device_properties(q.device).major >= 9
