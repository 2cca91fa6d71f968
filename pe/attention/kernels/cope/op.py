"""CoPE's attention as a differentiable operator, which is one node to torch.compile.

    pe::cope            q, k, v and a table -> o, lse, counts, far
    pe::cope_backward   -> dq, dk, dv, and the gradient of the table

q is (B, H, T, E), k (B, K, T, E) and v (B, K, T, D). Attention is causal, to all keys or to those
that ``spans``, ``segmented`` and ``near`` describe, fields of `pe.attention.spans.Spans`; no first
keys are kept. Gates are computed from q and k as they are passed. ``own``, (rows, E) float32, is
the table of `pe.encodings.core.forms.by_count`. counts and far are explained in the kernel
`forward`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.cope import self_check as cases
from pe.attention.kernels.cope.launch import across, backward, forward
from pe.attention.kernels.flash.launch import ALL_KEYS, Shown
from pe.attention.kernels.flash.self_check import spans_of
from pe.attention.kernels.layout import tokens_first

WIDEST = 64
"""The largest width of heads on a GPU. At 128 the backward kernel crashed on an H100.

According to its machine code, ptxas 12.8 computed addresses of shared memory for wgmma from
registers that were never set, when the kernel had one pipeline stage. With two stages its results
agreed with float64 on the same GPU, and with eight warps they were silently wrong
(benchmarks/results/2026-11-28-h100-cope.txt). The kernel now has two stages. As far as its machine
code can be read, it is correct, and on 2026-11-28 it agreed with float64 on an H100 for 250 and
1,000 tokens, in a separate process (tests/test_gpu.py). Longer sequences and whole models have to
be tried before this limit is raised. A self-check cannot decide it, because after a crash the
process cannot use the device any more.
"""


@torch.library.custom_op("pe::cope", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, own: Tensor, spans: Tensor | None,
    segmented: bool, near: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention.

    Returns:
        o (B, H, T, D), lse (B, H, T) in base 2, and ``counts`` and ``far`` of the kernel `forward`.

    Raises:
        ValueError: heads are wider than `WIDEST`.
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        if max(q.shape[-1], v.shape[-1]) > WIDEST:
            raise ValueError(
                f"CoPE's kernels take heads of at most {WIDEST} on a GPU, not "
                f"{q.shape[-1]} and {v.shape[-1]}; use backend='sdpa'"
            )
        hides = spans is not None
        self_check(q.shape[-1], v.shape[-1], q.dtype, q.device, hides, segmented)
    return forward(q, k, v, own, scale, Shown(spans, False, segmented, near))


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, own: Tensor, spans: Tensor | None,
    segmented: bool, near: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    rows = q.shape[:3]
    return (
        tokens_first(q, v.shape[-1]),
        q.new_empty(rows, dtype=torch.float32),
        q.new_empty(rows, dtype=torch.int32),
        q.new_empty((*rows[:2], across(rows[2])), dtype=torch.int32),
    )


@torch.library.custom_op("pe::cope_backward", mutates_args=())
def attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, counts: Tensor,
    far: Tensor, own: Tensor, spans: Tensor | None, scale: float, segmented: bool, near: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv, and the gradient of ``own``."""
    shown = Shown(spans, False, segmented, near)
    return backward(gradient, q, k, v, out, lse, counts, far, own, scale, shown)


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, counts: Tensor,
    far: Tensor, own: Tensor, spans: Tensor | None, scale: float, segmented: bool, near: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dk, dv = tokens_first(k, k.shape[-1]), tokens_first(v, v.shape[-1])
    return tokens_first(q, q.shape[-1]), dk, dv, torch.empty_like(own, dtype=torch.float32)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, ctx.scale, own, spans, *ctx.shown = inputs
    ctx.save_for_backward(q, k, v, *output, own, spans)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    dq, dk, dv, dtable = attend_backward(gradient, *ctx.saved_tensors, ctx.scale, *ctx.shown)
    return dq, dk, dv, None, dtable, None, None, None


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(
    width: int, value_width: int, dtype: torch.dtype, device: torch.device, hides: bool = False,
    segmented: bool = False,
) -> None:  # fmt: skip
    """Compare the kernels with the definition, once for each combination of arguments.

    Args:
        hides: with a window. segmented: in two documents, with padding.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    case, scale = cases.case(width, value_width, dtype, device), width**-0.5
    q, k, v, gradient, (_, table, *_) = case
    assert table is not None
    spans = spans_of(q, segmented, kept=0) if hides else None
    shown = ALL_KEYS if spans is None else Shown(*spans)

    def compute() -> tuple[Tensor, ...]:
        out, lse, counts, far = forward(q, k, v, table, scale, shown)
        return out, *backward(gradient, q, k, v, out, lse, counts, far, table, scale, shown)

    checks.agree(compute, cases.expected(case, scale, spans), dtype)
