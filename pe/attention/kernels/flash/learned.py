"""The gradients of a table and of FIRE's network, which are sums of dS over the whole batch.

All sequences share one table or network. So here, unlike in the kernels for dq, dk and dv, a
program takes one block of the attention matrix and goes through the sequences. No two programs add
to the same number, so equal inputs give equal bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import log2
from pe.attention.kernels.flash.forward import add_bias, at_distance, distances
from pe.attention.kernels.flash.kinds import LOG2E
from pe.attention.kernels.flash.spans import block_is_seen, seen


@triton.jit
def score_gradient(
    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans, i_b, i_h, i0, j0, T, H, G, scale,
    q_strides, k_strides, v_strides, do_strides, spans_b,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return dS of a square block, (BM, BM) float32; arguments are those of `backward.by_keys`."""
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    o_i, o_j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BM)
    m_i, m_j = o_i < T, o_j[:, None] < T
    p_tile = p_q + i_b * q_strides[0] + i_h * q_strides[1] + o_i[:, None] * q_strides[2]
    p_tile += o_e[None, :]
    b_q = tl.load(p_tile, mask=m_i[:, None], other=0.0)
    p_tile = p_k + i_b * k_strides[0] + (i_h // G) * k_strides[1] + o_j[:, None] * k_strides[2]
    p_tile += o_e[None, :]
    b_k = tl.load(p_tile, mask=m_j, other=0.0)
    p_tile = p_v + i_b * v_strides[0] + (i_h // G) * v_strides[1] + o_j[:, None] * v_strides[2]
    p_tile += o_d[None, :]
    b_v = tl.load(p_tile, mask=m_j, other=0.0)
    p_tile = p_do + i_b * do_strides[0] + i_h * do_strides[1] + o_i[:, None] * do_strides[2]
    p_tile += o_d[None, :]
    b_do = tl.load(p_tile, mask=m_i[:, None], other=0.0)
    b_lse = tl.load(p_lse + (i_b * H + i_h) * T + o_i, mask=m_i, other=float("inf"))
    b_sums = tl.load(p_sums + (i_b * H + i_h) * T + o_i, mask=m_i, other=0.0)
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
    b_s = add_bias(
        b_s, o_i, o_j, i0, j0, T, o_j, p_x, p_y, p_z, KIND, REACH, IS_FAR=False, IS_DIAGONAL=True,
        IS_TRANSPOSED=False,
    )  # fmt: skip
    b_p = tl.math.exp2(b_s - b_lse[:, None])
    if p_spans is not None:
        b_seen = seen(p_spans + i_b * spans_b, o_i, o_j, T, SEGMENTED, IS_TRANSPOSED=False)
        b_p = tl.where(b_seen, b_p, 0.0)
    else:
        b_p = tl.where(o_i[:, None] >= o_j[None, :], b_p, 0.0)
    return b_p * (tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION) - b_sums[:, None])


@triton.jit
def of_table(
    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans, p_tiles, B, T, H, G, scale,
    q_strides, k_strides, v_strides, do_strides, spans_b, x_h,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum dS over a share of the n-th diagonal of blocks, all of which have the same distances.

    Program (n, share, head) goes down the diagonal, one sequence after another.

    Args:
        p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans: as in `backward.by_keys`.
        p_tiles: (H, diagonals, shares, BM, BM) float32, written.
        x_h: the stride of p_x by head.
    """
    i_n, i_share, i_h = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b_total = tl.zeros((BM, BM), tl.float32)
    blocks = tl.cdiv(T, BM) - i_n
    each = tl.cdiv(B * blocks, tl.num_programs(1))
    for step in tl.range(i_share * each, tl.minimum((i_share + 1) * each, B * blocks)):
        i_b = (step // blocks).to(tl.int64)
        j0 = (step % blocks) * BM
        is_seen = True
        if p_spans is not None:
            is_seen = block_is_seen(p_spans + i_b * spans_b, j0 + i_n * BM, j0, T, BM)
        if is_seen:
            b_total += score_gradient(
                p_q, p_k, p_v, p_do, p_lse, p_sums, p_x + i_h * x_h, p_y, p_z, p_spans, i_b, i_h,
                j0 + i_n * BM, j0, T, H, G, scale, q_strides, k_strides, v_strides, do_strides,
                spans_b, KIND, REACH, SEGMENTED, E, D, BM, PRECISION,
            )  # fmt: skip
    o_at = ((i_h * tl.num_programs(0) + i_n) * tl.num_programs(1) + i_share).to(tl.int64)
    o_r = tl.arange(0, BM)
    tl.store(p_tiles + o_at * BM * BM + o_r[:, None] * BM + o_r[None, :], b_total)


@triton.jit
def sum_of_block(x):
    """Return the sum of all entries of a block."""
    return tl.sum(tl.sum(x, 1), 0)


@triton.jit
def of_network(
    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans, p_w, p_breaks, p_by_c, p_rows_c,
    p_rows_m, p_parts, B, T, H, G, scale, q_strides, k_strides, v_strides, do_strides, spans_b, x_h,
    w_strides, UNITS,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, KNOTS: tl.constexpr,
    PADDED: tl.constexpr, USES_LINES: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum over every n-th block, in all sequences, what the gradient of FIRE's network needs.

    u is the argument of f. For each unit of the network these are the sums of dS, dS u, dS du/dc
    and dS du/dm over all entries with u above the unit's corner, where c and m are FIRE's two
    parameters.

    Args:
        p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans: as in `backward.by_keys`; all
            sequences have the same spans, those of a single document.
        p_w: (H, blocks, blocks) int32, as in `forward`. With USES_LINES, blocks that lie in one
            piece of f, whose entry is 0 or more, are skipped here;
            `pe.attention.kernels.flash.fire_far` sums them.
        p_breaks: (UNITS,) float32, the corners of f.
        p_by_c, p_rows_c, p_rows_m: float32, parts of du/dc by distance and by row, and of du/dm by
            row (`pe.encodings.core.forms.fire`).
        p_parts: (H, programs, 4, PADDED) float32, written. PADDED: UNITS, rounded up to a power of
            two.
    """
    i_h = tl.program_id(1)
    p_x += i_h * x_h
    o_unit = tl.arange(0, PADDED)
    plain = tl.zeros((PADDED,), tl.float32)
    by_u, by_c, by_m = plain, plain, plain
    across = tl.cdiv(T, BM)
    for i_block in tl.range(tl.program_id(0), across * (across + 1) // 2, tl.num_programs(0)):
        # Row and column of the block in the lower triangle, whose blocks are numbered by rows. The
        # square root may be off by one.
        root = tl.sqrt(8.0 * (i_block + tl.full((), 0, tl.int32)).to(tl.float32) + 1.0)
        row = ((root - 1.0) / 2.0).to(tl.int32)
        row = tl.where(row * (row + 1) // 2 > i_block, row - 1, row)
        row = tl.where((row + 1) * (row + 2) // 2 <= i_block, row + 1, row)
        i0, j0 = row * BM, (i_block - row * (row + 1) // 2) * BM
        done = (
            tl.load(p_w + i_h * w_strides[0] + row * w_strides[1] + j0 // BM) >= 0
            if USES_LINES
            else False
        )
        if p_spans is not None:
            done = not block_is_seen(p_spans, i0, j0, T, BM)
        if not done:
            b_total = tl.zeros((BM, BM), tl.float32)
            for i_b in tl.range(0, B):
                b_total += score_gradient(
                    p_q, p_k, p_v, p_do, p_lse, p_sums, p_x, p_y, p_z, p_spans,
                    i_b + tl.full((), 0, tl.int64), i_h, i0, j0, T, H, G, scale, q_strides,
                    k_strides, v_strides, do_strides, spans_b,
                    KIND, REACH, SEGMENTED, E, D, BM, PRECISION,
                )  # fmt: skip
            o_i, o_j = i0 + tl.arange(0, BM), j0 + tl.arange(0, BM)
            rows = tl.load(p_z + o_i) / KNOTS
            u = log2(1.0 + tl.load(p_y) * distances(o_i, o_j, False, True)) * rows[:, None]
            rows *= LOG2E  # 1 / N_i
            u = tl.where(o_i[:, None] >= o_j[None, :], u, 0.0)
            # du/dc = psi'(i - j) / N_i - u (dN_i/dc) / N_i,   du/dm = - u (dN_i/dm) / N_i
            of_c = (
                at_distance(p_by_c, o_i, o_j, False) - u * tl.load(p_rows_c + o_i)[:, None]
            ) * rows[:, None]
            of_m = -u * (tl.load(p_rows_m + o_i) * rows)[:, None]
            all_plain, all_u = sum_of_block(b_total), sum_of_block(b_total * u)
            all_c, all_m = sum_of_block(b_total * of_c), sum_of_block(b_total * of_m)
            # u rises with the query and falls with the key, so two corners of the block have its
            # smallest and its largest value.
            last = tl.minimum(i0 + BM, T) - 1
            u_max = log2(1.0 + tl.load(p_y) * (last - j0)) * tl.load(p_z + last) / KNOTS
            nearest = tl.maximum(i0 - (j0 + BM - 1), 0)
            u_min = log2(1.0 + tl.load(p_y) * nearest) * tl.load(p_z + i0) / KNOTS
            edges = tl.load(p_breaks + o_unit, mask=o_unit < UNITS, other=float("inf"))
            whole = edges < u_min  # the whole block lies above these corners of f
            plain += tl.where(whole, all_plain, 0.0)
            by_u += tl.where(whole, all_u, 0.0)
            by_c += tl.where(whole, all_c, 0.0)
            by_m += tl.where(whole, all_m, 0.0)
            if tl.sum(((edges >= u_min) & (edges < u_max)).to(tl.int32), 0) > 0:  # rare far away
                for n in tl.range(0, UNITS):
                    edge = tl.load(p_breaks + n)
                    if (edge >= u_min) & (edge < u_max):  # the corner is crossed inside the block
                        above = tl.where(u > edge, b_total, 0.0)
                        here = o_unit == n
                        plain += tl.where(here, sum_of_block(above), 0.0)
                        by_u += tl.where(here, sum_of_block(above * u), 0.0)
                        by_c += tl.where(here, sum_of_block(above * of_c), 0.0)
                        by_m += tl.where(here, sum_of_block(above * of_m), 0.0)
    p_at = (
        p_parts + (i_h * tl.num_programs(0) + tl.program_id(0)).to(tl.int64) * 4 * PADDED + o_unit
    )
    tl.store(p_at, plain)
    tl.store(p_at + PADDED, by_u)
    tl.store(p_at + 2 * PADDED, by_c)
    tl.store(p_at + 3 * PADDED, by_m)
