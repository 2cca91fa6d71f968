"""The gradient of a table or a network: dS added up over the batch, where one number serves all.

Kept apart from dq, dk and dv, because only here do blocks of different texts belong together: a
program holds one place of the matrix and walks through the batch, so that nothing is added to from
two sides and the same inputs give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import log2
from pe.attention.kernels.flash.forward import add_bias, apart, by_distance

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def score_gradient(
    Q, K, V, DO, L, R, X, Y, Z, b, h, i0, j0, T, H, G, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    KIND: tl.constexpr, REACH: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dS of one square block, (BM, BM) float32."""
    e, d = tl.arange(0, E), tl.arange(0, D)
    i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BM)
    some, keys = i < T, j[:, None] < T
    at = Q + b * q_b + h * q_h + i[:, None] * q_t + e[None, :]
    q = tl.load(at, mask=some[:, None], other=0.0)
    at = K + b * k_b + (h // G) * k_h + j[:, None] * k_t + e[None, :]
    k = tl.load(at, mask=keys, other=0.0)
    at = V + b * v_b + (h // G) * v_h + j[:, None] * v_t + d[None, :]
    v = tl.load(at, mask=keys, other=0.0)
    at = DO + b * g_b + h * g_h + i[:, None] * g_t + d[None, :]
    g = tl.load(at, mask=some[:, None], other=0.0)
    lse = tl.load(L + (b * H + h) * T + i, mask=some, other=float("inf"))
    sums = tl.load(R + (b * H + h) * T + i, mask=some, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
    s = add_bias(s, i, j, i0, j0, j, X, Y, Z, KIND, False, REACH, False, True)
    p = tl.math.exp2(s - lse[:, None])
    p = tl.where(i[:, None] >= j[None, :], p, 0.0)
    return p * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - sums[:, None])


@triton.jit
def of_table(
    Q, K, V, DO, L, R, X, Y, Z, TILES, B, T, H, G, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, x_h,
    KIND: tl.constexpr, REACH: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Program (n, s, h) walks down its share of the n-th diagonal of blocks, whose distances agree,
    one text after another, and leaves the sum of its blocks."""
    n, share, h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    total = tl.zeros((BM, BM), tl.float32)
    blocks = tl.cdiv(T, BM) - n
    each = tl.cdiv(B * blocks, tl.num_programs(1))
    for step in tl.range(share * each, tl.minimum((share + 1) * each, B * blocks)):
        b = (step // blocks).to(tl.int64)
        j0 = (step % blocks) * BM
        total += score_gradient(
            Q, K, V, DO, L, R, X + h * x_h, Y, Z, b, h, j0 + n * BM, j0, T, H, G, scale,
            q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
            KIND, REACH, E, D, BM, PRECISION,
        )  # fmt: skip
    at = ((h * tl.num_programs(0) + n) * tl.num_programs(1) + share).to(tl.int64)
    r = tl.arange(0, BM)
    tl.store(TILES + at * BM * BM + r[:, None] * BM + r[None, :], total)


@triton.jit
def block_sum(x):
    """Sum of all entries."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def of_network(
    Q, K, V, DO, L, R, X, Y, Z, W, BREAKS, BY_C, ROWS_C, ROWS_M, PARTS, B, T, H, G, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, x_h, w_h, w_i, UNITS,
    KIND: tl.constexpr, REACH: tl.constexpr, KNOTS: tl.constexpr, PLACES: tl.constexpr,
    STRAIGHT: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """FIRE: what its network and its two numbers need of every n-th block, whole batch.

    With u the share that f is asked for: PARTS (H, programs, 4, PLACES) gets, over u > BREAKS[n],
    the sums of dS, dS u, dS du/dc and dS du/dm. PLACES is UNITS rounded up to a power of two. With
    STRAIGHT blocks within one piece of f (W) are left to `pe.attention.kernels.flash.fire_far`.
    """
    h = tl.program_id(1)
    X += h * x_h
    places = tl.arange(0, PLACES)
    plain = tl.zeros((PLACES,), tl.float32)
    by_u, by_c, by_m = plain, plain, plain
    across = tl.cdiv(T, BM)
    for block in tl.range(tl.program_id(0), across * (across + 1) // 2, tl.num_programs(0)):
        # its place in the lower triangle, rows one after another; a root may be off by one
        root = tl.sqrt(8.0 * (block + tl.full((), 0, tl.int32)).to(tl.float32) + 1.0)
        row = ((root - 1.0) / 2.0).to(tl.int32)
        row = tl.where(row * (row + 1) // 2 > block, row - 1, row)
        row = tl.where((row + 1) * (row + 2) // 2 <= block, row + 1, row)
        i0, j0 = row * BM, (block - row * (row + 1) // 2) * BM
        done = tl.load(W + h * w_h + row * w_i + j0 // BM) >= 0 if STRAIGHT else False
        if not done:
            total = tl.zeros((BM, BM), tl.float32)
            for b in tl.range(0, B):
                total += score_gradient(
                    Q, K, V, DO, L, R, X, Y, Z, b + tl.full((), 0, tl.int64), h, i0, j0, T, H, G,
                    scale, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
                    KIND, REACH, E, D, BM, PRECISION,
                )  # fmt: skip
            i, j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BM)
            rows = tl.load(Z + i) / KNOTS
            u = log2(1.0 + tl.load(Y) * apart(i, j, False, True)) * rows[:, None]
            rows *= LOG2E  # 1 / N_i
            u = tl.where(i[:, None] >= j[None, :], u, 0.0)
            # du/dc = psi'(i - j) / N_i - u (dN_i/dc) / N_i,   du/dm = - u (dN_i/dm) / N_i
            of_c = (by_distance(BY_C, i, j, False) - u * tl.load(ROWS_C + i)[:, None]) * rows[
                :, None
            ]
            of_m = -u * (tl.load(ROWS_M + i) * rows)[:, None]
            all_plain, all_u = block_sum(total), block_sum(total * u)
            all_c, all_m = block_sum(total * of_c), block_sum(total * of_m)
            # u rises with the query and falls with the key, so corners hold its least and its most
            last = tl.minimum(i0 + BM, T) - 1
            most = log2(1.0 + tl.load(Y) * (last - j0)) * tl.load(Z + last) / KNOTS
            nearest = tl.maximum(i0 - (j0 + BM - 1), 0)
            least = log2(1.0 + tl.load(Y) * nearest) * tl.load(Z + i0) / KNOTS
            edges = tl.load(BREAKS + places, mask=places < UNITS, other=float("inf"))
            whole = edges < least  # the block lies above these edges
            plain += tl.where(whole, all_plain, 0.0)
            by_u += tl.where(whole, all_u, 0.0)
            by_c += tl.where(whole, all_c, 0.0)
            by_m += tl.where(whole, all_m, 0.0)
            if tl.sum(((edges >= least) & (edges < most)).to(tl.int32), 0) > 0:  # rare far away
                for n in tl.range(0, UNITS):
                    edge = tl.load(BREAKS + n)
                    if (edge >= least) & (edge < most):  # the edge runs through the block
                        above = tl.where(u > edge, total, 0.0)
                        here = places == n
                        plain += tl.where(here, block_sum(above), 0.0)
                        by_u += tl.where(here, block_sum(above * u), 0.0)
                        by_c += tl.where(here, block_sum(above * of_c), 0.0)
                        by_m += tl.where(here, block_sum(above * of_m), 0.0)
    at = PARTS + (h * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 4 * PLACES + places
    tl.store(at, plain)
    tl.store(at + PLACES, by_u)
    tl.store(at + 2 * PLACES, by_c)
    tl.store(at + 3 * PLACES, by_m)
