"""Rotations of queries and keys as operators of their own: 16 bits in, 16 bits out.

    pe::turn    (a, b) -> (a cos - b sin, b cos + a sin)                      RoPE, arXiv:2104.09864
    pe::polar   x -> softplus(x) (cos, sin)                                   PoPE, arXiv:2509.10534

Left to torch.compile, the gradient of a rotation is written in float32 and then gathered into that
of the projections one number at a time. These write 16 bits where the next operator reads them, a
token's heads side by side, and keep nothing for the backward pass but what is there already.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.attention.kernels.flash.elementary import inverse
from pe.attention.kernels.flash.launch import ready, rows_of, tokens_first

TOKENS = 32
"""Tokens of a block. It goes through the heads, so that their table stays in the first cache."""
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def turn_block(
    X, COS, SIN, OUT, T, H, x_b, x_h, x_t, c_b, c_h, c_t, o_b, o_h, o_t, sign, WIDTH,
    F: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """``sign`` -1 turns back. Channels from 2F on, if any (REST: a power of two), stay."""
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    inside = t[:, None] < T
    f = tl.arange(0, F)[None, :]
    both = tl.arange(0, 2 * F)[None, :]
    for h in range(0, H):
        x = X + b * x_b + h * x_h + t[:, None] * x_t
        out = OUT + b * o_b + h * o_h + t[:, None] * o_t
        where = b * c_b + h * c_h + t[:, None] * c_t + f
        cos = tl.load(COS + where, mask=inside, other=0.0)
        sin = tl.load(SIN + where, mask=inside, other=0.0) * sign
        if HALF:
            first = tl.load(x + f, mask=inside, other=0.0).to(tl.float32)
            second = tl.load(x + F + f, mask=inside, other=0.0).to(tl.float32)
            turned = first * cos - second * sin
            tl.store(out + f, turned.to(OUT.dtype.element_ty), mask=inside)
            turned = second * cos + first * sin
            tl.store(out + F + f, turned.to(OUT.dtype.element_ty), mask=inside)
        else:
            pairs = tl.load(x + both, mask=inside, other=0.0).to(tl.float32)
            first, second = tl.split(tl.reshape(pairs, (BT, F, 2)))
            turned = tl.join(first * cos - second * sin, second * cos + first * sin)
            turned = tl.reshape(turned, (BT, 2 * F)).to(OUT.dtype.element_ty)
            tl.store(out + both, turned, mask=inside)
        if REST > 0:
            c = 2 * F + tl.arange(0, REST)[None, :]
            kept = tl.load(x + c, mask=inside & (c < WIDTH), other=0.0)
            tl.store(out + c, kept, mask=inside & (c < WIDTH))


@triton.jit
def softplus(x):
    """ln(1 + e^x) within 1e-5 of itself, also where it is small, and its derivative.

    With s = e^-|x|, ln(1 + s) / s is a polynomial: 4e-7 off at most, through Chebyshev's nodes.
    """
    small = tl.math.exp2(tl.abs(x) * -LOG2E)
    p = small * -0.00837115291506052 + 0.04349390044808388
    p = p * small - 0.1068500280380249
    p = p * small + 0.1768747717142105
    p = p * small - 0.24474774301052094
    p = p * small + 0.3327192962169647
    p = p * small - 0.49997174739837646
    p = p * small + 0.9999997615814209
    share = inverse(1.0 + small)
    return tl.maximum(x, 0.0) + small * p, tl.where(x < 0.0, small * share, share)


@triton.jit
def shifted(cos, sin, DC, DS, h, E: tl.constexpr, SHIFTED: tl.constexpr):
    """cos and sin of the phase plus delta of head h."""
    if SHIFTED:
        at = h * E + tl.arange(0, E)[None, :]
        dc, ds = tl.load(DC + at), tl.load(DS + at)
        cos, sin = cos * dc - sin * ds, sin * dc + cos * ds
    return cos, sin


@triton.jit
def polar_block(
    X, COS, SIN, DC, DS, OUT, T, H, x_b, x_h, x_t, c_b, c_t, o_b, o_h, o_t,
    E: tl.constexpr, SHIFTED: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """OUT gets E cosines and then E sines, each times softplus of X."""
    t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    inside = t[:, None] < T
    e = tl.arange(0, E)[None, :]
    cos = tl.load(COS + b * c_b + t[:, None] * c_t + e, mask=inside, other=0.0)
    sin = tl.load(SIN + b * c_b + t[:, None] * c_t + e, mask=inside, other=0.0)
    for h in range(0, H):
        at = X + b * x_b + h * x_h + t[:, None] * x_t + e
        size, _ = softplus(tl.load(at, mask=inside, other=0.0).to(tl.float32))
        across, up = shifted(cos, sin, DC, DS, h, E, SHIFTED)
        out = OUT + b * o_b + h * o_h + t[:, None] * o_t + e
        tl.store(out, (size * across).to(OUT.dtype.element_ty), mask=inside)
        tl.store(out + E, (size * up).to(OUT.dtype.element_ty), mask=inside)


@triton.jit
def polar_gradient(
    G, X, COS, SIN, DC, DS, DX, PARTS, T, H, g_b, g_h, g_t, x_b, x_h, x_t, c_b, c_t, o_b, o_h, o_t,
    E: tl.constexpr, SHIFTED: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """DX and, if SHIFTED, PARTS (B, blocks, 2, H, E): what delta's cos and sin get from a block."""
    block, b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    t = (block * BT + tl.arange(0, BT)).to(tl.int64)
    inside = t[:, None] < T
    e = tl.arange(0, E)[None, :]
    cos = tl.load(COS + b * c_b + t[:, None] * c_t + e, mask=inside, other=0.0)
    sin = tl.load(SIN + b * c_b + t[:, None] * c_t + e, mask=inside, other=0.0)
    parts = PARTS + (b * tl.num_programs(0) + block) * 2 * H * E + tl.arange(0, E)
    for h in range(0, H):
        x = tl.load(X + b * x_b + h * x_h + t[:, None] * x_t + e, mask=inside, other=0.0)
        size, slope = softplus(x.to(tl.float32))
        g = G + b * g_b + h * g_h + t[:, None] * g_t + e
        g_across = tl.load(g, mask=inside, other=0.0).to(tl.float32)
        g_up = tl.load(g + E, mask=inside, other=0.0).to(tl.float32)
        across, up = shifted(cos, sin, DC, DS, h, E, SHIFTED)
        dx = (g_across * across + g_up * up) * slope
        at = DX + b * o_b + h * o_h + t[:, None] * o_t + e
        tl.store(at, dx.to(DX.dtype.element_ty), mask=inside)
        if SHIFTED:
            g_across, g_up = g_across * size, g_up * size
            tl.store(parts + h * E, tl.sum(g_across * cos + g_up * sin, 0))
            tl.store(parts + (H + h) * E, tl.sum(g_up * cos - g_across * sin, 0))


