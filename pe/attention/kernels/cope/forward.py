"""The forward kernel of CoPE (arXiv:2405.18719), whose bias is computed from the logits.

    g_ij = sigmoid(q_i . k_j scale)    c_ij = g_ij + ... + g_ii    b_ij = q_i . t(c_ij)

t is a table of ``last`` + 1 rows. Between rows it is interpolated, and from ``last`` on it is
constant. The products z of queries and rows of the table, T x (last + 1), are computed first, and
then looked up by count. A program has a block of queries. It goes from the diagonal to the left
and carries the count of each query along. Once all its queries have counted to ``last``, the bias
is one number per query, and the remaining blocks are those of plain flash attention.

In a window all blocks of keys that the queries see are visited with a mask. Gates of hidden keys
are 0, so counts and sums over keys have no part of them. A window leaves too few keys for a loop
without counts, so there are no far keys.

Gates are rounded to multiples of 2^-BITS, and counts are whole numbers of these. Sums of whole
numbers do not depend on the order, so the backward pass, which goes from left to right, recovers
the same counts by subtracting gates. Sums along a block are products with a triangular matrix of
ones. Gates are split into two halves of 11 bits, so that these products are exact in float16.

Logits are in base 2, and names and prefixes are those of `pe.attention.kernels.flash.forward`.
Heads of all sequences are numbered through, and a launch is for the heads from ``first`` on; a
program has head ``first`` + i_local. Tensors z, dz, unit and the like have only these heads.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import INTERPRETED, inverse, tile
from pe.attention.kernels.flash.spans import NOWHERE, seen

HALF: tl.constexpr = tl.constexpr(11)
"""The number of bits in the lower half of a gate; whole numbers up to 2^11 are exact in float16."""
CHECK_EVERY: tl.constexpr = tl.constexpr(4)
"""After so many key blocks a program checks whether all its queries have counted to ``last``."""


@triton.jit
def rounded(x, times):
    """Return the whole number nearest to x * times, which is below 2^22, as float32 and as int32.

    Adding 1.5 * 2^23 leaves no bits after the point, which is faster than a conversion. It is
    written as fma, because otherwise Triton makes the number the initial value of a matrix product
    to which it is added, and ptxas 12.8 then loses the product.
    """
    moved = tl.fma(x, tl.full(x.shape, times, tl.float32), tl.full(x.shape, 12582912.0, tl.float32))
    return moved - 12582912.0, moved.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def visible(o_i, o_j, p_spans, b_first, T, SEGMENTED: tl.constexpr):
    """Return the mask of a block, (BM, BN).

    In a single document ``b_first``, (BM,), the first key that each query sees, says as much as the
    last query of each key. Compiled for sm_90, the backward kernel spills less with it, and the
    forward kernel takes fewer registers without it.
    """
    m_seen = o_i[:, None] >= o_j[None, :]
    if p_spans is not None:
        if b_first is None or SEGMENTED:
            m_seen = seen(p_spans, o_i, o_j, T, SEGMENTED, False)
        else:
            m_seen &= o_j[None, :] >= b_first[:, None]
    return m_seen


@triton.jit
def gates_from(b_s, m_seen, IS_EDGE: tl.constexpr, BITS: tl.constexpr):
    """Compute gates from logits in base 2.

    With IS_EDGE, gates of keys are 0 where ``m_seen`` is False.

    Returns:
        The gates in float32; as multiples of 2^-BITS, int32; and the upper and the lower half of
        these, float16.
    """
    gate = inverse(1.0 + tl.math.exp2(-b_s))
    if IS_EDGE:
        gate = tl.where(m_seen, gate, 0.0)
    high, high_number = rounded(gate, 2.0 ** (BITS - HALF))
    low, low_number = rounded(gate * (2.0 ** (BITS - HALF)) - high, 2.0**HALF)
    return gate, (high_number << HALF) + low_number, high.to(tl.float16), low.to(tl.float16)


@triton.jit
def counts_from(left, high, low, earlier):
    """Return the count from each key of a block to each query, in multiples of 2^-BITS.

    Args:
        left: (BM,), the counts from the first key of the block. high, low: halves of gates.
        earlier: (BN, BN) float16, 1 if the key of the row is before that of the column.
    """
    _, highs = rounded(tl.dot(high, earlier), 1.0)
    _, lows = rounded(tl.dot(low, earlier), 1.0)
    return left[:, None] - ((highs << HALF) + lows)


@triton.jit
def read_pair(p_at):
    """Load a product of z and its difference to the next one, which are adjacent in memory.

    They are float16 when compiled, and of any type in the interpreter.
    """
    if INTERPRETED:
        return tl.load(p_at).to(tl.float32), tl.load(p_at + 1).to(tl.float32)
    return tl.inline_asm_elementwise(
        "{ .reg .b32 p; .reg .b16 a, b; ld.global.nc.b32 p, [$2]; mov.b32 {a, b}, p;"
        " cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
        "=f,=f,l", [p_at.to(tl.int64)], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_bias(rows, counts, most, BITS: tl.constexpr):
    """Look up the counts of a block.

    Args:
        rows: (BM,), pointers to the rows of z. most: the largest count, ``last`` << BITS.

    Returns:
        The row of the table below each count, the fraction above it, the product there, and its
        difference to the next product.
    """
    counts = tl.minimum(tl.maximum(counts, 0), most)
    below = counts >> BITS
    bits = (counts & ((1 << BITS) - 1)) << (23 - BITS)
    part = (bits | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    value, rise = read_pair(rows[:, None] + below * 2)
    return below, part, value, rise


@triton.jit
def products(
    p_q, p_high, p_low, p_z, p_dz, p_counts, p_top, first, T, H, last, scale, q_strides, z_t,
    IS_BACKWARD: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the products of a block of queries with the rows of the table, and differences.

    Only rows to which these queries can count are used. With IS_BACKWARD, they are those to which
    the queries did count, and the entries of dz for them are set to 0.

    Args:
        p_q: (B, H, T, E). p_high, p_low: (last + 1, E), of q's type; their sum is the table.
        p_z: (heads, T, z_t, 2), float32 if q is, else float16, written: products, and differences
            to the next product.
        p_dz: (heads, T, z_t) int32, written if IS_BACKWARD.
        p_counts: (B, H, T) int32, read if IS_BACKWARD.
        p_top: (heads, query blocks) int32, written if IS_BACKWARD: the last row that is read.
    """
    i_local = tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    i0 = tl.program_id(0) * BM
    o_i = i0 + tl.arange(0, BM)
    o_e = tl.arange(0, E)
    m_i = o_i < T
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
    top = tl.minimum(tl.minimum(i0 + BM, T), last)
    if IS_BACKWARD:
        counted = tl.max(tl.load(p_counts + (first + i_local) * T + o_i, mask=m_i, other=0), 0)
        top = tl.minimum((counted >> BITS) + 1, last)
        tl.store(p_top + i_local * tl.num_programs(0) + tl.program_id(0), top)
    o_rows = (i_local * T + o_i) * z_t
    for n0 in tl.range(0, top + 1, BN):
        o_n = n0 + tl.arange(0, BN)
        o_at = o_n[None, :] * E + o_e[:, None]
        m_here, m_next = o_n[None, :] <= last, o_n[None, :] < last
        b_high = tl.load(p_high + o_at, mask=m_here, other=0.0)
        b_s = tl.dot(b_q, b_high, input_precision=PRECISION)
        b_low = tl.load(p_low + o_at, mask=m_here, other=0.0)
        b_s = tl.dot(b_q, b_low, b_s, input_precision=PRECISION)
        b_high = tl.load(p_high + E + o_at, mask=m_next, other=0.0)
        b_next = tl.dot(b_q, b_high, input_precision=PRECISION)
        b_low = tl.load(p_low + E + o_at, mask=m_next, other=0.0)
        b_next = tl.dot(b_q, b_low, b_next, input_precision=PRECISION)
        rise = tl.where(m_next, b_next - b_s, 0.0) * scale
        pair = tl.join(b_s * scale, rise)
        if p_z.dtype.element_ty == tl.float16:
            pair = tl.minimum(tl.maximum(pair, -65504.0), 65504.0)
        pair = tl.reshape(pair.to(p_z.dtype.element_ty), (BM, 2 * BN))
        column = 2 * n0 + tl.arange(0, 2 * BN)
        m_z = m_i[:, None] & (column[None, :] < 2 * z_t)
        tl.store(p_z + 2 * o_rows[:, None] + column[None, :], pair, mask=m_z)
        if IS_BACKWARD:
            m_z = m_i[:, None] & (o_n[None, :] < z_t)
            tl.store(p_dz + o_rows[:, None] + o_n[None, :], tl.zeros((BM, BN), tl.int32), mask=m_z)


