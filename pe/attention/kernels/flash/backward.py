"""The gradients of `pe.attention.kernels.flash.forward`, in the same terms.

    dv = P^T dO    dS = P (dO v^T - rowsum(dO o))    dq = scale dS k    dk = scale dS^T q

Weights are made again from the logarithms that the forward pass kept. The bias' own gradient is dS
added up: over queries for KEYS, along diagonals for TABLE, by what f depends on for FIRE, times the
derivative by each of two numbers for LOGARITHM and POWER. Each row
of dS adds up to 0, which is why what all biases of a row share needs no gradient.

It does if rowsum(dO o) is that of the o before rounding to 16 bits. Sums over thousands of entries
would collect what is missing, so where they are wanted (SUMS) `by_queries`, which runs first, adds
to the rowsum what its row of dS adds up to, and from there on rows do add up to 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import inverse, log2
from pe.attention.kernels.flash.fire_far import far_blocks
from pe.attention.kernels.flash.forward import add_bias, apart, block_of, simple_from
from pe.attention.kernels.flash.horizon import first_key, last_query
from pe.attention.kernels.flash.straight import line_of_log, line_of_share, middles


@triton.jit
def query_blocks(
    dk, dv, dx, dy, k, v, near, Q, DO, L, R, j, j0, start, stop, T, q_t, g_t, scale, X, Y, Z,
    KIND: tl.constexpr, FAR: tl.constexpr, DIAGONAL: tl.constexpr, SUMS: tl.constexpr,
    REACH: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of one block of keys from the queries from ``start`` to ``stop``."""
    e, d = tl.arange(0, E), tl.arange(0, D)
    for i0 in tl.range(start, stop, BM):
        i = i0 + tl.arange(0, BM)
        inside = i < T
        q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=inside[:, None], other=0.0)
        lse = tl.load(L + i, mask=inside, other=float("inf"))  # weights of no query are 0
        s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
        s = add_bias(s, i, j, i0, j0, near, X, Y, Z, KIND, FAR, REACH, True, DIAGONAL)
        p = tl.math.exp2(s - lse[None, :])
        if DIAGONAL:
            p = tl.where(i[None, :] >= j[:, None], p, 0.0)
        g = tl.load(DO + i[:, None] * g_t + d[None, :], mask=inside[:, None], other=0.0)
        dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
        sums = tl.load(R + i, mask=inside, other=0.0)
        dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
        ds = p * (dp - sums[None, :])
        if SUMS and KIND == 1:
            dx += tl.sum(ds, 1)
        elif SUMS and KIND == 5 and FAR:
            middle, place = middles(i, j, i0, j0, True, BM)
            plain, along = tl.sum(ds, 1), tl.sum(ds * place[None, :], 1)
            value, slope = line_of_log(middle, tl.load(X + 1), BM)
            dx += plain * value + along * slope
            value, slope = line_of_share(middle, tl.load(X + 1), BM)
            dy += plain * value + along * slope
        elif SUMS and KIND == 5:
            far = apart(i, j, True, DIAGONAL)
            inner = 1.0 + tl.load(X + 1) * far
            dx += tl.sum(ds * log2(inner), 1)
            dy += tl.sum(ds * (far * inverse(inner)), 1)
        elif SUMS and KIND == 6:
            far = apart(i, j, True, DIAGONAL)
            logarithm = tl.where(far > 0.0, log2(far), 0.0)
            by_first = tl.where(far > 0.0, ds * tl.math.exp2(tl.load(X + 1) * logarithm), 0.0)
            dx += tl.sum(by_first, 1)
            dy += tl.sum(by_first * logarithm, 1)
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    return dk, dv, dx, dy