def _table(table: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """A table (1 or B, 1 or H, T, F) and its strides, 0 where all share."""
    table = table.contiguous()
    batch, head, token = rows_of(table)
    return table, (batch * (table.shape[0] > 1), head * (table.shape[1] > 1), token)


def _sizes(x: Tensor) -> tuple[int, int]:
    """Tokens and heads."""
    return x.shape[2], x.shape[1]


def _grid(x: Tensor) -> tuple[int, int]:
    return -(-x.shape[2] // TOKENS), x.shape[0]


@torch.library.custom_op("pe::turn", mutates_args=())
def turn(x: Tensor, cos: Tensor, sin: Tensor, half: bool, back: bool) -> Tensor:
    """(B, H, T, D) with the first 2F channels turned by tables (1 or B, 1 or H, T, F), float32.

    Differentiable in ``x`` alone. F is a power of two. ``back`` turns the other way.
    """
    x, out = ready(x), tokens_first(x, x.shape[-1])
    (cos, strides), sin = _table(cos), sin.contiguous()
    pairs, rest = cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]
    turn_block[_grid(x)](
        x, cos, sin, out, *_sizes(x), *rows_of(x), *strides, *rows_of(out), -1.0 if back else 1.0,
        x.shape[-1], F=pairs, HALF=half, REST=triton.next_power_of_2(rest) if rest else 0,
        BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return out


@turn.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, half: bool, back: bool) -> Tensor:
    return tokens_first(x, x.shape[-1])


def _save_turn(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, cos, sin, ctx.half, ctx.back = inputs
    ctx.save_for_backward(cos, sin)


def _turn_back(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    cos, sin = ctx.saved_tensors
    return turn(gradient, cos, sin, ctx.half, not ctx.back), None, None, None, None


turn.register_autograd(_turn_back, setup_context=_save_turn)


@torch.library.custom_op("pe::polar", mutates_args=())
def polar(x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]) -> Tensor:
    """(B, H, T, E) -> (B, H, T, 2E) by tables (1 or B, 1, T, E), float32.

    ``shift``: nothing, or cosine and sine of delta, two of (H, E). Differentiable in ``x`` and
    ``shift``. E is a power of two.
    """
    x, width = ready(x), x.shape[-1]
    out = tokens_first(x, 2 * width)
    (cos, strides), sin = _table(cos), sin.contiguous()
    dc, ds = (t.contiguous() for t in shift) if shift else (cos, sin)
    polar_block[_grid(x)](
        x, cos, sin, dc, ds, out, *_sizes(x), *rows_of(x), strides[0], strides[2], *rows_of(out),
        E=width, SHIFTED=bool(shift), BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return out


@polar.register_fake
def _(x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]) -> Tensor:
    return tokens_first(x, 2 * x.shape[-1])


@torch.library.custom_op("pe::polar_backward", mutates_args=())
def polar_backward(
    gradient: Tensor, x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """The gradient of ``x``, and those of ``shift``, (2, H, E) or empty."""
    gradient, x, width = ready(gradient), ready(x), x.shape[-1]
    dx, (blocks, batch), heads = tokens_first(x, width), _grid(x), x.shape[1]
    (cos, strides), sin = _table(cos), sin.contiguous()
    dc, ds = (t.contiguous() for t in shift) if shift else (cos, sin)
    sizes = (batch, blocks, 2, heads, width) if shift else (0,)
    parts = x.new_empty(sizes, dtype=torch.float32)
    polar_gradient[_grid(x)](
        gradient, x, cos, sin, dc, ds, dx, parts, *_sizes(x), *rows_of(gradient), *rows_of(x),
        strides[0], strides[2], *rows_of(dx), E=width, SHIFTED=bool(shift), BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return dx, parts.sum((0, 1)) if shift else parts


@polar_backward.register_fake
def _(
    gradient: Tensor, x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]
) -> tuple[Tensor, Tensor]:
    sizes = (2, x.shape[1], x.shape[-1]) if shift else (0,)
    return tokens_first(x, x.shape[-1]), x.new_empty(sizes, dtype=torch.float32)


def _save_polar(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, cos, sin, shift = inputs
    ctx.save_for_backward(x, cos, sin, *shift)


def _polar_back(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
    x, cos, sin, *shift = ctx.saved_tensors
    dx, dshift = polar_backward(gradient, x, cos, sin, shift)
    return dx, None, None, list(dshift.unbind(0)) if shift else []


polar.register_autograd(_polar_back, setup_context=_save_polar)