@triton.jit
def update_softmax(
    b_acc, b_max, b_total, b_s, p_v, o_j, T, v_t,
    IS_EDGE: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update the online softmax with one block of logits in base 2 and its values."""
    o_d = tl.arange(0, D)
    b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_p = tl.math.exp2(b_s - b_max_new[:, None])
    b_rescale = tl.math.exp2(b_max - b_max_new)
    b_total = b_total * b_rescale + tl.sum(b_p, 1)
    if IS_EDGE:
        b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
    else:
        b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_rescale[:, None], input_precision=PRECISION)
    return b_acc, b_max_new, b_total


@triton.jit
def visit_counted(
    b_acc, b_max, b_total, counted, b_q, p_k, p_v, rows, o_i, p_spans, start, stop, T, k_t, v_t,
    scale, most, IS_EDGE: tl.constexpr, SEGMENTED: tl.constexpr, BITS: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update softmax and counts with the key blocks from ``stop`` down to ``start``.

    Args:
        counted: (BM,) int32, the count of each query so far. rows: (BM,), pointers to rows of z.
        IS_EDGE: some of the queries do not see all of these keys.
        Other arguments are those of `pe.attention.kernels.flash.forward.visit_keys`.
    """
    o_e, o_r = tl.arange(0, E), tl.arange(0, BN)
    earlier = (o_r[:, None] < o_r[None, :]).to(tl.float16)
    for back in tl.range(0, stop - start, BN):
        o_j = stop - BN - back + o_r
        if IS_EDGE:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None], mask=o_j[None, :] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None])
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale
        m_seen = visible(o_i, o_j, p_spans, None, T, SEGMENTED)
        _, numbers, high, low = gates_from(b_s, m_seen, IS_EDGE, BITS)
        counted += tl.sum(numbers, 1)
        counts = counts_from(counted, high, low, earlier)
        _, part, value, rise = read_bias(rows, counts, most, BITS)
        b_s += value + part * rise
        if IS_EDGE:
            b_s = tl.where(m_seen, b_s, float("-inf"))
        b_acc, b_max, b_total = update_softmax(
            b_acc, b_max, b_total, b_s, p_v, o_j, T, v_t, IS_EDGE, D, PRECISION
        )
    return b_acc, b_max, b_total, counted


