"""CoPE (arXiv:2405.18719) in Triton: biases that follow from the logits, a block at a time.

    g_ij = sigmoid(q_i . k_j scale)    c_ij = g_ij + ... + g_ii    b_ij = q_i . t(c_ij)

t is a table of ``last`` + 1 rows, interpolated between its rows and constant from ``last`` on.
Products of queries and rows are computed first, T x npos of them, and read where a count falls. A
program goes from the diagonal to the left and carries each row's count along. Once all its rows
have counted to ``last``, the bias is one number per row and blocks are those of flash attention.

Counts are whole numbers, gates being rounded to multiples of 2^-BITS. Sums of whole numbers are
the same in any order, so the backward pass, which goes from left to right, recovers the counts
to the bit by subtracting gates. Sums along a block are products with a triangle of ones; halves of
11 bits each make them exact. In base 2 as `pe.attention.kernels.flash.forward`, whose letters and
prefixes are used. Programs know their head by ``first`` + i_local, counted over batch and heads;
z, dz, unit and the like hold the heads from ``first`` on.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import INTERPRETED, inverse, tile

HALF: tl.constexpr = tl.constexpr(11)
"""Bits of the lower half of a gate: whole numbers up to 2^11 are exact in float16."""
CHECK_EVERY: tl.constexpr = tl.constexpr(4)
"""Key blocks after which it is checked whether all rows have counted beyond the table."""


@triton.jit
def rounded(x, times):
    """The whole number nearest to x * times, below 2^22 in size, as float32 and as int32.

    Adding 1.5 * 2^23 leaves no bits behind the point; conversions take a slow unit instead. As fma,
    since Triton makes a sum with a product of matrices one product that begins at 1.5 * 2^23, and
    ptxas 12.8 then forgets the product.
    """
    moved = tl.fma(x, tl.full(x.shape, times, tl.float32), tl.full(x.shape, 12582912.0, tl.float32))
    return moved - 12582912.0, moved.to(tl.int32, bitcast=True) - 0x4B400000


@triton.jit
def gates_from(b_s, seen, IS_DIAGONAL: tl.constexpr, BITS: tl.constexpr):
    """Gates from logits in base 2: as they are, as multiples of 2^-BITS, and these in halves.

    IS_DIAGONAL: gates of keys that are not ``seen`` are 0.
    """
    gate = inverse(1.0 + tl.math.exp2(-b_s))
    if IS_DIAGONAL:
        gate = tl.where(seen, gate, 0.0)
    high, high_number = rounded(gate, 2.0 ** (BITS - HALF))
    low, low_number = rounded(gate * (2.0 ** (BITS - HALF)) - high, 2.0**HALF)
    return gate, (high_number << HALF) + low_number, high.to(tl.float16), low.to(tl.float16)


@triton.jit
def counts_from(left, high, low, earlier):
    """Counts from each key to its query; ``left``: those from the left edge of the block.

    ``earlier``, (BN, BN) float16: 1 where the row is a key before the column.
    """
    _, highs = rounded(tl.dot(high, earlier), 1.0)
    _, lows = rounded(tl.dot(low, earlier), 1.0)
    return left[:, None] - ((highs << HALF) + lows)


@triton.jit
def read_pair(p_at):
    """A product and its rise to the next: two adjacent numbers, float16 when compiled."""
    if INTERPRETED:
        return tl.load(p_at).to(tl.float32), tl.load(p_at + 1).to(tl.float32)
    return tl.inline_asm_elementwise(
        "{ .reg .b32 p; .reg .b16 a, b; ld.global.nc.b32 p, [$2]; mov.b32 {a, b}, p;"
        " cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
        "=f,=f,l", [p_at.to(tl.int64)], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_bias(rows, counts, most, BITS: tl.constexpr):
    """For counts of a block: the table row below, the fraction beyond, the product, its rise."""
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
    """A block of queries times the rows of the table, and the rises from row to row.

    As many rows as the queries can count to; IS_BACKWARD: as they did, with gradients set to 0.

    Args:
        p_q: (B, H, T, E). p_high, p_low: (last + 1, E), q's type; their sum is the table.
        p_z: (heads, T, z_t, 2) float16, or float32 if q is: products and rises.
        p_dz: (heads, T, z_t) int32, p_counts: (B, H, T) int32, p_top: (heads, query blocks) int32,
            the last row that is read: IS_BACKWARD only.
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
    IS_DIAGONAL: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Online-softmax update by one block of logits in base 2 and its values."""
    o_d = tl.arange(0, D)
    b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
    b_p = tl.math.exp2(b_s - b_max_new[:, None])
    b_rescale = tl.math.exp2(b_max - b_max_new)
    b_total = b_total * b_rescale + tl.sum(b_p, 1)
    if IS_DIAGONAL:
        b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
    else:
        b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc * b_rescale[:, None], input_precision=PRECISION)
    return b_acc, b_max_new, b_total


@triton.jit
def visit_counted(
    b_acc, b_max, b_total, counted, b_q, p_k, p_v, rows, o_i, start, stop, T, k_t, v_t, scale, most,
    IS_DIAGONAL: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Update by the key blocks from ``stop`` down to ``start``, counting.

    IS_DIAGONAL: some keys are ahead of some queries.
    """
    o_e, o_r = tl.arange(0, E), tl.arange(0, BN)
    earlier = (o_r[:, None] < o_r[None, :]).to(tl.float16)
    for back in tl.range(0, stop - start, BN):
        o_j = stop - BN - back + o_r
        if IS_DIAGONAL:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None], mask=o_j[None, :] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None])
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale
        seen = o_i[:, None] >= o_j[None, :]
        _, numbers, high, low = gates_from(b_s, seen, IS_DIAGONAL, BITS)
        counted += tl.sum(numbers, 1)
        counts = counts_from(counted, high, low, earlier)
        _, part, value, rise = read_bias(rows, counts, most, BITS)
        b_s += value + part * rise
        if IS_DIAGONAL:
            b_s = tl.where(seen, b_s, float("-inf"))
        b_acc, b_max, b_total = update_softmax(
            b_acc, b_max, b_total, b_s, p_v, o_j, T, v_t, IS_DIAGONAL, D, PRECISION
        )
    return b_acc, b_max, b_total, counted


