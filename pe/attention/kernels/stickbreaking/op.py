"""Stick-breaking's kernels as operators of torch, with autograd and a check before first use."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import softplus
from triton import cdiv

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.flash.blocks import Blocks
from pe.attention.kernels.flash.self_check import spans_of
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.attention.kernels.stickbreaking.backward import by_keys, by_queries
from pe.attention.kernels.stickbreaking.forward import forward
from pe.attention.spans import Spans
from pe.encodings.core.forms import LOG2E

CHECKED = 600
"""Number of tokens in the self-check: more than two chunks."""
HELD = 2**25
"""The most numbers by query and block of keys, 4 bytes each, that are held at once, unless the
heads of one key head have more. A head has 2 T for each block of keys, 1 GiB at 91,000 tokens."""
Blocked = tuple[Blocks, Blocks, Blocks]
NARROW: Blocked = Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2)
"""Blocks of `forward`, `by_queries` and `by_keys` for heads of at most 64 channels. The first two
have equally many queries, and the last two equally many keys."""
WIDE: Blocked = Blocks(64, 32, 4, 3), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)
FULL: Blocked = (Blocks(32, 32, 4, 2),) * 3
"""The same for float32."""


def blocks_for(q: Tensor, v: Tensor) -> Blocked:
    """Return the blocks of the three kernels for heads as wide as these."""
    if q.dtype == torch.float32:
        return FULL
    return NARROW if max(q.shape[-1], v.shape[-1]) <= 64 else WIDE


def _shown(spans: Tensor | None) -> tuple[Tensor | None, int | None]:
    """Return p_spans and spans_b."""
    return spans, None if spans is None else spans.stride(0) * (spans.shape[0] > 1)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention; arguments and results are those of `attend`."""
    q, k, v = (contiguous_last_dim(x) for x in (q, k, v))
    batch, heads, length, width = q.shape
    b = blocks_for(q, v)[0]
    out = tokens_first(q, v.shape[-1])
    total = q.new_empty(q.shape[:3], dtype=torch.float64)
    far = q.new_empty((batch, heads, cdiv(length, b.queries)), dtype=torch.int32)
    rows, stride = _shown(spans)
    forward[(far.shape[-1], batch * heads)](
        q, k, v, out, total, far, rows, length, heads, heads // k.shape[1], scale * LOG2E,
        strides_of(q), strides_of(k), strides_of(v), strides_of(out), stride, NEAREST=nearest,
        KEEPS=keeps, SEGMENTED=segmented, E=width, D=v.shape[-1], BM=b.queries, BN=b.keys,
        **b.options(),
    )  # fmt: skip
    return out, total, far