@triton.jit
def by_keys(
    Q, K, V, DO, L, R, X, Y, Z, W, DK, DV, DX, DY, ORDER, BREAKS, BY_C, ROWS_C, ROWS_M, PARTS,
    T, H, G, scale, plain_scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, x_b, x_h, y_b, y_h,
    w_h, w_i, dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    KIND: tl.constexpr, SUMS: tl.constexpr, REACH: tl.constexpr, LEAVES: tl.constexpr,
    STRAIGHT: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr, UNITS: tl.constexpr, KNOTS: tl.constexpr, PLACES: tl.constexpr,
):  # fmt: skip
    """One block of keys of one key head: dk, dv and, with SUMS, by key what own numbers get.

    Of FIRE's far blocks, which ORDER lists, PARTS gets what its network does (`fire_far`).
    """
    j0 = tl.program_id(0) * BN  # the first keys are seen by most queries
    heads = H // G
    b, hk = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    j = j0 + tl.arange(0, BN)
    e, d = tl.arange(0, E), tl.arange(0, D)
    inside = j[:, None] < T
    k = tl.load(K + b * k_b + hk * k_h + j[:, None] * k_t + e[None, :], mask=inside, other=0.0)
    v = tl.load(V + b * v_b + hk * v_h + j[:, None] * v_t + d[None, :], mask=inside, other=0.0)
    dk = tl.zeros((BN, E), tl.float32)
    dv = tl.zeros((BN, D), tl.float32)
    for g in range(G):
        h = hk * G + g
        Qh, DOh = Q + b * q_b + h * q_h, DO + b * g_b + h * g_h
        Xh, Yh = X + b * x_b + h * x_h, Y + b * y_b + h * y_h
        Lh, Rh = L + (b * H + h) * T, R + (b * H + h) * T
        near = tl.load(Xh + j) if KIND == 1 else j
        dx = tl.zeros((BN,), tl.float32)
        dy = tl.zeros((BN,), tl.float32)
        dk, dv, dx, dy = query_blocks(
            dk, dv, dx, dy, k, v, near, Qh, DOh, Lh, Rh, j, j0, j0, tl.minimum(j0 + BN, T), T, q_t,
            g_t, scale, Xh, Yh, Z, KIND, False, True, SUMS, REACH, E, D, BM, PRECISION,
        )  # fmt: skip
        far = T
        if LEAVES:
            far = last_query(Xh, Yh, tl.load(Z + b * H + h), j0, j0 + BN, T, KIND)
        if REACH > 0 or STRAIGHT:
            beyond = tl.cdiv(simple_from(Xh, KIND, REACH, BM), BM) * BM  # the diagonal
            far = tl.minimum(j0 + BN + beyond, T)
        dk, dv, dx, dy = query_blocks(
            dk, dv, dx, dy, k, v, near, Qh, DOh, Lh, Rh, j, j0, j0 + BN, far, T, q_t,
            g_t, scale, Xh, Yh, Z, KIND, False, False, SUMS, REACH, E, D, BM, PRECISION,
        )  # fmt: skip
        if KIND == 3 and STRAIGHT:
            at = PARTS + ((b * H + h) * tl.num_programs(0) + tl.program_id(0)) * 4 * PLACES
            Wh = W + h * w_h + tl.program_id(0)
            Order = ORDER + h * (w_h + 2 * w_i) + tl.program_id(0)
            taken, all_far = tl.load(Order), tl.load(Order + w_i)
            dk, dv = far_blocks(
                dk, dv, k, v, Qh, DOh, Lh, Rh, j, j0, T, q_t, g_t, scale, Xh, Yh, Z, Wh, w_i,
                Order + 2 * w_i, 0, taken, BREAKS, BY_C, ROWS_C, ROWS_M, at,
                True, UNITS, KNOTS, PLACES, E, D, BM, PRECISION,
            )  # fmt: skip
            dk, dv = far_blocks(
                dk, dv, k, v, Qh, DOh, Lh, Rh, j, j0, T, q_t, g_t, scale, Xh, Yh, Z, Wh, w_i,
                Order + 2 * w_i, taken, all_far, BREAKS, BY_C, ROWS_C, ROWS_M, at,
                False, UNITS, KNOTS, PLACES, E, D, BM, PRECISION,
            )  # fmt: skip
        elif REACH > 0 or STRAIGHT:
            dk, dv, dx, dy = query_blocks(
                dk, dv, dx, dy, k, v, near, Qh, DOh, Lh, Rh, j, j0, far, T, T, q_t,
                g_t, scale, Xh, Yh, Z, KIND, True, False, SUMS, REACH, E, D, BM, PRECISION,
            )  # fmt: skip
        if SUMS and KIND != 3:
            tl.store(DX + (b * H + h) * T + j, dx, mask=j < T)
            if KIND > 1:
                tl.store(DY + (b * H + h) * T + j, dy, mask=j < T)
    at = DK + b * dk_b + hk * dk_h + j[:, None] * dk_t + e[None, :]
    tl.store(at, (dk * plain_scale).to(DK.dtype.element_ty), mask=inside)
    at = DV + b * dv_b + hk * dv_h + j[:, None] * dv_t + d[None, :]
    tl.store(at, dv.to(DV.dtype.element_ty), mask=inside)


