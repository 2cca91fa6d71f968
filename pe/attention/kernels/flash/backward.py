"""The gradients of `pe.attention.kernels.flash.forward`; terms and names are explained there.

    dv = P^T dO    dS = P (dO v^T - rowsum(dO o))    dq = scale dS k    dk = scale dS^T q

Weights are recomputed from the logsumexp of the forward pass. For ROWS the gradient of the bias is
dS. Otherwise it is a sum of dS: over queries for KEYS, along diagonals for TABLE, weighted by the
derivatives by the parameters for LOGARITHM and POWER, and over what f depends on for FIRE (the
latter and that of TABLE are in `pe.attention.kernels.flash.learned`). Each row of dS sums to 0. So
a term that all biases of a row have in common has no gradient.

Rows sum to 0 exactly only if o in rowsum(dO o) is not rounded, but it is rounded to 16 bits. In
sums over thousands of entries the error would accumulate. So where such sums are needed
(NEEDS_SUMS), `by_queries`, which runs first, adds the sum of each row of dS to the rowsum. With the
corrected rowsum, the rows in later kernels sum to 0.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import inverse, log2, tile
from pe.attention.kernels.flash.fire_far import far_blocks
from pe.attention.kernels.flash.forward import (
    add_bias,
    distances,
    far_from,
    load_aux,
    sink_logits,
)
from pe.attention.kernels.flash.horizon import first_key, last_query
from pe.attention.kernels.flash.kinds import FIRE, KEYS, LOG2E, LOGARITHM, POWER, ROWS
from pe.attention.kernels.flash.piecewise_linear import (
    line_of_log,
    line_of_share,
    offsets_from_middle,
)
from pe.attention.kernels.flash.spans import first_keys, keys_of_queries, queries_of_keys, seen


@triton.jit
def visit_queries(
    b_dk, b_dv, b_dx, b_dy, b_k, b_v, b_aux, p_q, p_do, p_lse, p_sums, o_j, j0, start, stop, T, q_t,
    g_t, scale, p_x, p_y, p_z, p_spans, p_rows,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr, NEEDS_SUMS: tl.constexpr,
    IS_FAR: tl.constexpr, IS_EDGE: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add the contributions of the queries from ``start`` to ``stop`` to a block of keys.

    Args:
        b_dk: (BN, E). b_dv: (BN, D). b_dx, b_dy: (BN,), of the bias (`by_keys`).
        b_k, b_v: the block of keys and values. b_aux: as in `add_bias`.
        p_q, p_do, p_lse, p_sums, p_x, p_y: already those of this head. q_t, g_t: strides by token
            of p_q and p_do.
        p_rows: (T, REACH) of the dtype of x, written for ROWS with NEEDS_SUMS: the gradient of x.
        IS_FAR, IS_DIAGONAL: as in `add_bias`. IS_EDGE: some of these queries do not see some of the
            keys (`spans`).
    """
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    for i0 in tl.range(start, stop, BM):
        o_i = i0 + tl.arange(0, BM)
        m_i = o_i < T
        b_q = tl.load(p_q + o_i[:, None] * q_t + o_e[None, :], mask=m_i[:, None], other=0.0)
        b_lse = tl.load(p_lse + o_i, mask=m_i, other=float("inf"))  # makes weights beyond T 0
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION) * scale
        b_s = add_bias(
            b_s, o_i, o_j, i0, j0, T, b_aux, p_x, p_y, p_z, KIND, REACH, IS_FAR, IS_DIAGONAL,
            IS_TRANSPOSED=True,
        )  # fmt: skip
        b_p = tl.math.exp2(b_s - b_lse[None, :])
        if IS_EDGE:
            b_seen = seen(p_spans, o_i, o_j, T, SEGMENTED, IS_TRANSPOSED=True)
            b_p = tl.where(b_seen, b_p, 0.0)
        elif IS_DIAGONAL:
            b_p = tl.where(o_i[None, :] >= o_j[:, None], b_p, 0.0)
        b_do = tl.load(p_do + o_i[:, None] * g_t + o_d[None, :], mask=m_i[:, None], other=0.0)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision=PRECISION)
        b_sums = tl.load(p_sums + o_i, mask=m_i, other=0.0)
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_sums[None, :])
        if NEEDS_SUMS and KIND == KEYS:
            b_dx += tl.sum(b_ds, 1)
        elif NEEDS_SUMS and KIND == ROWS and not IS_FAR:
            away = o_i[None, :] - o_j[:, None]
            near = (away >= 0) & (away < REACH) & m_i[None, :]
            p_near = p_rows + o_i[None, :].to(tl.int64) * REACH + away
            tl.store(p_near, (b_ds / LOG2E).to(p_rows.dtype.element_ty), mask=near)
        elif NEEDS_SUMS and KIND == LOGARITHM and IS_FAR:
            middle, offset = offsets_from_middle(o_i, o_j, i0, j0, True, BM)
            plain, offsets_along = tl.sum(b_ds, 1), tl.sum(b_ds * offset[None, :], 1)
            value, slope = line_of_log(middle, tl.load(p_x + 1), BM)
            b_dx += plain * value + offsets_along * slope
            value, slope = line_of_share(middle, tl.load(p_x + 1), BM)
            b_dy += plain * value + offsets_along * slope
        elif NEEDS_SUMS and KIND == LOGARITHM:
            b_distance = distances(o_i, o_j, True, IS_DIAGONAL)
            inner = 1.0 + tl.load(p_x + 1) * b_distance
            b_dx += tl.sum(b_ds * log2(inner), 1)
            b_dy += tl.sum(b_ds * (b_distance * inverse(inner)), 1)
        elif NEEDS_SUMS and KIND == POWER:
            b_distance = distances(o_i, o_j, True, IS_DIAGONAL)
            positive = b_distance > 0.0
            logarithm = tl.where(positive, log2(b_distance), 0.0)
            by_first = tl.where(positive, b_ds * tl.math.exp2(tl.load(p_x + 1) * logarithm), 0.0)
            b_dx += tl.sum(by_first, 1)
            b_dy += tl.sum(by_first * logarithm, 1)
        b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
    return b_dk, b_dv, b_dx, b_dy


