"""Stick-breaking attention (arXiv:2410.17980) block by block, with memory linear in the length.

    L = ln(1 + e^z)    C_mn = sum_{l > n} L_ml    A = sigmoid(z) e^-C    o = A v
    g = dO v^T    dz_mn = A_mn g_mn - sigmoid(z_mn) sum_{l <= n} A_ml g_ml

z = scale q k^T, and the sums run over the keys that query m sees. Everything is in base 2, so L is
log2(1 + 2^s) with s = z log2(e). `forward` goes from each block of queries to the left and adds up
L. Every `CHUNK` keys it stops if less than 2^-`REST` of the stick is left for all of its queries.
`by_queries` goes from there to the right and computes dq. C of the keys to the right of a block is
the total minus what lies to the left, in float64, because the difference of two large sums would be
inexact. It writes this C and the sum of A g to the left of each block, two numbers per query and
block of keys, for some heads at a time. `by_keys` reads them and computes dk and dv. There are no
atomic operations, so the results are the same in each run.

A sum within a block is a product with a triangular matrix. If queries have 16 bits, the terms are
the sums of two bfloat16, which rounds them to 16 bits; otherwise the product is in float32.

Names and strides are those of `pe.attention.kernels.flash.forward`.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton import cdiv

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.flash.blocks import Blocks
from pe.attention.kernels.flash.elementary import INTERPRETED, tile
from pe.attention.kernels.flash.self_check import spans_of
from pe.attention.kernels.flash.spans import first_keys, queries_of_keys, seen
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.attention.spans import Spans
from pe.encodings.core.forms import LOG2E

REST: tl.constexpr = tl.constexpr(40 * LOG2E)
"""As in `pe.encodings.stickbreaking`, in base 2."""
CHUNK: tl.constexpr = tl.constexpr(256)
"""Number of keys after which `forward` tries whether anything of the sticks is left."""
CHECKED = 600
"""Number of tokens in the self-check: more than two chunks."""
HELD = 2**25
"""The most numbers by query and block of keys, 4 bytes each, that are held at once, unless the
heads that share a key head have more."""
Blocked = tuple[Blocks, Blocks, Blocks]
NARROW: Blocked = Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 2)
"""Blocks of `forward`, `by_queries` and `by_keys` for heads of at most 64 channels. The first two
have equally many queries, and the last two equally many keys."""
WIDE: Blocked = Blocks(64, 32, 4, 3), Blocks(64, 32, 4, 2), Blocks(32, 32, 4, 2)
FULL: Blocked = (Blocks(32, 32, 4, 2),) * 3
"""The same for float32."""


def blocks_for(q: Tensor, v: Tensor) -> Blocked:
    """Return the blocks of the three kernels for heads as wide as these."""
    if q.dtype == torch.float32:
        return FULL
    return NARROW if max(q.shape[-1], v.shape[-1]) <= 64 else WIDE


@triton.jit
def triangle(like, BN: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Return (BN, BN), 1 where the token of the row is after that of the column, or transposed.

    It is float32 or bfloat16, whose products Triton's interpreter does not compute.
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


@triton.jit
def differentiate(b_share, b_broken, b_g, b_rest, b_left, later, IS_TRANSPOSED: tl.constexpr):
    """Return A, dz and the sum of A g over a block of keys, (BM, BN) or IS_TRANSPOSED, and (BM,).

    Args:
        b_g: g. b_rest, b_left: (BM,), the sum of L after the block, and that of A g before it.
    """
    b_c = sums(b_broken, later, IS_TRANSPOSED)
    b_c += b_rest[None, :] if IS_TRANSPOSED else b_rest[:, None]
    b_a = tl.math.exp2(b_share - b_c)
    b_g *= b_a
    b_upto = b_g + sums(b_g, tl.trans(later), IS_TRANSPOSED)
    b_upto += b_left[None, :] if IS_TRANSPOSED else b_left[:, None]
    return b_a, b_g - tl.math.exp2(b_share) * b_upto, tl.sum(b_g, 0 if IS_TRANSPOSED else 1)


@triton.jit
def visit_right(
    b_acc, b_rest, b_left, b_q, b_do, p_k, p_v, p_rest, p_left, later, o_i, p_spans, start, blocks,
    kept, before, T, k_t, v_t, scale, IS_EDGE: tl.constexpr, NEAREST: tl.constexpr,
    SEGMENTED: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Update dq with ``blocks`` blocks of keys, ``before`` from ``kept`` and then from ``start``.

    Args:
        b_rest: (BM,) float64, the sum of L over these keys and those after them.
        b_left: (BM,), the sum of A g over the keys before them.
        p_rest, p_left: (key blocks, T), written, those of this head.
    """
    for i in tl.range(0, blocks):
        j0 = tl.where(i < before, kept + i * BN, start + (i - before) * BN)
        o_j = j0 + tl.arange(0, BN)
        b_k = load_keys(p_k, o_j, k_t, T, IS_EDGE, E)
        b_v = load_keys(p_v, o_j, v_t, T, IS_EDGE, D)
        b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale
        b_share, b_broken = break_off(
            b_s, o_i, o_j, p_spans, T, IS_EDGE, NEAREST, SEGMENTED, IS_TRANSPOSED=False
        )
        b_rest -= tl.sum(b_broken, 1).to(tl.float64)
        b_after = tl.maximum(b_rest.to(tl.float32), 0.0)  # rounding may leave less than 0
        o_at = (j0 // BN).to(tl.int64) * T + o_i
        tl.store(p_rest + o_at, b_after, mask=o_i < T)
        tl.store(p_left + o_at, b_left, mask=o_i < T)
        b_g = tl.dot(b_do, b_v, input_precision="ieee")
        _, b_dz, b_sum = differentiate(
            b_share, b_broken, b_g, b_after, b_left, later, IS_TRANSPOSED=False
        )
        b_left += b_sum
        b_acc = tl.dot(b_dz.to(b_k.dtype), tl.trans(b_k), b_acc, input_precision="ieee")
    return b_acc, b_rest, b_left


@triton.jit
def by_queries(
    p_q, p_k, p_v, p_do, p_dq, p_total, p_far, p_rest, p_left, p_spans, first, T, H, G, scale,
    plain_scale, q_strides, k_strides, v_strides, do_strides, dq_strides, spans_b,
    NEAREST: tl.constexpr, KEEPS: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute dq of one block of queries of one head, and what `by_keys` needs.

    Args:
        p_do: (B, H, T, D), the gradient of the output. p_dq: (B, H, T, E), written.
        p_total, p_far: from `forward`, with blocks of as many queries.
        p_rest, p_left: (heads, key blocks, T) float32, written: the sum of L after each block of
            keys, and that of A g before it, from head ``first`` on.
        plain_scale: of the logits. Other arguments are those of `forward`.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)
    i_local = tl.program_id(1).to(tl.int64)
    i_head = first + i_local
    i_b, i_h = i_head // H, i_head % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    p_rest += i_local * tl.cdiv(T, BN) * T
    p_left += i_local * tl.cdiv(T, BN) * T
    if p_spans is not None:
        p_spans += i_b * spans_b
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    m_i = o_i < T
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
    b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_i, o_d), mask=m_i[:, None], other=0.0)
    later = triangle(b_q, BN, IS_TRANSPOSED=False)
    b_rest = tl.load(p_total + i_head * T + o_i, mask=m_i, other=0.0)
    b_left = tl.zeros((BM,), tl.float32)
    b_acc = tl.zeros((BM, E), tl.float32)
    start, kept, before = bounds(p_spans, o_i, i0, T, KEEPS, BM, BN)
    diagonal = i0 // BN * BN
    if p_spans is None:
        start = tl.load(p_far + i_head * tl.num_programs(0) + i_block)
        b_acc, b_rest, b_left = visit_right(
            b_acc, b_rest, b_left, b_q, b_do, p_k, p_v, p_rest, p_left, later, o_i, p_spans, start,
            (diagonal - start) // BN, 0, 0, T, k_strides[2], v_strides[2], scale, False, NEAREST,
            SEGMENTED, E, D, BN,
        )  # fmt: skip
        start = diagonal
    stop = tl.minimum(i0 + BM, tl.cdiv(T, BN) * BN)
    b_acc, b_rest, b_left = visit_right(
        b_acc, b_rest, b_left, b_q, b_do, p_k, p_v, p_rest, p_left, later, o_i, p_spans, start,
        tl.cdiv(stop - start, BN) + before, kept, before, T, k_strides[2], v_strides[2], scale,
        True, NEAREST, SEGMENTED, E, D, BN,
    )  # fmt: skip
    b_dq = (b_acc * plain_scale).to(p_dq.dtype.element_ty)
    tl.store(tile(p_dq, dq_strides, i_b, i_h, o_i, o_e), b_dq, mask=m_i[:, None])


