"""Stick-breaking attention (arXiv:2410.17980) block by block, without a matrix of all pairs.

    L = ln(1 + e^z)    C_mn = sum_{l > n} L_ml    A = sigmoid(z) e^-C    o = A v
    g = dO v^T    dz_mn = A_mn g_mn - sigmoid(z_mn) sum_{l <= n} A_ml g_ml

z = scale q k^T, and the sums run over the keys that query m sees. Everything is in base 2, so L is
log2(1 + 2^s) with s = z log2(e). `forward` goes from each block of queries to the left and adds up
L. Every `CHUNK` keys it stops if less than 2^-`REST` of the stick is left for all of its queries.

The backward kernels are in `.backward`. `by_queries` goes from there to the right and computes dq.
C of the keys to the right of a block is the total minus what lies to the left, in float64, because
the difference of two large sums would be inexact. It writes this C and the sum of A g to the left
of each block, two numbers per query and block of keys, for some heads at a time. `by_keys` reads
them and computes dk and dv. There are no atomic operations, so the results are the same bits in
each run.

A sum within a block is a product with a triangular matrix. If queries have 16 bits, the terms are
the sums of two bfloat16, which rounds them to 16 bits; otherwise the product is in float32.

Names and strides are those of `pe.attention.kernels.flash.forward`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import INTERPRETED, tile
from pe.attention.kernels.flash.spans import first_keys, seen
from pe.encodings.core.forms import LOG2E

REST: tl.constexpr = tl.constexpr(40 * LOG2E)
"""As in `pe.encodings.stickbreaking`, in base 2."""
CHUNK: tl.constexpr = tl.constexpr(256)
"""Number of keys after which `forward` tests whether anything of the sticks is left."""


@triton.jit
def triangle(like, BN: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Return (BN, BN), 1 where the token of the row is after that of the column, or transposed.

    It is float32 for queries in float32, and otherwise bfloat16, except in Triton's interpreter,
    which does not compute products of bfloat16.
    """
    o_n = tl.arange(0, BN)
    if IS_TRANSPOSED:
        later = (o_n[None, :] > o_n[:, None]).to(tl.float32)
    else:
        later = (o_n[:, None] > o_n[None, :]).to(tl.float32)
    return later if like.dtype == tl.float32 or INTERPRETED else later.to(tl.bfloat16)


@triton.jit
def sums(x, which, IS_TRANSPOSED: tl.constexpr):
    """Return x @ which, (BM, BN), for a matrix (BN, BN) of 0 and 1; IS_TRANSPOSED, which @ x."""
    high = x.to(which.dtype)
    if IS_TRANSPOSED:
        b_sums = tl.dot(which, high, input_precision="ieee")
    else:
        b_sums = tl.dot(high, which, input_precision="ieee")
    if which.dtype != tl.float32:
        low = (x - high.to(tl.float32)).to(which.dtype)
        if IS_TRANSPOSED:
            b_sums = tl.dot(which, low, b_sums)
        else:
            b_sums = tl.dot(low, which, b_sums)
    return b_sums