@triton.jit
def forward(
    p_q, p_k, p_v, p_z, p_o, p_lse, p_counts, p_far, first, T, H, G, scale, last, z_t,
    q_strides, k_strides, v_strides, out_strides,
    BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: the output, the base-2 logsumexp, and the counts.

    Args:
        p_q: (B, H, T, E). p_k: (B, H / G, T, E). p_v: (B, H / G, T, D). p_o: (B, H, T, D).
        p_z: what `products` leaves. p_lse: (B, H, T) float32.
        p_far: (B, H, query blocks) int32: where keys begin for which counts are needed, in whole
            blocks of BM; to those before it all rows of the block have counted beyond the table.
        p_counts: (B, H, T) int32, each row's count up to there.
        scale: of the logits, times log2(e). last: of the table's rows. z_t: a row of p_z.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # those with most keys first
    i_local = tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_i = o_i < T
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
    p_rows = p_z + (i_local * T + tl.minimum(o_i, T - 1)) * z_t * 2
    b_beyond = tl.load(p_rows + 2 * last).to(tl.float32)
    most = last << BITS
    b_acc = tl.zeros((BM, D), tl.float32)
    b_max = tl.full((BM,), -1e30, tl.float32)  # of rows, too, that see nothing of the first block
    b_total = tl.zeros((BM,), tl.float32)
    counted = tl.zeros((BM,), tl.int32)
    end = i0 + BM
    tl.static_assert((CHECK_EVERY * BN) % BM == 0)  # keys ahead of a query are in the first call
    far = tl.maximum(end - CHECK_EVERY * BN, 0)
    b_acc, b_max, b_total, counted = visit_counted(
        b_acc, b_max, b_total, counted, b_q, p_k, p_v, p_rows, o_i, far, end, T, k_strides[2],
        v_strides[2], scale, most, True, BITS, E, D, BN, PRECISION,
    )  # fmt: skip
    for _ in tl.range(CHECK_EVERY * BN, end, CHECK_EVERY * BN):
        if tl.min(tl.where(m_i, counted, most), 0) < most:
            start = tl.maximum(far - CHECK_EVERY * BN, 0)
            b_acc, b_max, b_total, counted = visit_counted(
                b_acc, b_max, b_total, counted, b_q, p_k, p_v, p_rows, o_i, start, far, T,
                k_strides[2], v_strides[2], scale, most, False, BITS, E, D, BN, PRECISION,
            )  # fmt: skip
            far = start
    for j0 in tl.range(0, far, BN):  # all rows have counted beyond the table
        o_j = j0 + tl.arange(0, BN)
        b_k = tl.load(p_k + o_j[None, :] * k_strides[2] + o_e[:, None])
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale + b_beyond[:, None]
        b_acc, b_max, b_total = update_softmax(
            b_acc, b_max, b_total, b_s, p_v, o_j, T, v_strides[2], False, D, PRECISION
        )
    out = (b_acc / b_total[:, None]).to(p_o.dtype.element_ty)
    tl.store(tile(p_o, out_strides, i_b, i_h, o_i, o_d), out, mask=m_i[:, None])
    o_row = (first + i_local) * T + o_i
    tl.store(p_lse + o_row, b_max + tl.math.log2(b_total), mask=m_i)
    tl.store(p_counts + o_row, counted, mask=m_i)
    tl.store(p_far + (first + i_local) * tl.num_programs(0) + i_block, far)