@triton.jit
def key_blocks(
    dq, rest, q, g, lse, sums, K, V, i, i0, start, stop, T, k_t, v_t, scale, X, Y, Z, W,
    KIND: tl.constexpr, FAR: tl.constexpr, DIAGONAL: tl.constexpr, SUMS: tl.constexpr,
    REACH: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of one block of queries from the keys from ``start`` to ``stop``."""
    e, d = tl.arange(0, E), tl.arange(0, D)
    for j0 in tl.range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        if DIAGONAL:
            k = tl.load(K + j[:, None] * k_t + e[None, :], mask=j[:, None] < T, other=0.0)
            v = tl.load(V + j[:, None] * v_t + d[None, :], mask=j[:, None] < T, other=0.0)
        else:
            k = tl.load(K + j[:, None] * k_t + e[None, :])
            v = tl.load(V + j[:, None] * v_t + d[None, :])
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        near = block_of(X, W, j, j0 // BN, KIND, FAR)
        s = add_bias(s, i, j, i0, j0, near, X, Y, Z, KIND, FAR, REACH, False, DIAGONAL)
        p = tl.math.exp2(s - lse[:, None])
        if DIAGONAL:
            p = tl.where(i[:, None] >= j[None, :], p, 0.0)
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - sums[:, None])
        if SUMS:
            rest += tl.sum(ds, 1)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    return dq, rest


@triton.jit
def by_queries(
    Q, K, V, DO, L, R, X, Y, Z, W, O, DQ, T, H, G, scale, plain_scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t, x_b, x_h, y_b, y_h,
    w_h, w_i, o_b, o_h, o_t, dq_b, dq_h, dq_t,
    KIND: tl.constexpr, SUMS: tl.constexpr, REACH: tl.constexpr, LEAVES: tl.constexpr,
    STRAIGHT: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: dq, and R, which the other gradients need."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    K += b * k_b + (h // G) * k_h
    V += b * v_b + (h // G) * v_h
    X += b * x_b + h * x_h
    Y += b * y_b + h * y_h
    W += h * w_h + block * w_i
    i0 = block * BM
    i = i0 + tl.arange(0, BM)
    e, d = tl.arange(0, E), tl.arange(0, D)
    inside = i[:, None] < T
    q = tl.load(Q + b * q_b + h * q_h + i[:, None] * q_t + e[None, :], mask=inside, other=0.0)
    g = tl.load(DO + b * g_b + h * g_h + i[:, None] * g_t + d[None, :], mask=inside, other=0.0)
    rows = tl.program_id(1).to(tl.int64) * T + i
    lse = tl.load(L + rows, mask=i < T, other=float("inf"))
    o = tl.load(O + b * o_b + h * o_h + i[:, None] * o_t + d[None, :], mask=inside, other=0.0)
    sums = tl.sum(o.to(tl.float32) * g.to(tl.float32), 1)
    rest = tl.zeros((BM,), tl.float32)
    dq = tl.zeros((BM, E), tl.float32)
    whole, far = (i0 // BN) * BN, 0
    if LEAVES:
        far = first_key(X, Y, tl.load(Z + tl.program_id(1)), i0, T, KIND)
    if REACH > 0 or STRAIGHT:
        far = tl.maximum((i0 - simple_from(X, KIND, REACH, BN)) // BN, 0) * BN
        dq, rest = key_blocks(
            dq, rest, q, g, lse, sums, K, V, i, i0, 0, far, T, k_t, v_t, scale, X, Y, Z, W,
            KIND, True, False, SUMS, REACH, E, D, BN, PRECISION,
        )  # fmt: skip
    dq, rest = key_blocks(
        dq, rest, q, g, lse, sums, K, V, i, i0, far, whole, T, k_t, v_t, scale, X, Y, Z, W,
        KIND, False, False, SUMS, REACH, E, D, BN, PRECISION,
    )  # fmt: skip
    dq, rest = key_blocks(
        dq, rest, q, g, lse, sums, K, V, i, i0, whole, i0 + BM, T, k_t, v_t, scale, X, Y, Z, W,
        KIND, False, True, SUMS, REACH, E, D, BN, PRECISION,
    )  # fmt: skip
    tl.store(R + rows, sums + rest, mask=i < T)
    at = DQ + b * dq_b + h * dq_h + i[:, None] * dq_t + e[None, :]
    tl.store(at, (dq * plain_scale).to(DQ.dtype.element_ty), mask=inside)