@triton.jit
def by_keys(
    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_w, p_dk, p_dv, p_dx, p_dy, p_order,
    p_breaks, p_by_c, p_rows_c, p_rows_m, p_parts, p_spans, T, H, G, scale, plain_scale, q_strides,
    k_strides, v_strides, do_strides, x_strides, y_strides, w_strides, dk_strides, dv_strides,
    spans_b,
    KIND: tl.constexpr, NEEDS_SUMS: tl.constexpr, REACH: tl.constexpr, USES_HORIZON: tl.constexpr,
    USES_LINES: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, UNITS: tl.constexpr,
    KNOTS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one block of keys of one key head, and gradients of the bias.

    Args:
        p_q, p_k, p_v, p_x, p_y, p_z, p_w, p_spans: as in `forward`.
        p_do: (B, H, T, D), the gradient of the output.
        p_lse, p_sums: (B, H, T) float32, which `forward` and `by_queries` wrote.
        p_dk: (B, H / G, T, E), written. p_dv: (B, H / G, T, D), written.
        p_dx, p_dy: (B, H, T) float32, written with NEEDS_SUMS. For KEYS, p_dx is the gradient of
            each key's x. For LOGARITHM and POWER they are the contributions of each key to the
            gradients of the two parameters. For ROWS, p_dx is (B, H, T, REACH), zero before, and
            entry (i, r) is written if query i sees the key at distance r.
        p_order, p_breaks, p_by_c, p_rows_c, p_rows_m: used by FIRE with USES_LINES; p_order lists
            far blocks of queries (`pe.attention.kernels.flash.fire_far`).
        p_parts: (B, H, key blocks, 4, PADDED) float32, written by FIRE with USES_LINES: what far
            blocks contribute to the gradients of f.
        scale: of the logits, times log2(e). plain_scale: the same without log2(e).
    """
    j0 = tl.program_id(0) * BN  # the first keys are seen by the most queries, and start first
    heads = H // G
    i_b, i_hk = (tl.program_id(1) // heads).to(tl.int64), tl.program_id(1) % heads
    o_j = j0 + tl.arange(0, BN)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_j = o_j[:, None] < T
    b_k = tl.load(tile(p_k, k_strides, i_b, i_hk, o_j, o_e), mask=m_j, other=0.0)
    b_v = tl.load(tile(p_v, v_strides, i_b, i_hk, o_j, o_d), mask=m_j, other=0.0)
    b_dk = tl.zeros((BN, E), tl.float32)
    b_dv = tl.zeros((BN, D), tl.float32)
    if p_spans is not None:
        p_spans += i_b * spans_b
    for i_g in range(G):
        i_h = i_hk * G + i_g
        p_qh = p_q + i_b * q_strides[0] + i_h * q_strides[1]
        p_doh = p_do + i_b * do_strides[0] + i_h * do_strides[1]
        p_xh = p_x + i_b * x_strides[0] + i_h * x_strides[1]
        p_yh = p_y + i_b * y_strides[0] + i_h * y_strides[1]
        p_lseh, p_sumsh = p_lse + (i_b * H + i_h) * T, p_sums + (i_b * H + i_h) * T
        b_aux = tl.load(p_xh + o_j) if KIND == KEYS else o_j
        b_dx = tl.zeros((BN,), tl.float32)
        b_dy = tl.zeros((BN,), tl.float32)
        p_rows = p_dx
        if KIND == ROWS:
            p_rows += (i_b * H + i_h) * T * REACH
        b_dk, b_dv, b_dx, b_dy = visit_queries(
            b_dk, b_dv, b_dx, b_dy, b_k, b_v, b_aux, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, j0,
            tl.minimum(j0 + BN, T), T, q_strides[2], do_strides[2], scale, p_xh, p_yh, p_z, p_spans,
            p_rows, KIND, REACH, SEGMENTED, E, D, BM, PRECISION, NEEDS_SUMS, IS_FAR=False,
            IS_EDGE=p_spans is not None, IS_DIAGONAL=True,
        )  # fmt: skip
        far = T
        if USES_HORIZON:
            far = last_query(p_xh, p_yh, tl.load(p_z + i_b * H + i_h), j0, j0 + BN, T, KIND)
        if (REACH > 0 or USES_LINES) and p_spans is None:
            beyond = tl.cdiv(far_from(p_xh, KIND, REACH, BM), BM) * BM  # the diagonal
            far = tl.minimum(j0 + BN + beyond, T)
        if p_spans is not None:
            far, stop = queries_of_keys(p_spans, o_j, j0 + BN, T, SEGMENTED, BM)
        b_dk, b_dv, b_dx, b_dy = visit_queries(
            b_dk, b_dv, b_dx, b_dy, b_k, b_v, b_aux, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, j0 + BN,
            far, T, q_strides[2], do_strides[2], scale, p_xh, p_yh, p_z, p_spans, p_rows, KIND,
            REACH, SEGMENTED, E, D, BM, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=False,
            IS_DIAGONAL=False,
        )  # fmt: skip
        if p_spans is not None:
            b_dk, b_dv, b_dx, b_dy = visit_queries(
                b_dk, b_dv, b_dx, b_dy, b_k, b_v, b_aux, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, far,
                stop, T, q_strides[2], do_strides[2], scale, p_xh, p_yh, p_z, p_spans, p_rows, KIND,
                REACH, SEGMENTED, E, D, BM, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=True,
                IS_DIAGONAL=False,
            )  # fmt: skip
        if KIND == FIRE and USES_LINES:
            p_at = p_parts + ((i_b * H + i_h) * tl.num_programs(0) + tl.program_id(0)) * 4 * PADDED
            p_wh = p_w + i_h * w_strides[0] + tl.program_id(0)
            p_order_h = p_order + i_h * (w_strides[0] + 2 * w_strides[1]) + tl.program_id(0)
            taken, all_far = tl.load(p_order_h), tl.load(p_order_h + w_strides[1])
            b_dk, b_dv = far_blocks(
                b_dk, b_dv, b_k, b_v, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, T, q_strides[2],
                do_strides[2], scale, p_xh, p_yh, p_z, p_wh, w_strides[1],
                p_order_h + 2 * w_strides[1], 0, taken, p_breaks, p_by_c, p_rows_c, p_rows_m, p_at,
                UNITS, KNOTS, PADDED, E, D, BM, PRECISION, IS_LINEAR=True,
            )  # fmt: skip
            b_dk, b_dv = far_blocks(
                b_dk, b_dv, b_k, b_v, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, T, q_strides[2],
                do_strides[2], scale, p_xh, p_yh, p_z, p_wh, w_strides[1],
                p_order_h + 2 * w_strides[1], taken, all_far, p_breaks, p_by_c, p_rows_c, p_rows_m,
                p_at, UNITS, KNOTS, PADDED, E, D, BM, PRECISION, IS_LINEAR=False,
            )  # fmt: skip
        elif (REACH > 0 or USES_LINES) and p_spans is None:
            b_dk, b_dv, b_dx, b_dy = visit_queries(
                b_dk, b_dv, b_dx, b_dy, b_k, b_v, b_aux, p_qh, p_doh, p_lseh, p_sumsh, o_j, j0, far,
                T, T, q_strides[2], do_strides[2], scale, p_xh, p_yh, p_z, p_spans, p_rows, KIND,
                REACH, SEGMENTED, E, D, BM, PRECISION, NEEDS_SUMS, IS_FAR=True, IS_EDGE=False,
                IS_DIAGONAL=False,
            )  # fmt: skip
        if NEEDS_SUMS and KIND != FIRE and KIND != ROWS:
            tl.store(p_dx + (i_b * H + i_h) * T + o_j, b_dx, mask=o_j < T)
            if KIND != KEYS:
                tl.store(p_dy + (i_b * H + i_h) * T + o_j, b_dy, mask=o_j < T)
    tl.store(tile(p_dk, dk_strides, i_b, i_hk, o_j, o_e), b_dk * plain_scale, mask=m_j)
    tl.store(tile(p_dv, dv_strides, i_b, i_hk, o_j, o_d), b_dv, mask=m_j)


@triton.jit
def visit_keys(
    b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, start, stop, T, k_t, v_t, scale, p_x,
    p_y, p_z, p_w, p_spans,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, NEEDS_SUMS: tl.constexpr,
    IS_FAR: tl.constexpr, IS_EDGE: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add the contributions of the keys from ``start`` to ``stop`` to a block of queries.

    Args:
        b_dq: (BM, E). b_rest: (BM,), the sum of each row of dS, if NEEDS_SUMS.
        b_q, b_do, b_lse, b_sums: of the block of queries. Other arguments are those of
            `pe.attention.kernels.flash.forward.visit_keys`.
    """
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    for j0 in tl.range(start, stop, BN):
        o_j = j0 + tl.arange(0, BN)
        if IS_DIAGONAL:
            b_k = tl.load(p_k + o_j[:, None] * k_t + o_e[None, :], mask=o_j[:, None] < T, other=0.0)
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[:, None] * k_t + o_e[None, :])
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        b_aux = load_aux(p_x, p_w, o_j, j0 // BN, KIND, IS_FAR)
        b_s = add_bias(
            b_s, o_i, o_j, i0, j0, T, b_aux, p_x, p_y, p_z, KIND, REACH, IS_FAR, IS_DIAGONAL,
            IS_TRANSPOSED=False,
        )  # fmt: skip
        b_p = tl.math.exp2(b_s - b_lse[:, None])
        if IS_EDGE:
            b_seen = seen(p_spans, o_i, o_j, T, SEGMENTED, IS_TRANSPOSED=False)
            b_p = tl.where(b_seen, b_p, 0.0)
        elif IS_DIAGONAL:
            b_p = tl.where(o_i[:, None] >= o_j[None, :], b_p, 0.0)
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_sums[:, None])
        if NEEDS_SUMS:
            b_rest += tl.sum(b_ds, 1)
        b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
    return b_dq, b_rest


