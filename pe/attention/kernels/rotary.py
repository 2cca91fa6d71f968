"""Kernels that rotate queries and keys, forward and backward (`pe.encodings.core.rotation`).

torch.compile would write the gradient of a rotation in float32, and then gather it into the
gradient of the projections number by number. These kernels read and write 16 bits, in the layout
that the next operator reads, in which the heads of a token are contiguous. For the backward pass
they keep only tensors that exist already.

A program computes one block of tokens of one sequence, for all heads. Names: ``p_`` pointer, ``b_``
block, ``o_`` offset, ``m_`` mask, ``i_`` program index. Strides are tuples of (batch, head, token).
B batch, H heads, T tokens.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.attention.kernels.flash.elementary import inverse
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first

TOKENS = 32
"""Tokens per block. A program goes through the heads, so that their table stays in the L1 cache."""
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def rotate_block(
    p_x, p_cos, p_sin, p_out, T, H, x_strides, table_strides, out_strides, sign, WIDTH,
    F: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Rotate pairs of channels.

    Args:
        p_x, p_out: (B, H, T, WIDTH), 16 bits or float32.
        p_cos, p_sin: (1 or B, 1 or H, T, F) float32. The stride of batch or head is 0 if all
            sequences or heads share a table.
        sign: 1, or -1 to rotate backward.
        F: number of frequencies, a power of two. HALF: channel i is paired with i + F, otherwise
            channel 2i with 2i + 1.
        REST: number of channels from 2F on, which are copied; rounded up to a power of two.
        BT: tokens per block.
    """
    o_t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    i_b = tl.program_id(1).to(tl.int64)
    m_t = o_t[:, None] < T
    o_f = tl.arange(0, F)[None, :]
    o_both = tl.arange(0, 2 * F)[None, :]
    for h in range(0, H):
        p_from = p_x + i_b * x_strides[0] + h * x_strides[1] + o_t[:, None] * x_strides[2]
        p_to = p_out + i_b * out_strides[0] + h * out_strides[1] + o_t[:, None] * out_strides[2]
        o_table = (
            i_b * table_strides[0] + h * table_strides[1] + o_t[:, None] * table_strides[2] + o_f
        )
        b_cos = tl.load(p_cos + o_table, mask=m_t, other=0.0)
        b_sin = tl.load(p_sin + o_table, mask=m_t, other=0.0) * sign
        if HALF:
            b_first = tl.load(p_from + o_f, mask=m_t, other=0.0).to(tl.float32)
            b_second = tl.load(p_from + F + o_f, mask=m_t, other=0.0).to(tl.float32)
            b_out = b_first * b_cos - b_second * b_sin
            tl.store(p_to + o_f, b_out.to(p_out.dtype.element_ty), mask=m_t)
            b_out = b_second * b_cos + b_first * b_sin
            tl.store(p_to + F + o_f, b_out.to(p_out.dtype.element_ty), mask=m_t)
        else:
            b_pairs = tl.load(p_from + o_both, mask=m_t, other=0.0).to(tl.float32)
            b_first, b_second = tl.split(tl.reshape(b_pairs, (BT, F, 2)))
            b_out = tl.join(b_first * b_cos - b_second * b_sin, b_second * b_cos + b_first * b_sin)
            b_out = tl.reshape(b_out, (BT, 2 * F)).to(p_out.dtype.element_ty)
            tl.store(p_to + o_both, b_out, mask=m_t)
        if REST > 0:
            o_rest = 2 * F + tl.arange(0, REST)[None, :]
            b_rest = tl.load(p_from + o_rest, mask=m_t & (o_rest < WIDTH), other=0.0)
            tl.store(p_to + o_rest, b_rest, mask=m_t & (o_rest < WIDTH))


