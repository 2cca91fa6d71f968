"""Flash attention with a bias as a differentiable operator, which is one node to torch.compile.

    pe::flash           q, k, v and the bias spec -> o, lse, horizon
    pe::flash_backward  -> dq, dk, dv, and the gradients of ``own`` and ``sink``

q is (B, H, T, E), k (B, K, T, E) and v (B, K, T, D). Attention is causal, to all keys or to those
that ``spans``, ``keeps``, ``segmented`` and ``near`` describe, the fields of
`pe.attention.spans.Spans`. ``sink``, (H,) float32, is one more logit per head, or None.

A bias spec (`pe.encodings.core.forms.Form`) consists of the kind, the parameters ``own``, which get
a gradient if they require one, tensors ``parts``, which never do, and ``reach``. P is `PADDING`:

    NONE   own and parts are empty
    KEYS   own (B or 1, H, T + P): x of the kernel `forward`; parts: y
    TABLE  own (H, P + T + P): the bias by distance, constant from ``reach`` on (0: never)
    LOGARITHM, POWER  own (H, 2)
    ROWS   own (B, H, T, reach), float32 or bfloat16: the bias by query and distance, 0 from
           ``reach`` on
    FIRE   own (H, 2U + 2): height and slope of f's U pieces, and FIRE's two parameters; parts: x,
           y and z of `forward`, and what `pe.attention.kernels.flash.learned` reads
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.flash import self_check as cases
from pe.attention.kernels.flash.horizon import skips_underflowed
from pe.attention.kernels.flash.launch import ALL_KEYS, Shown, backward, forward
from pe.attention.kernels.layout import tokens_first
from pe.encodings.core.forms import NONE, ROWS


@torch.library.custom_op("pe::flash", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, kind: int, own: Tensor | None,
    parts: list[Tensor], reach: int, spans: Tensor | None, keeps: bool, segmented: bool, near: int,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention.

    Returns:
        o (B, H, T, D), lse (B, H, T) in base 2, and the horizon (B, H), which is empty if no keys
        are skipped.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        self_check(
            kind, reach if spans is None or kind == ROWS else 0, q.shape[-1], v.shape[-1], q.dtype,
            q.device, spans is not None, segmented, sink is not None,
        )  # fmt: skip
    shown = Shown(spans, keeps, segmented, near)
    return forward(q, k, v, scale, kind, own, parts, reach, shown=shown, sink=sink)


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, kind: int, own: Tensor | None,
    parts: list[Tensor], reach: int, spans: Tensor | None, keeps: bool, segmented: bool, near: int,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    skips = spans is None and skips_underflowed(kind, q.shape[2])
    beyond = q.shape[:2] if skips else (0,)
    return tokens_first(q, v.shape[-1]), lse, lse.new_empty(beyond)


@torch.library.custom_op("pe::flash_backward", mutates_args=())
def attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, beyond: Tensor,
    scale: float, kind: int, own: Tensor | None, parts: list[Tensor], reach: int, learns: bool,
    spans: Tensor | None, keeps: bool, segmented: bool, near: int, sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk, dv, and the gradients of ``own`` and ``sink``, empty if not needed."""
    return backward(
        gradient, q, k, v, out, lse, beyond, scale, kind, own, parts, reach, learns,
        shown=Shown(spans, keeps, segmented, near), sink=sink,
    )  # fmt: skip


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, beyond: Tensor,
    scale: float, kind: int, own: Tensor | None, parts: list[Tensor], reach: int, learns: bool,
    spans: Tensor | None, keeps: bool, segmented: bool, near: int, sink: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    dsink = q.new_empty((0,) if sink is None else sink.shape, dtype=torch.float32)
    dparams = own.new_empty(own.shape) if learns and own is not None else dsink.new_empty(0)
    dk, dv = tokens_first(k, k.shape[-1]), tokens_first(v, v.shape[-1])
    return tokens_first(q, q.shape[-1]), dk, dv, dparams, dsink


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    q, k, v, ctx.scale, ctx.kind, own, parts, ctx.reach, spans, *ctx.shown, sink = inputs
    ctx.save_for_backward(q, k, v, *output, own, spans, sink, *parts)
    ctx.learns = own is not None and own.requires_grad


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    q, k, v, out, lse, beyond, own, spans, sink, *parts = ctx.saved_tensors
    dq, dk, dv, dparams, dsink = attend_backward(
        gradient, q, k, v, out, lse, beyond, ctx.scale, ctx.kind, own, parts, ctx.reach,
        ctx.learns, spans, *ctx.shown, sink,
    )  # fmt: skip
    return (
        dq, dk, dv, None, None, dparams if ctx.learns else None, [None] * len(parts), None, None,
        None, None, None, None if sink is None else dsink.to(sink.dtype),
    )  # fmt: skip


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(
    kind: int, reach: int, width: int, value_width: int, dtype: torch.dtype, device: torch.device,
    hides: bool = False, segmented: bool = False, has_sink: bool = False,
) -> None:  # fmt: skip
    """Compare the kernels with the definition, once for each combination of arguments.

    Args:
        hides: with a window and first keys. segmented: in two documents, with padding.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    case, scale = cases.case(kind, reach, width, value_width, dtype, device), width**-0.5
    q, k, v, gradient, (_, own, parts, reach) = case
    bias = kind, own, list(parts), reach
    spans = cases.spans_of(q, segmented) if hides else None
    sink = torch.linspace(-1.0, 2.0, q.shape[1], device=device) if has_sink else None
    shown = ALL_KEYS if spans is None else Shown(*spans)

    def compute() -> tuple[Tensor, ...]:
        out, lse, beyond = forward(q, k, v, scale, *bias, 0, 0, shown, sink)
        return out, *backward(
            gradient, q, k, v, out, lse, beyond, scale, *bias, kind != NONE, 0, shown, sink
        )  # fmt: skip

    checks.agree(compute, cases.expected(case, scale, spans, sink), dtype)