@triton.jit
def visit_queries(
    b_dk, b_dv, b_k, b_v, p_q, p_do, p_rest, p_left, later, o_j, p_spans, start, stop, T, q_t, do_t,
    scale, IS_EDGE: tl.constexpr, NEAREST: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    """Update dk and dv of a block of keys with the blocks of queries from ``start`` to ``stop``."""
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    for i0 in tl.range(start, stop, BM):
        o_i = i0 + tl.arange(0, BM)
        m_i = o_i < T
        b_q = tl.load(p_q + o_i[None, :] * q_t + o_e[:, None], mask=m_i[None, :], other=0.0)
        b_do = tl.load(p_do + o_i[:, None] * do_t + o_d[None, :], mask=m_i[:, None], other=0.0)
        b_rest = tl.load(p_rest + o_i, mask=m_i, other=0.0)
        b_left = tl.load(p_left + o_i, mask=m_i, other=0.0)
        b_s = tl.dot(b_k, b_q, input_precision="ieee") * scale
        b_share, b_broken = break_off(
            b_s, o_i, o_j, p_spans, T, IS_EDGE, NEAREST, SEGMENTED, IS_TRANSPOSED=True
        )
        b_g = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")
        b_a, b_dz, _ = differentiate(
            b_share, b_broken, b_g, b_rest, b_left, later, IS_TRANSPOSED=True
        )
        b_dv = tl.dot(b_a.to(b_do.dtype), b_do, b_dv, input_precision="ieee")
        b_dk = tl.dot(b_dz.to(b_q.dtype), tl.trans(b_q), b_dk, input_precision="ieee")
    return b_dk, b_dv


@triton.jit
def by_keys(
    p_q, p_k, p_v, p_do, p_dk, p_dv, p_rest, p_left, p_last, p_spans, first, T, H, G, scale,
    plain_scale, q_strides, k_strides, v_strides, do_strides, dk_strides, dv_strides, spans_b,
    NEAREST: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of one block of keys of one key head.

    Args:
        p_dk: (B, H / G, T, E) and p_dv: (B, H / G, T, D), written. p_rest, p_left: from
            `by_queries`.
        p_last: (B, H, key blocks) int32, the end of the queries whose sticks reach these keys.
        Other arguments are those of `by_queries`.
    """
    i_block = tl.program_id(0)
    i_local = tl.program_id(1).to(tl.int64) * G
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    if p_spans is not None:
        p_spans += i_b * spans_b
    j0 = i_block * BN
    o_j = j0 + tl.arange(0, BN)
    m_j = o_j < T
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    b_k = tl.load(tile(p_k, k_strides, i_b, i_h // G, o_j, o_e), mask=m_j[:, None], other=0.0)
    b_v = tl.load(tile(p_v, v_strides, i_b, i_h // G, o_j, o_d), mask=m_j[:, None], other=0.0)
    later = triangle(b_k, BN, IS_TRANSPOSED=True)
    b_dk = tl.zeros((BN, E), tl.float32)
    b_dv = tl.zeros((BN, D), tl.float32)
    after = tl.cdiv(j0 + BN, BM) * BM  # queries from here on see all of these keys, if any
    for g in tl.range(0, G):
        p_qg = p_q + i_b * q_strides[0] + (i_h + g) * q_strides[1]
        p_dog = p_do + i_b * do_strides[0] + (i_h + g) * do_strides[1]
        i_at = (i_local + g) * tl.num_programs(0) + i_block
        p_restg, p_leftg = p_rest + i_at * T, p_left + i_at * T
        edge = tl.minimum(after, T)
        if p_spans is not None:
            _, edge = queries_of_keys(p_spans, o_j, after, T, SEGMENTED, BM)
        b_dk, b_dv = visit_queries(
            b_dk, b_dv, b_k, b_v, p_qg, p_dog, p_restg, p_leftg, later, o_j, p_spans,
            j0 // BM * BM, edge, T, q_strides[2], do_strides[2], scale, True, NEAREST, SEGMENTED, E,
            D, BM,
        )  # fmt: skip
        if p_spans is None:
            last = tl.load(p_last + (first + i_local + g) * tl.num_programs(0) + i_block)
            b_dk, b_dv = visit_queries(
                b_dk, b_dv, b_k, b_v, p_qg, p_dog, p_restg, p_leftg, later, o_j, p_spans, after,
                tl.minimum(last, T), T, q_strides[2], do_strides[2], scale, False, NEAREST,
                SEGMENTED, E, D, BM,
            )  # fmt: skip
    b_dk = (b_dk * plain_scale).to(p_dk.dtype.element_ty)
    tl.store(tile(p_dk, dk_strides, i_b, i_h // G, o_j, o_e), b_dk, mask=m_j[:, None])
    b_dv = b_dv.to(p_dv.dtype.element_ty)
    tl.store(tile(p_dv, dv_strides, i_b, i_h // G, o_j, o_d), b_dv, mask=m_j[:, None])


def _shown(spans: Tensor | None) -> tuple[Tensor | None, int | None]:
    """Return p_spans and spans_b."""
    return spans, None if spans is None else spans.stride(0) * (spans.shape[0] > 1)


def launch_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention; arguments and results are those of `attend`."""
    q, k, v = (contiguous_last_dim(x) for x in (q, k, v))
    batch, heads, length, width = q.shape
    b = blocks_for(q, v)[0]
    out = tokens_first(q, v.shape[-1])
    total = q.new_empty(q.shape[:3], dtype=torch.float64)
    far = q.new_empty((batch, heads, cdiv(length, b.queries)), dtype=torch.int32)
    rows, stride = _shown(spans)
    forward[(far.shape[-1], batch * heads)](
        q, k, v, out, total, far, rows, length, heads, heads // k.shape[1], scale * LOG2E,
        strides_of(q), strides_of(k), strides_of(v), strides_of(out), stride, NEAREST=nearest,
        KEEPS=keeps, SEGMENTED=segmented, E=width, D=v.shape[-1], BM=b.queries, BN=b.keys,
        **b.options(),
    )  # fmt: skip
    return out, total, far


def launch_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, far: Tensor, scale: float,
    nearest: int, spans: Tensor | None, keeps: bool, segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv.

    Args:
        gradient: (B, H, T, D), of the output. total, far: what `launch_forward` returned.
    """
    q, k, v, gradient = (contiguous_last_dim(x) for x in (q, k, v, gradient))
    batch, heads, length, width = q.shape
    groups, every = heads // k.shape[1], batch * heads
    _, of_queries, of_keys = blocks_for(q, v)
    dq, dk, dv = tokens_first(q, width), tokens_first(k, width), tokens_first(v, v.shape[-1])
    across, rows = cdiv(length, of_keys.keys), far.shape[-1]
    starts = torch.arange(across, device=q.device) * of_keys.keys
    ends = (torch.arange(rows, device=q.device, dtype=torch.int32) + 1) * of_queries.queries
    last = ((far[..., None, :] <= starts[:, None]) * ends).amax(-1)
    shown, stride = _shown(spans)
    inputs = tuple(strides_of(x) for x in (q, k, v, gradient))
    shape: dict[str, Any] = {"NEAREST": nearest, "SEGMENTED": segmented, "E": width}
    shape["D"] = v.shape[-1]
    step = max(1, min(every, HELD // (2 * across * length)) // groups) * groups
    for first in range(0, every, step):
        here = min(step, every - first)
        # Queries whose stick does not reach a block of keys have nothing left and nothing before.
        rest = q.new_full((here, across, length), math.inf, dtype=torch.float32)
        left = q.new_zeros((here, across, length), dtype=torch.float32)
        sizes = first, length, heads, groups, scale * LOG2E, scale
        b = of_queries
        by_queries[(rows, here)](
            q, k, v, gradient, dq, total, far, rest, left, shown, *sizes, *inputs, strides_of(dq),
            stride, KEEPS=keeps, BM=b.queries, BN=b.keys, **shape, **b.options(),
        )  # fmt: skip
        b = of_keys
        by_keys[(across, here // groups)](
            q, k, v, gradient, dk, dv, rest, left, last, shown, *sizes, *inputs, strides_of(dk),
            strides_of(dv), stride, BM=b.queries, BN=b.keys, **shape, **b.options(),
        )  # fmt: skip
    return dq, dk, dv


@torch.library.custom_op("pe::stickbreaking", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention, causal and with as many queries as keys.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). scale: of the logits.
        nearest: 0 if a token sees itself, otherwise 1.
        spans, keeps, segmented: the first fields of `pe.attention.spans.Spans`; None for all keys.

    Returns:
        o (B, H, T, D), and ``total`` and ``far`` of the kernel `forward`.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        hides = spans is not None
        self_check(nearest, q.shape[-1], v.shape[-1], q.dtype, q.device, hides, segmented)
    return launch_forward(q, k, v, scale, nearest, spans, keeps, segmented)


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, scale: float, nearest: int, spans: Tensor | None, keeps: bool,
    segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    size = blocks_for(q, v)[0].queries
    far = (*q.shape[:2], (q.shape[2] + size - 1) // size)
    return (
        tokens_first(q, v.shape[-1]),
        q.new_empty(q.shape[:3], dtype=torch.float64),
        q.new_empty(far, dtype=torch.int32),
    )


attend_backward = torch.library.custom_op(
    "pe::stickbreaking_backward", launch_backward, mutates_args=()
)


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, total: Tensor, far: Tensor, scale: float,
    nearest: int, spans: Tensor | None, keeps: bool, segmented: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return tokens_first(q, q.shape[-1]), tokens_first(k, k.shape[-1]), tokens_first(v, v.shape[-1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, ctx.scale, ctx.nearest, spans, *ctx.kinds = inputs
    ctx.save_for_backward(q, k, v, *output[1:], spans)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Any, ...]:
    *saved, spans = ctx.saved_tensors
    dq, dk, dv = attend_backward(gradient, *saved, ctx.scale, ctx.nearest, spans, *ctx.kinds)
    return dq, dk, dv, None, None, None, None, None


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(
    nearest: int, width: int, value_width: int, dtype: torch.dtype, device: torch.device,
    hides: bool = False, segmented: bool = False,
) -> None:  # fmt: skip
    """Compare the kernels with the definition, once for each combination of arguments.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    random, scale = checks.random_on(device), width**-0.5
    q, k, v, gradient = checks.inputs(random, 2, 2, CHECKED, width, value_width, dtype)
    # Logits of the second head are around -8, so its queries see all keys.
    q[:, 1, :, 0], k[..., 0] = math.sqrt(8 / scale), -math.sqrt(8 / scale)
    shown = spans_of(q, segmented) if hides else None
    kinds = nearest, *((None, False, False) if shown is None else shown[:3])

    def compute() -> tuple[Tensor, ...]:
        out, *saved = launch_forward(q, k, v, scale, *kinds)
        return out, *launch_backward(gradient, q, k, v, *saved, scale, *kinds)

    checks.agree(compute, expected(q, k, v, gradient, scale, nearest, shown), dtype)


def expected(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, scale: float, nearest: int,
    shown: Spans | None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return o, dq, dk and dv by the definition, in float64, without autograd."""
    q, k, v, gradient = (t.double() for t in (q, k, v, gradient))
    logits = scale * (q @ k.transpose(-1, -2))
    seen = torch.ones_like(logits[0, 0], dtype=torch.bool).tril(-nearest)
    seen = seen if shown is None else seen & shown.mask()
    broken = torch.nn.functional.softplus(logits, threshold=700) * seen
    sums = broken.flip(-1).cumsum(-1).flip(-1)
    weights = (logits - sums).exp() * seen
    products = weights * (gradient @ v.transpose(-1, -2))
    by_logit = products - logits.sigmoid() * products.cumsum(-1) * seen
    return (
        weights @ v,
        scale * (by_logit @ k),
        scale * (by_logit.transpose(-1, -2) @ q).sum(1, keepdim=True),
        (weights.transpose(-1, -2) @ gradient).sum(1, keepdim=True),
    )