@triton.jit
def softplus(x):
    """Return ln(1 + e^x), with a relative error of at most 1e-5, and its derivative.

    With s = e^-|x|, ln(1 + s) / s is approximated by the polynomial through Chebyshev's nodes,
    whose error is at most 4e-7.
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
def shifted(b_cos, b_sin, p_delta_cos, p_delta_sin, h, E: tl.constexpr, SHIFTED: tl.constexpr):
    """Return cos and sin of the phase plus the delta of head h.

    Args:
        b_cos, b_sin: (BT, E), of the phase. p_delta_cos, p_delta_sin: (H, E) float32, of delta.
    """
    if SHIFTED:
        o_delta = h * E + tl.arange(0, E)[None, :]
        b_dc, b_ds = tl.load(p_delta_cos + o_delta), tl.load(p_delta_sin + o_delta)
        b_cos, b_sin = b_cos * b_dc - b_sin * b_ds, b_sin * b_dc + b_cos * b_ds
    return b_cos, b_sin


@triton.jit
def polar_block(
    p_x, p_cos, p_sin, p_delta_cos, p_delta_sin, p_out, T, H, x_strides, table_strides, out_strides,
    E: tl.constexpr, SHIFTED: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Write softplus(x) times the E cosines, followed by softplus(x) times the E sines (PoPE).

    Args:
        p_x: (B, H, T, E). p_out: (B, H, T, 2E). Both have 16 bits or are float32.
        p_cos, p_sin: (1 or B, 1, T, E) float32, with strides of (batch, token).
        p_delta_cos, p_delta_sin: (H, E) float32, read if SHIFTED.
        E: number of channels, a power of two. BT: tokens per block.
    """
    o_t = (tl.program_id(0) * BT + tl.arange(0, BT)).to(tl.int64)
    i_b = tl.program_id(1).to(tl.int64)
    m_t = o_t[:, None] < T
    o_e = tl.arange(0, E)[None, :]
    p_table = p_cos + i_b * table_strides[0] + o_t[:, None] * table_strides[1] + o_e
    b_cos = tl.load(p_table, mask=m_t, other=0.0)
    p_table = p_sin + i_b * table_strides[0] + o_t[:, None] * table_strides[1] + o_e
    b_sin = tl.load(p_table, mask=m_t, other=0.0)
    for h in range(0, H):
        p_from = p_x + i_b * x_strides[0] + h * x_strides[1] + o_t[:, None] * x_strides[2] + o_e
        b_size, _ = softplus(tl.load(p_from, mask=m_t, other=0.0).to(tl.float32))
        b_across, b_up = shifted(b_cos, b_sin, p_delta_cos, p_delta_sin, h, E, SHIFTED)
        p_to = p_out + i_b * out_strides[0] + h * out_strides[1] + o_t[:, None] * out_strides[2]
        p_to += o_e
        tl.store(p_to, (b_size * b_across).to(p_out.dtype.element_ty), mask=m_t)
        tl.store(p_to + E, (b_size * b_up).to(p_out.dtype.element_ty), mask=m_t)


@triton.jit
def polar_gradient_block(
    p_do, p_x, p_cos, p_sin, p_delta_cos, p_delta_sin, p_dx, p_parts, T, H,
    do_strides, x_strides, table_strides, dx_strides,
    E: tl.constexpr, SHIFTED: tl.constexpr, BT: tl.constexpr,
):  # fmt: skip
    """Write the gradient of x and, if SHIFTED, this block's part of those of cos and sin of delta.

    Args:
        p_do: (B, H, T, 2E), the gradient of the output. p_x: (B, H, T, E), the input.
        p_dx: (B, H, T, E), the gradient of x, written.
        p_parts: (B, blocks, 2, H, E) float32, written if SHIFTED.
        Other arguments are those of `polar_block`.
    """
    i_t, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_t = (i_t * BT + tl.arange(0, BT)).to(tl.int64)
    m_t = o_t[:, None] < T
    o_e = tl.arange(0, E)[None, :]
    p_table = p_cos + i_b * table_strides[0] + o_t[:, None] * table_strides[1] + o_e
    b_cos = tl.load(p_table, mask=m_t, other=0.0)
    p_table = p_sin + i_b * table_strides[0] + o_t[:, None] * table_strides[1] + o_e
    b_sin = tl.load(p_table, mask=m_t, other=0.0)
    p_part = p_parts + (i_b * tl.num_programs(0) + i_t) * 2 * H * E + tl.arange(0, E)
    for h in range(0, H):
        p_from = p_x + i_b * x_strides[0] + h * x_strides[1] + o_t[:, None] * x_strides[2] + o_e
        b_size, b_slope = softplus(tl.load(p_from, mask=m_t, other=0.0).to(tl.float32))
        p_from = p_do + i_b * do_strides[0] + h * do_strides[1] + o_t[:, None] * do_strides[2] + o_e
        b_do_cos = tl.load(p_from, mask=m_t, other=0.0).to(tl.float32)
        b_do_sin = tl.load(p_from + E, mask=m_t, other=0.0).to(tl.float32)
        b_across, b_up = shifted(b_cos, b_sin, p_delta_cos, p_delta_sin, h, E, SHIFTED)
        b_dx = (b_do_cos * b_across + b_do_sin * b_up) * b_slope
        p_to = p_dx + i_b * dx_strides[0] + h * dx_strides[1] + o_t[:, None] * dx_strides[2] + o_e
        tl.store(p_to, b_dx.to(p_dx.dtype.element_ty), mask=m_t)
        if SHIFTED:
            b_do_cos, b_do_sin = b_do_cos * b_size, b_do_sin * b_size
            tl.store(p_part + h * E, tl.sum(b_do_cos * b_cos + b_do_sin * b_sin, 0))
            tl.store(p_part + (H + h) * E, tl.sum(b_do_sin * b_cos - b_do_cos * b_sin, 0))