@triton.jit
def by_queries(
    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_w, p_o, p_dq, p_spans, p_sink, T, H, G,
    scale, plain_scale, q_strides, k_strides, v_strides, do_strides, x_strides, y_strides,
    w_strides, out_strides, dq_strides, spans_b,
    KIND: tl.constexpr, NEEDS_SUMS: tl.constexpr, REACH: tl.constexpr, USES_HORIZON: tl.constexpr,
    USES_LINES: tl.constexpr, KEEPS: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq of one block of queries of one head, and the row sums that other gradients need.

    Args:
        p_q, p_k, p_v, p_o, p_lse, p_x, p_y, p_z, p_w, p_spans, p_sink: as in `forward`.
        p_do: (B, H, T, D), the gradient of the output. p_dq: (B, H, T, E), written.
        p_sums: (B, H, T) float32, written: rowsum(dO o), corrected with NEEDS_SUMS.
        scale: of the logits, times log2(e). plain_scale: the same without log2(e).
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)
    i_b, i_h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    p_x += i_b * x_strides[0] + i_h * x_strides[1]
    p_y += i_b * y_strides[0] + i_h * y_strides[1]
    p_w += i_h * w_strides[0] + i_block * w_strides[1]
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_i = o_i[:, None] < T
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i, other=0.0)
    b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_i, o_d), mask=m_i, other=0.0)
    o_rows = tl.program_id(1).to(tl.int64) * T + o_i
    b_lse = tl.load(p_lse + o_rows, mask=o_i < T, other=float("inf"))
    b_o = tl.load(tile(p_o, out_strides, i_b, i_h, o_i, o_d), mask=m_i, other=0.0)
    b_sums = tl.sum(b_o.to(tl.float32) * b_do.to(tl.float32), 1)
    b_rest = tl.zeros((BM,), tl.float32)
    if p_sink is not None:  # the sink's entry of a row of dS; its value is 0
        b_rest -= tl.math.exp2(sink_logits(p_sink + i_h, p_x, o_i, KIND) - b_lse) * b_sums
    b_dq = tl.zeros((BM, E), tl.float32)
    diagonal, far = (i0 // BN) * BN, 0
    if USES_HORIZON:
        far = first_key(p_x, p_y, tl.load(p_z + tl.program_id(1)), i0, T, KIND)
    if (REACH > 0 or USES_LINES) and p_spans is None:
        far = tl.maximum((i0 - far_from(p_x, KIND, REACH, BN)) // BN, 0) * BN
        b_dq, b_rest = visit_keys(
            b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, 0, far, T,
            k_strides[2], v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED,
            E, D, BN, PRECISION, NEEDS_SUMS, IS_FAR=True, IS_EDGE=False, IS_DIAGONAL=False,
        )  # fmt: skip
    if p_spans is not None:
        p_spans += i_b * spans_b
        start, far = keys_of_queries(p_spans, o_i, diagonal, T, SEGMENTED, BN)
        if KEEPS:
            begin, end = first_keys(p_spans, o_i, start, T, BN)
            b_dq, b_rest = visit_keys(
                b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, begin, end, T,
                k_strides[2], v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH,
                SEGMENTED, E, D, BN, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=True,
                IS_DIAGONAL=False,
            )  # fmt: skip
        b_dq, b_rest = visit_keys(
            b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, start, far, T,
            k_strides[2], v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED,
            E, D, BN, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=True, IS_DIAGONAL=False,
        )  # fmt: skip
    b_dq, b_rest = visit_keys(
        b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, far, diagonal, T,
        k_strides[2], v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E,
        D, BN, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=False, IS_DIAGONAL=False,
    )  # fmt: skip
    b_dq, b_rest = visit_keys(
        b_dq, b_rest, b_q, b_do, b_lse, b_sums, p_k, p_v, o_i, i0, diagonal, i0 + BM, T,
        k_strides[2], v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E,
        D, BN, PRECISION, NEEDS_SUMS, IS_FAR=False, IS_EDGE=p_spans is not None, IS_DIAGONAL=True,
    )  # fmt: skip
    tl.store(p_sums + o_rows, b_sums + b_rest, mask=o_i < T)
    tl.store(tile(p_dq, dq_strides, i_b, i_h, o_i, o_e), b_dq * plain_scale, mask=m_i)
