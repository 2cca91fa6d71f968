"""FIRE's gradients from far blocks: those of keys and values, and contributions to those of f.

If a block lies in one piece of f (`pe.attention.kernels.flash.piecewise_linear.lines`), then for
each key the argument u of f is a line over the queries, and so are du/dc and du/dm. So two sums per
key, of dS and of dS times the offset, give all four sums that
`pe.attention.kernels.flash.learned.of_network` computes for other blocks. u rises from query block
to query block, so sums over keys are computed only once per interval between two corners of f.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.forward import add_fire, add_fire_line
from pe.attention.kernels.flash.kinds import LOG2E
from pe.attention.kernels.flash.piecewise_linear import REGION, line_of_fire, offsets_along


@triton.jit
def line_through(first, second, A: tl.constexpr, B: tl.constexpr):
    """Return the line through values at tokens A and B: its value in the middle, and its slope."""
    return 0.5 * (first + second), (second - first) / (B - A)


@triton.jit
def lines_of_gradient(
    i0, o_j, middle, by_token, p_by_c, p_z, p_rows_c, p_rows_m, KNOTS, SIDE: tl.constexpr
):
    """Return u, du/dc and du/dm as lines over the queries of a block, for each key.

    Each of the three is a value in the middle of the block, and a slope per token.
    """
    A: tl.constexpr = (SIDE * 3 + 10) // 20
    B: tl.constexpr = SIDE - 1 - A
    u, by_u = middle / KNOTS, by_token / KNOTS
    half = by_u * (0.5 * (B - A))
    inv_a = tl.load(p_z + i0 + A) / KNOTS * LOG2E  # 1 / N_i
    inv_b = tl.load(p_z + i0 + B) / KNOTS * LOG2E
    c_a = (tl.load(p_by_c + (i0 - o_j + A)) - (u - half) * tl.load(p_rows_c + i0 + A)) * inv_a
    c_b = (tl.load(p_by_c + (i0 - o_j + B)) - (u + half) * tl.load(p_rows_c + i0 + B)) * inv_b
    m_a = -(u - half) * tl.load(p_rows_m + i0 + A) * inv_a
    m_b = -(u + half) * tl.load(p_rows_m + i0 + B) * inv_b
    c, by_c = line_through(c_a, c_b, A, B)
    m, by_m = line_through(m_a, m_b, A, B)
    return u, by_u, c, by_c, m, by_m


@triton.jit
def far_blocks(
    b_dk, b_dv, b_k, b_v, p_q, p_do, p_lse, p_sums, o_j, j0, T, q_t, g_t, scale, p_x, p_y, p_z, p_w,
    w_i, p_order, begin, end, p_breaks, p_by_c, p_rows_c, p_rows_m, p_parts,
    UNITS: tl.constexpr, KNOTS: tl.constexpr, PADDED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr, IS_LINEAR: tl.constexpr,
):  # fmt: skip
    """Add the contributions of far query blocks to a block of keys.

    Blocks with lines (IS_LINEAR) and blocks without are visited in two calls, so that neither loop
    needs the registers of the other.

    Args:
        p_order: int32, the indices of far query blocks, with the stride w_i. The entries from
            ``begin`` to ``end`` are visited (`piecewise_linear.order_of`).
        p_w: int32, the piece of each query block, with the stride w_i.
        p_parts: (4, PADDED) float32, written if IS_LINEAR: the four sums for each unit.
        Other arguments are those of `backward.by_keys`, already those of this head.
    """
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    o_unit = tl.arange(0, PADDED)
    edges = tl.load(p_breaks + o_unit, mask=o_unit < UNITS, other=float("inf")) * KNOTS
    none = tl.zeros((PADDED,), tl.float32)
    plain, by_u, by_c, by_m = none, none, none, none
    nothing = 0.0 * o_j.to(tl.float32)
    p_sum, u_sum, c_sum, m_sum = nothing, nothing, nothing, nothing
    # No piece yet. It is a whole REGION, because compiled division rounds towards 0.
    now = tl.full((), 0, tl.int32) - REGION
    for n in tl.range(begin, end):
        i_block = tl.load(p_order + n * w_i)
        i0 = i_block * BM
        o_i = i0 + tl.arange(0, BM)
        m_i = o_i < T
        b_q = tl.load(p_q + o_i[:, None] * q_t + o_e[None, :], mask=m_i[:, None], other=0.0)
        b_lse = tl.load(p_lse + o_i, mask=m_i, other=float("inf"))
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION) * scale
        if IS_LINEAR:
            here = tl.load(p_w + i_block * w_i)
            b_s = add_fire_line(b_s, o_i, o_j, i0, j0, here, p_x, p_y, p_z, True)
        else:
            b_s = add_fire(b_s, o_i, o_j, p_x, p_y, p_z, True, False)
        b_p = tl.math.exp2(b_s - b_lse[None, :])
        b_do = tl.load(p_do + o_i[:, None] * g_t + o_d[None, :], mask=m_i[:, None], other=0.0)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision=PRECISION)
        b_sums = tl.load(p_sums + o_i, mask=m_i, other=0.0)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_sums[None, :])
        if IS_LINEAR:
            if here // REGION != now // REGION:
                above = edges <= now % REGION  # before the first piece all sums are 0
                plain += tl.where(above, tl.sum(p_sum, 0), 0.0)
                by_u += tl.where(above, tl.sum(u_sum, 0), 0.0)
                by_c += tl.where(above, tl.sum(c_sum, 0), 0.0)
                by_m += tl.where(above, tl.sum(m_sum, 0), 0.0)
                p_sum, u_sum, c_sum, m_sum = nothing, nothing, nothing, nothing
                now = here
            middle, by_token = line_of_fire(o_i, o_j, i0, j0, p_y, p_z, True, BM)
            u, u_by, c, c_by, m, m_by = lines_of_gradient(
                i0, o_j, middle, by_token, p_by_c, p_z, p_rows_c, p_rows_m, KNOTS, BM
            )
            all_here = tl.sum(b_ds, 1)
            placed = tl.sum(b_ds * offsets_along(o_i, o_j, i0, j0, True, BM)[None, :], 1)
            p_sum += all_here
            u_sum += all_here * u + placed * u_by
            c_sum += all_here * c + placed * c_by
            m_sum += all_here * m + placed * m_by
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
    if IS_LINEAR:
        above = edges <= now % REGION
        tl.store(p_parts + o_unit, plain + tl.where(above, tl.sum(p_sum, 0), 0.0))
        tl.store(p_parts + PADDED + o_unit, by_u + tl.where(above, tl.sum(u_sum, 0), 0.0))
        tl.store(p_parts + 2 * PADDED + o_unit, by_c + tl.where(above, tl.sum(c_sum, 0), 0.0))
        tl.store(p_parts + 3 * PADDED + o_unit, by_m + tl.where(above, tl.sum(m_sum, 0), 0.0))
    return b_dk, b_dv