def _table(table: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Return a contiguous table (1 or B, 1 or H, T, F) and its strides.

    The stride of batch or head is 0 if all sequences or heads share the table.
    """
    table = table.contiguous()
    batch, head, token = strides_of(table)
    return table, (batch * (table.shape[0] > 1), head * (table.shape[1] > 1), token)


def _grid(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.shape[2], TOKENS), x.shape[0]


def rotate(x: Tensor, cos: Tensor, sin: Tensor, half: bool, backward: bool) -> Tensor:
    """Compute `pe.encodings.core.rotation.rotate`; the number of frequencies is a power of two."""
    x, out = contiguous_last_dim(x), tokens_first(x, x.shape[-1])
    (cos, strides), sin = _table(cos), sin.contiguous()
    pairs, rest = cos.shape[-1], x.shape[-1] - 2 * cos.shape[-1]
    rotate_block[_grid(x)](
        x, cos, sin, out, x.shape[2], x.shape[1], strides_of(x), strides, strides_of(out),
        -1.0 if backward else 1.0, x.shape[-1], F=pairs, HALF=half,
        REST=triton.next_power_of_2(rest) if rest else 0, BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return out


def polar(x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]) -> Tensor:
    """Compute `pe.encodings.core.rotation.polar`; the width is a power of two."""
    x, width = contiguous_last_dim(x), x.shape[-1]
    out = tokens_first(x, 2 * width)
    (cos, strides), sin = _table(cos), sin.contiguous()
    delta_cos, delta_sin = (t.contiguous() for t in shift) if shift else (cos, sin)
    polar_block[_grid(x)](
        x, cos, sin, delta_cos, delta_sin, out, x.shape[2], x.shape[1], strides_of(x), strides[::2],
        strides_of(out), E=width, SHIFTED=bool(shift), BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return out


def polar_gradient(
    gradient: Tensor, x: Tensor, cos: Tensor, sin: Tensor, shift: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute `pe.encodings.core.rotation.polar_gradient`; the width is a power of two."""
    gradient, x, width = contiguous_last_dim(gradient), contiguous_last_dim(x), x.shape[-1]
    dx, (blocks, batch), heads = tokens_first(x, width), _grid(x), x.shape[1]
    (cos, strides), sin = _table(cos), sin.contiguous()
    delta_cos, delta_sin = (t.contiguous() for t in shift) if shift else (cos, sin)
    sizes = (batch, blocks, 2, heads, width) if shift else (0,)
    parts = x.new_empty(sizes, dtype=torch.float32)
    polar_gradient_block[_grid(x)](
        gradient, x, cos, sin, delta_cos, delta_sin, dx, parts, x.shape[2], heads,
        strides_of(gradient), strides_of(x), strides[::2], strides_of(dx),
        E=width, SHIFTED=bool(shift), BT=TOKENS, num_warps=4,
    )  # fmt: skip
    return dx, parts.sum((0, 1)) if shift else parts
