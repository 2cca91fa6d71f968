"""Kernels for the gradients of stick-breaking; the formulas and names are those of `.forward`."""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import tile
from pe.attention.kernels.flash.spans import queries_of_keys
from pe.attention.kernels.stickbreaking.forward import bounds, break_off, load_keys, sums, triangle


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