@triton.jit
def forward(
    p_q, p_k, p_v, p_z, p_o, p_lse, p_counts, p_far, p_spans, first, T, H, G, scale, last, z_t,
    q_strides, k_strides, v_strides, out_strides, spans_b,
    SEGMENTED: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output, the base-2 logsumexp and the counts of one block of queries of one head.

    Args:
        p_q: (B, H, T, E). p_k: (B, H / G, T, E). p_v: (B, H / G, T, D). p_z: from `products`.
        p_o: (B, H, T, D), written. p_lse: (B, H, T) float32, written.
        p_far: (B, H, query blocks) int32, written: the first key for which counts are needed, a
            multiple of BM. On earlier keys all queries of the block have counted to ``last``. In a
            window it is 0.
        p_counts: (B, H, T) int32, written: the count of each query down to that key.
        p_spans, SEGMENTED: as in `pe.attention.kernels.flash.spans`.
        scale: of the logits, times log2(e). last: index of the table's last row. z_t: number of
            products per row of p_z.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # blocks with the most keys start first
    i_local = tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    if p_spans is not None:
        p_spans += i_b * spans_b
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_i = o_i < T
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
    p_rows = p_z + (i_local * T + tl.minimum(o_i, T - 1)) * z_t * 2
    b_beyond = tl.load(p_rows + 2 * last).to(tl.float32)
    most = last << BITS
    b_acc = tl.zeros((BM, D), tl.float32)
    b_max = tl.full((BM,), -1e30, tl.float32)  # not -inf: a query may see no key of the first block
    b_total = tl.zeros((BM,), tl.float32)
    counted = tl.zeros((BM,), tl.int32)
    end = i0 + BM
    tl.static_assert((CHECK_EVERY * BN) % BM == 0)  # so keys ahead of a query are in the first call
    far = tl.maximum(end - CHECK_EVERY * BN, 0)
    if p_spans is not None:
        far = tl.min(tl.load(p_spans + o_i, mask=m_i, other=NOWHERE), 0) // BN * BN
    b_acc, b_max, b_total, counted = visit_counted(
        b_acc, b_max, b_total, counted, b_q, p_k, p_v, p_rows, o_i, p_spans, far, end, T,
        k_strides[2], v_strides[2], scale, most, True, SEGMENTED, BITS, E, D, BN, PRECISION,
    )  # fmt: skip
    if p_spans is None:
        for _ in tl.range(CHECK_EVERY * BN, end, CHECK_EVERY * BN):
            if tl.min(tl.where(m_i, counted, most), 0) < most:
                start = tl.maximum(far - CHECK_EVERY * BN, 0)
                b_acc, b_max, b_total, counted = visit_counted(
                    b_acc, b_max, b_total, counted, b_q, p_k, p_v, p_rows, o_i, p_spans, start, far,
                    T, k_strides[2], v_strides[2], scale, most, False, SEGMENTED, BITS, E, D, BN,
                    PRECISION,
                )  # fmt: skip
                far = start
        for j0 in tl.range(0, far, BN):  # all queries have counted to `last`
            o_j = j0 + tl.arange(0, BN)
            b_k = tl.load(p_k + o_j[None, :] * k_strides[2] + o_e[:, None])
            b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale + b_beyond[:, None]
            b_acc, b_max, b_total = update_softmax(
                b_acc, b_max, b_total, b_s, p_v, o_j, T, v_strides[2], False, D, PRECISION
            )
    else:
        far = 0
    out = (b_acc / b_total[:, None]).to(p_o.dtype.element_ty)
    tl.store(tile(p_o, out_strides, i_b, i_h, o_i, o_d), out, mask=m_i[:, None])
    o_row = (first + i_local) * T + o_i
    tl.store(p_lse + o_row, b_max + tl.math.log2(b_total), mask=m_i)
    tl.store(p_counts + o_row, counted, mask=m_i)
    tl.store(p_far + (first + i_local) * tl.num_programs(0) + i_block, far)
