"""FIRE far away: gradients of keys and values, and what blocks within one piece of f give f.

Where `pe.attention.kernels.flash.straight.lines` says that a block lies in one piece of f, its
shares u are lines over the queries for each key, and so are du/dc and du/dm. Two sums a key, of dS
and of dS times the place, then give all four sums that
`pe.attention.kernels.flash.learned.of_network` makes of the other blocks. Going through the
queries u only rises, so sums over keys are made once for each stretch between two corners of f.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.forward import add_line, add_piece
from pe.attention.kernels.flash.straight import REGION, along, line_of_fire

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def through(first, second, A: tl.constexpr, B: tl.constexpr):
    """The line through values at tokens A and B of a block: in its middle, and by token."""
    return 0.5 * (first + second), (second - first) / (B - A)


@triton.jit
def lines_of_gradient(i0, j, middle, by_token, BY_C, Z, ROWS_C, ROWS_M, KNOTS, SIDE: tl.constexpr):
    """u, du/dc and du/dm over the queries of a block, as lines for each key."""
    A: tl.constexpr = (SIDE * 3 + 10) // 20
    B: tl.constexpr = SIDE - 1 - A
    u, by_u = middle / KNOTS, by_token / KNOTS
    half = by_u * (0.5 * (B - A))
    a, b = tl.load(Z + i0 + A) / KNOTS * LOG2E, tl.load(Z + i0 + B) / KNOTS * LOG2E  # 1 / N_i
    c_a = (tl.load(BY_C + (i0 - j + A)) - (u - half) * tl.load(ROWS_C + i0 + A)) * a
    c_b = (tl.load(BY_C + (i0 - j + B)) - (u + half) * tl.load(ROWS_C + i0 + B)) * b
    m_a = -(u - half) * tl.load(ROWS_M + i0 + A) * a
    m_b = -(u + half) * tl.load(ROWS_M + i0 + B) * b
    c, by_c = through(c_a, c_b, A, B)
    m, by_m = through(m_a, m_b, A, B)
    return u, by_u, c, by_c, m, by_m


@triton.jit
def far_blocks(
    dk, dv, k, v, Q, DO, L, R, j, j0, T, q_t, g_t, scale, X, Y, Z, W, w_i, ORDER, begin, end,
    BREAKS, BY_C, ROWS_C, ROWS_M, PARTS, LINES: tl.constexpr,
    UNITS: tl.constexpr, KNOTS: tl.constexpr, PLACES: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys from the blocks of queries that ORDER lists.

    Blocks that take LINES also leave PARTS (4, PLACES); the others come in a call of their own, so
    that neither loop holds the registers of the other.
    """
    e, d = tl.arange(0, E), tl.arange(0, D)
    places = tl.arange(0, PLACES)
    edges = tl.load(BREAKS + places, mask=places < UNITS, other=float("inf")) * KNOTS
    none = tl.zeros((PLACES,), tl.float32)
    plain, by_u, by_c, by_m = none, none, none, none
    nothing = 0.0 * j.to(tl.float32)
    p_sum, u_sum, c_sum, m_sum = nothing, nothing, nothing, nothing
    now = tl.full((), 0, tl.int32) - REGION  # a whole one: compiled division rounds towards 0
    for n in tl.range(begin, end):
        block = tl.load(ORDER + n * w_i)
        i0 = block * BM
        i = i0 + tl.arange(0, BM)
        inside = i < T
        q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=inside[:, None], other=0.0)
        lse = tl.load(L + i, mask=inside, other=float("inf"))
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
        if LINES:
            here = tl.load(W + block * w_i)
            s = add_line(s, i, j, i0, j0, here, X, Y, Z, True)
        else:
            s = add_piece(s, i, j, X, Y, Z, True, False)
        p = tl.math.exp2(s - lse[None, :])
        g = tl.load(DO + i[:, None] * g_t + d[None, :], mask=inside[:, None], other=0.0)
        dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
        sums = tl.load(R + i, mask=inside, other=0.0)
        dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        ds = p * (dp - sums[None, :])
        if LINES:
            if here // REGION != now // REGION:
                above = edges <= now % REGION  # of no piece yet the sums are 0
                plain += tl.where(above, tl.sum(p_sum, 0), 0.0)
                by_u += tl.where(above, tl.sum(u_sum, 0), 0.0)
                by_c += tl.where(above, tl.sum(c_sum, 0), 0.0)
                by_m += tl.where(above, tl.sum(m_sum, 0), 0.0)
                p_sum, u_sum, c_sum, m_sum = nothing, nothing, nothing, nothing
                now = here
            middle, by_token = line_of_fire(i, j, i0, j0, Y, Z, True, BM)
            u, u_by, c, c_by, m, m_by = lines_of_gradient(
                i0, j, middle, by_token, BY_C, Z, ROWS_C, ROWS_M, KNOTS, BM
            )
            all_here = tl.sum(ds, 1)
            placed = tl.sum(ds * along(i, j, i0, j0, True, BM)[None, :], 1)
            p_sum += all_here
            u_sum += all_here * u + placed * u_by
            c_sum += all_here * c + placed * c_by
            m_sum += all_here * m + placed * m_by
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    if LINES:
        above = edges <= now % REGION
        tl.store(PARTS + places, plain + tl.where(above, tl.sum(p_sum, 0), 0.0))
        tl.store(PARTS + PLACES + places, by_u + tl.where(above, tl.sum(u_sum, 0), 0.0))
        tl.store(PARTS + 2 * PLACES + places, by_c + tl.where(above, tl.sum(c_sum, 0), 0.0))
        tl.store(PARTS + 3 * PLACES + places, by_m + tl.where(above, tl.sum(m_sum, 0), 0.0))
    return dk, dv