def launch_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, far: Tensor, scale: float,
    nearest: int, spans: Tensor | None, keeps: bool, segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv.

    Args:
        gradient: (B, H, T, D), of the output. total, far: what `launch_forward` returned.
    """
    q, k, v, gradient = (contiguous_last_dim(x) for x in (q, k, v, gradient))
    batch, heads, length, width = q.shape
    groups, every = heads // k.shape[1], batch * heads
    _, of_queries, of_keys = blocks_for(q, v)
    dq, dk, dv = tokens_first(q, width), tokens_first(k, width), tokens_first(v, v.shape[-1])
    across, rows = cdiv(length, of_keys.keys), far.shape[-1]
    starts = torch.arange(across, device=q.device) * of_keys.keys
    ends = (torch.arange(rows, device=q.device, dtype=torch.int32) + 1) * of_queries.queries
    last = ((far[..., None, :] <= starts[:, None]) * ends).amax(-1)
    shown, stride = _shown(spans)
    inputs = tuple(strides_of(x) for x in (q, k, v, gradient))
    shape: dict[str, Any] = {"NEAREST": nearest, "SEGMENTED": segmented, "E": width}
    shape["D"] = v.shape[-1]
    step = max(1, min(every, HELD // (2 * across * length)) // groups) * groups
    for first in range(0, every, step):
        here = min(step, every - first)
        # Queries whose stick does not reach a block of keys have nothing left and nothing before.
        rest = q.new_full((here, across, length), math.inf, dtype=torch.float32)
        left = q.new_zeros((here, across, length), dtype=torch.float32)
        sizes = first, length, heads, groups, scale * LOG2E, scale
        b = of_queries
        by_queries[(rows, here)](
            q, k, v, gradient, dq, total, far, rest, left, shown, *sizes, *inputs, strides_of(dq),
            stride, KEEPS=keeps, BM=b.queries, BN=b.keys, **shape, **b.options(),
        )  # fmt: skip
        b = of_keys
        by_keys[(across, here // groups)](
            q, k, v, gradient, dk, dv, rest, left, last, shown, *sizes, *inputs, strides_of(dk),
            strides_of(dv), stride, BM=b.queries, BN=b.keys, **shape, **b.options(),
        )  # fmt: skip
    return dq, dk, dv


@torch.library.custom_op("pe::stickbreaking", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention, causal and with as many queries as keys.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). scale: of the logits.
        nearest: 0 if a token sees itself, otherwise 1.
        spans, keeps, segmented: the first fields of `pe.attention.spans.Spans`; None for all keys.

    Returns:
        o (B, H, T, D), and ``total`` and ``far`` of the kernel `forward`.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        hides = spans is not None
        self_check(nearest, q.shape[-1], v.shape[-1], q.dtype, q.device, hides, segmented)
    return launch_forward(q, k, v, scale, nearest, spans, keeps, segmented)


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    size = blocks_for(q, v)[0].queries
    far = (*q.shape[:2], (q.shape[2] + size - 1) // size)
    return (
        tokens_first(q, v.shape[-1]),
        q.new_empty(q.shape[:3], dtype=torch.float64),
        q.new_empty(far, dtype=torch.int32),
    )


attend_backward = torch.library.custom_op(
    "pe::stickbreaking_backward", launch_backward, mutates_args=()
)


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, far: Tensor, scale: float,
    nearest: int, spans: Tensor | None, keeps: bool, segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return tokens_first(q, q.shape[-1]), tokens_first(k, k.shape[-1]), tokens_first(v, v.shape[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, ctx.scale, ctx.nearest, spans, *ctx.kinds = inputs
    ctx.save_for_backward(q, k, v, *output[1:], spans)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    *saved, spans = ctx.saved_tensors
    dq, dk, dv = attend_backward(gradient, *saved, ctx.scale, ctx.nearest, spans, *ctx.kinds)
    return dq, dk, dv, None, None, None, None, None


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(
    nearest: int, width: int, value_width: int, dtype: torch.dtype, device: torch.device,
    hides: bool = False, segmented: bool = False,
) -> None:  # fmt: skip
    """Compare the kernels with the definition, once for each combination of arguments.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    random, scale = checks.random_on(device), width**-0.5
    q, k, v, gradient = checks.inputs(random, 2, 2, CHECKED, width, value_width, dtype)
    # Logits of the second head are around -8, so its queries see all keys.
    q[:, 1, :, 0], k[..., 0] = math.sqrt(8 / scale), -math.sqrt(8 / scale)
    shown = spans_of(q, segmented) if hides else None
    kinds: tuple[Any, ...] = (nearest, *((None, False, False) if shown is None else shown[:3]))

    def compute() -> tuple[Tensor, ...]:
        out, total, far = launch_forward(q, k, v, scale, *kinds)
        return out, *launch_backward(gradient, q, k, v, total, far, scale, *kinds)

    checks.agree(compute, expected(q, k, v, gradient, scale, nearest, shown), dtype)


def expected(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, scale: float, nearest: int,
    shown: Spans | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return o, dq, dk and dv by the definition, in float64, without autograd."""
    q, k, v, gradient = (t.double() for t in (q, k, v, gradient))
    logits = scale * (q @ k.transpose(-1, -2))
    seen = torch.ones_like(logits[0, 0], dtype=torch.bool).tril(-nearest)
    seen = seen if shown is None else seen & shown.mask()
    broken = softplus(logits, threshold=700) * seen
    sums = broken.flip(-1).cumsum(-1).flip(-1)
    weights = (logits - sums).exp() * seen
    products = weights * (gradient @ v.transpose(-1, -2))
    by_logit = products - logits.sigmoid() * products.cumsum(-1) * seen
    return (
        weights @ v,
        scale * (by_logit @ k),
        scale * (by_logit.transpose(-1, -2) @ q).sum(1, keepdim=True),
        (weights.transpose(-1, -2) @ gradient).sum(1, keepdim=True),
    )
