"""Attention by torch's scaled_dot_product_attention.

Without bias, window and sink, torch uses its flash kernels. A bias and a window are a mask in
torch's sense, and a sink is one more key with a mask, which those kernels do not take.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from pe.attention.masks import lower_right_causal

SINK_WIDTH = 8
"""The number of channels that a sink adds. Two are needed, but torch's fused kernels need multiples
of 8."""


def sdpa_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    sink: Tensor | None = None,
) -> Tensor:
    """Compute attention; arguments and result are those of `pe.attention.dense.dense_attention`."""
    if sink is not None:
        q, k, v, bias, mask = _with_sink(q, k, v, scale, bias, mask, sink)
    q_length, k_length, width = q.shape[-2], k.shape[-2], v.shape[-1]
    causal = mask is None and bias is None
    if q_length != k_length:  # a branch, because is_causal must be a bool under torch.compile too
        causal = False
    if mask is None and not causal and (bias is not None or q_length > 1):
        # torch's is_causal aligns the first query with the first key, which is wrong with a cache.
        mask = lower_right_causal(q_length, k_length, q.device)
    out_dtype = v.dtype
    blind = None
    if mask is not None:
        # A query that sees no key gets 0. Some of torch's kernels would give NaN.
        blind = ~mask.any(-1, keepdim=True)
        mask = mask | blind
    if bias is not None:
        assert mask is not None
        # torch needs the bias in the type of the queries. In bfloat16 a linear bias would be the
        # same at distances of 300 and 301, so the narrower of the two is converted.
        wide = torch.promote_types(q.dtype, bias.dtype)
        mask = bias.to(wide).masked_fill(~mask, float("-inf"))
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
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
    """Return the arguments of attention in which the sink is one more key, before all others.

    The key's value is 0. Its logit comes from `SINK_WIDTH` further channels, in which the key is 1
    and all other keys are 0. The first of these channels of a query is the sink's logit, rounded to
    the type of the queries; the second is the rounding error, and the others are 0.
    """
    exact = sink / scale
    high = exact.detach().to(q.dtype)
    low = (exact - high).to(q.dtype)
    channels = pad(torch.stack((high, low), -1), (0, SINK_WIDTH - 2))
    channels = channels[None, :, None].expand(*q.shape[:-1], -1)
    if mask is None:
        mask = lower_right_causal(q.shape[-2], k.shape[-2], q.device)
    # A query that sees no key does not see the sink either, so that it gets 0.
    mask = torch.cat((mask.any(-1, keepdim=True), mask), -1)
    key = torch.cat((k.new_zeros(k.shape[-1]), k.new_ones(SINK_WIDTH)))
    key, k = key.expand(*k.shape[:2], 1, -1), pad(k, (0, SINK_WIDTH))
    bias = None if bias is None else pad(bias.expand(*bias.shape[:-1], k.shape[-2]), (1, 0))
    return torch.cat((q, channels), -1), torch.cat((key, k), -2), pad(v, (0, 0, 1, 0)), bias, mask


def _takes_two_widths(q: Tensor) -> bool:
    """Return whether torch's kernel allows values to be narrower than queries and keys.

    Most flash kernels do not; cuDNN's, on Hopper and later, do.
    """
    if torch.are_deterministic_algorithms_enabled():  # cuDNN's attention is not deterministic
        return False
    if not q.is_cuda or q.dtype not in (torch.float16, torch.bfloat16) or q.shape[-1] > 128:
        return False
    return torch.cuda.get_device_properties(q.device).major >= 9