@triton.jit
def break_off(
    b_s, o_i, o_j, p_spans, T, IS_EDGE: tl.constexpr, NEAREST: tl.constexpr,
    SEGMENTED: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Return the log2 of sigmoid(z), and L; -inf and 0 for keys that a query does not see.

    Args:
        b_s: logits in base 2, (BM, BN), or IS_TRANSPOSED.
        IS_EDGE: some of the queries do not see all of these keys.
        NEAREST: the distance of the nearest key that a query sees, 0 or 1.
    """
    x = tl.math.exp2(-tl.abs(b_s))
    # log2(1 + x) / x with a relative error of 2e-7. A logarithm of 1 + x would lose small x.
    b_log = x * -0.012319309889632592 + 0.06360731805914577
    b_log = b_log * x - 0.1553510805554964
    b_log = b_log * x + 0.2560091759867223
    b_log = b_log * x - 0.35339463678038296
    b_log = b_log * x + 0.4800636645703249
    b_log = b_log * x - 0.7213100862092924
    b_log = (b_log * x + 1.4426947605049734) * x
    b_share, b_broken = tl.minimum(b_s, 0.0) - b_log, tl.maximum(b_s, 0.0) + b_log
    if IS_EDGE:
        if IS_TRANSPOSED:
            m_seen = o_i[None, :] >= o_j[:, None] + NEAREST
        else:
            m_seen = o_i[:, None] >= o_j[None, :] + NEAREST
        if p_spans is not None:
            m_seen &= seen(p_spans, o_i, o_j, T, SEGMENTED, IS_TRANSPOSED)
        b_share = tl.where(m_seen, b_share, float("-inf"))
        b_broken = tl.where(m_seen, b_broken, 0.0)
    return b_share, b_broken


@triton.jit
def load_keys(p, o_j, t, T, IS_EDGE: tl.constexpr, WIDTH: tl.constexpr):
    """Load keys or values as columns, (WIDTH, BN); 0 from token T on."""
    p += o_j[None, :] * t + tl.arange(0, WIDTH)[:, None]
    return tl.load(p, mask=o_j[None, :] < T, other=0.0) if IS_EDGE else tl.load(p)


@triton.jit
def bounds(p_spans, o_i, i0, T, KEEPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Return the first block of near keys, the first kept key and the number of blocks of these.

    They are those that a window shows to a block of queries; without spans all are near.
    """
    start = tl.full((), 0, tl.int32)
    kept, blocks = start, start
    if p_spans is not None:
        start = tl.min(tl.load(p_spans + o_i, mask=o_i < T, other=2**31 - 1), 0) // BN * BN
        if KEEPS:
            kept, end = first_keys(p_spans, o_i, start, T, BN)
            blocks = tl.maximum(tl.cdiv(end - kept, BN), 0)
    return start, kept, blocks


@triton.jit
def visit_left(
    b_acc, b_rest, b_q, p_k, p_v, later, o_i, p_spans, stop, blocks, kept, before, T, k_t, v_t,
    scale, IS_EDGE: tl.constexpr, NEAREST: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Update output and C with ``blocks`` blocks of keys before ``stop``, the last one first.

    The last ``before`` of these blocks are the ones from key ``kept`` on.
    """
    o_d = tl.arange(0, D)
    for i in tl.range(0, blocks):
        left = blocks - 1 - i
        j0 = tl.where(left < before, kept + left * BN, stop - (i + 1) * BN)
        o_j = j0 + tl.arange(0, BN)
        b_k = load_keys(p_k, o_j, k_t, T, IS_EDGE, E)
        b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale
        b_share, b_broken = break_off(
            b_s, o_i, o_j, p_spans, T, IS_EDGE, NEAREST, SEGMENTED, IS_TRANSPOSED=False
        )
        b_c = sums(b_broken, later, IS_TRANSPOSED=False) + b_rest.to(tl.float32)[:, None]
        b_p = tl.math.exp2(b_share - b_c)
        if IS_EDGE:
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
        else:
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc, input_precision="ieee")
        b_rest += tl.sum(b_broken, 1).to(tl.float64)
    return b_acc, b_rest


@triton.jit
def forward(
    p_q, p_k, p_v, p_o, p_total, p_far, p_spans, T, H, G, scale, q_strides, k_strides, v_strides,
    out_strides, spans_b,
    NEAREST: tl.constexpr, KEEPS: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute the output of one block of queries of one head.

    Args:
        p_q: (B, H, T, E). p_k: (B, H / G, T, E). p_v: (B, H / G, T, D). p_o: (B, H, T, D), written.
        p_total: (B, H, T) float64, written: the sum of L over the keys that were visited.
        p_far: (B, H, query blocks) int32, written: the first of these keys.
        scale: of the logits, times log2(e).
        p_spans, KEEPS, SEGMENTED: as in `pe.attention.kernels.flash.forward`.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # blocks with the most keys start first
    i_b, i_h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    if p_spans is not None:
        p_spans += i_b * spans_b
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    m_i = o_i < T
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
    later = triangle(b_q, BN, IS_TRANSPOSED=False)
    b_acc = tl.zeros((BM, D), tl.float32)
    b_rest = tl.zeros((BM,), tl.float64)
    start, kept, before = bounds(p_spans, o_i, i0, T, KEEPS, BM, BN)
    stop = tl.minimum(i0 + BM, tl.cdiv(T, BN) * BN)
    far = i0 // BN * BN
    if p_spans is not None:
        far = start
    blocks = tl.cdiv(stop - far, BN)
    b_acc, b_rest = visit_left(
        b_acc, b_rest, b_q, p_k, p_v, later, o_i, p_spans, far + blocks * BN, blocks + before, kept,
        before, T, k_strides[2], v_strides[2], scale, True, NEAREST, SEGMENTED, E, D, BN,
    )  # fmt: skip
    if p_spans is None:
        for _ in tl.range(0, far, CHUNK):
            if tl.min(tl.where(m_i, b_rest.to(tl.float32), REST), 0) < REST:
                blocks = tl.minimum(far, CHUNK) // BN
                b_acc, b_rest = visit_left(
                    b_acc, b_rest, b_q, p_k, p_v, later, o_i, p_spans, far, blocks, 0, 0, T,
                    k_strides[2], v_strides[2], scale, False, NEAREST, SEGMENTED, E, D, BN,
                )  # fmt: skip
                far -= blocks * BN
    b_out = b_acc.to(p_o.dtype.element_ty)
    tl.store(tile(p_o, out_strides, i_b, i_h, o_i, o_d), b_out, mask=m_i[:, None])
    i_head = tl.program_id(1).to(tl.int64)
    tl.store(p_total + i_head * T + o_i, b_rest, mask=m_i)
    tl.store(p_far + i_head * tl.num_programs(0) + i_block, far)
