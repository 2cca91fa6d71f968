"""CoPE (arXiv:2405.18719) in Triton: biases that follow from the logits, a block at a time.

    g_ij = sigmoid(q_i . k_j scale)    c_ij = g_ij + ... + g_ii    b_ij = q_i . t(c_ij)

t is a table of ``last`` + 1 rows, read between its rows and alike from ``last`` on. Products of
queries and rows are made first, T x npos of them, and read where a count falls. A program goes from
the diagonal to the left and carries each row's count along. Once all its rows have counted to
``last``, the bias is one number a row and blocks are those of plain flash attention.

Counts are whole numbers, gates being rounded to multiples of 2^-BITS. Sums of whole numbers are
the same in any order, so the backward pass, which goes from left to right, finds the counts again
to the bit by taking gates away. Sums along a block are products with a triangle of ones; halves of
11 bits each make them exact. In base 2 as `pe.attention.kernels.flash.forward`, whose letters are
used.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import INTERPRETED, inverse

HALF: tl.constexpr = tl.constexpr(11)
"""Bits of the lower half of a gate: whole numbers up to 2^11 are exact in float16."""
STRETCH: tl.constexpr = tl.constexpr(4)
"""Key blocks after which it is asked whether all rows have counted beyond the table."""


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
def gates_of(s, seen, SOME: tl.constexpr, BITS: tl.constexpr):
    """Gates from logits in base 2: as they are, as multiples of 2^-BITS, and these in halves.

    SOME: of keys that are ``seen``.
    """
    g = inverse(1.0 + tl.math.exp2(-s))
    if SOME:
        g = tl.where(seen, g, 0.0)
    high, high_number = rounded(g, 2.0 ** (BITS - HALF))
    low, low_number = rounded(g * (2.0 ** (BITS - HALF)) - high, 2.0**HALF)
    return g, (high_number << HALF) + low_number, high.to(tl.float16), low.to(tl.float16)


@triton.jit
def counts_of(left, high, low, earlier):
    """Counts from each key to its query; ``left``: those from the left edge of the block.

    ``earlier``, (BN, BN) float16: 1 where the row is a key before the column.
    """
    _, highs = rounded(tl.dot(high, earlier), 1.0)
    _, lows = rounded(tl.dot(low, earlier), 1.0)
    return left[:, None] - ((highs << HALF) + lows)


@triton.jit
def read_pair(at):
    """A product and its rise to the next: two numbers side by side, float16 when compiled."""
    if INTERPRETED:
        return tl.load(at).to(tl.float32), tl.load(at + 1).to(tl.float32)
    return tl.inline_asm_elementwise(
        "{ .reg .b32 p; .reg .b16 a, b; ld.global.nc.b32 p, [$2]; mov.b32 {a, b}, p;"
        " cvt.f32.f16 $0, a; cvt.f32.f16 $1, b; }",
        "=f,=f,l", [at.to(tl.int64)], dtype=(tl.float32, tl.float32), is_pure=True, pack=1,
    )  # fmt: skip


@triton.jit
def read_bias(rows, counts, most, BITS: tl.constexpr):
    """For counts of a block: the row of the table below, how far on, the product, its rise."""
    counts = tl.minimum(tl.maximum(counts, 0), most)
    below = counts >> BITS
    bits = (counts & ((1 << BITS) - 1)) << (23 - BITS)
    part = (bits | 0x3F800000).to(tl.float32, bitcast=True) - 1.0
    value, rise = read_pair(rows[:, None] + below * 2)
    return below, part, value, rise


@triton.jit
def products(
    Q, HIGH, LOW, Z, DZ, N, TOP, first, T, H, last, scale, q_b, q_h, q_t, z_t,
    AGAIN: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Z (heads, T, z_t, 2): a block of queries times the rows of the table, and the rises.

    As many as the queries can count to; AGAIN as many as they did, of which a gradient is set to 0.
    HIGH + LOW is the table.
    """
    local = tl.program_id(1).to(tl.int64)
    b, h = (first + local) // H, (first + local) % H
    i0 = tl.program_id(0) * BM
    i = i0 + tl.arange(0, BM)
    e = tl.arange(0, E)
    some = i < T
    Q += b * q_b + h * q_h
    q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=some[:, None], other=0.0)
    top = tl.minimum(tl.minimum(i0 + BM, T), last)
    if AGAIN:
        counted = tl.max(tl.load(N + (first + local) * T + i, mask=some, other=0), 0)
        top = tl.minimum((counted >> BITS) + 1, last)
        tl.store(TOP + local * tl.num_programs(0) + tl.program_id(0), top)
    rows = (local * T + i) * z_t
    for n0 in tl.range(0, top + 1, BN):
        n = n0 + tl.arange(0, BN)
        at = n[None, :] * E + e[:, None]
        here, there = n[None, :] <= last, n[None, :] < last
        s = tl.dot(q, tl.load(HIGH + at, mask=here, other=0.0), input_precision=PRECISION)
        s = tl.dot(q, tl.load(LOW + at, mask=here, other=0.0), s, input_precision=PRECISION)
        m = tl.dot(q, tl.load(HIGH + E + at, mask=there, other=0.0), input_precision=PRECISION)
        m = tl.dot(q, tl.load(LOW + E + at, mask=there, other=0.0), m, input_precision=PRECISION)
        rise = tl.where(there, m - s, 0.0) * scale
        pair = tl.join(s * scale, rise)
        if Z.dtype.element_ty == tl.float16:
            pair = tl.minimum(tl.maximum(pair, -65504.0), 65504.0)
        pair = tl.reshape(pair.to(Z.dtype.element_ty), (BM, 2 * BN))
        column = 2 * n0 + tl.arange(0, 2 * BN)
        inside = some[:, None] & (column[None, :] < 2 * z_t)
        tl.store(Z + 2 * rows[:, None] + column[None, :], pair, mask=inside)
        if AGAIN:
            inside = some[:, None] & (n[None, :] < z_t)
            tl.store(DZ + rows[:, None] + n[None, :], tl.zeros((BM, BN), tl.int32), mask=inside)


@triton.jit
def take_in(acc, best, total, s, V, j, T, v_t, LAST: tl.constexpr, D: tl.constexpr,
            PRECISION: tl.constexpr):  # fmt: skip
    """One block of logits in base 2 and its values into the softmax so far."""
    d = tl.arange(0, D)
    new = tl.maximum(best, tl.max(s, 1))
    p = tl.math.exp2(s - new[:, None])
    shrink = tl.math.exp2(best - new)
    total = total * shrink + tl.sum(p, 1)
    if LAST:
        v = tl.load(V + j[:, None] * v_t + d[None, :], mask=j[:, None] < T, other=0.0)
    else:
        v = tl.load(V + j[:, None] * v_t + d[None, :])
    acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
    return acc, new, total


@triton.jit
def count_blocks(
    acc, best, total, counted, q, K, V, rows, i, start, stop, T, k_t, v_t, scale, most,
    LAST: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in the key blocks from ``stop`` back to ``start``, counting; LAST: some are ahead."""
    e, r = tl.arange(0, E), tl.arange(0, BN)
    earlier = (r[:, None] < r[None, :]).to(tl.float16)
    for back in tl.range(0, stop - start, BN):
        j = stop - BN - back + r
        if LAST:
            k = tl.load(K + j[None, :] * k_t + e[:, None], mask=j[None, :] < T, other=0.0)
        else:
            k = tl.load(K + j[None, :] * k_t + e[:, None])
        s = tl.dot(q, k, input_precision=PRECISION) * scale
        seen = i[:, None] >= j[None, :]
        _, numbers, high, low = gates_of(s, seen, LAST, BITS)
        counted += tl.sum(numbers, 1)
        counts = counts_of(counted, high, low, earlier)
        _, part, value, rise = read_bias(rows, counts, most, BITS)
        s += value + part * rise
        if LAST:
            s = tl.where(seen, s, float("-inf"))
        acc, best, total = take_in(acc, best, total, s, V, j, T, v_t, LAST, D, PRECISION)
    return acc, best, total, counted


@triton.jit
def forward(
    Q, K, V, Z, O, L, N, FAR, first, T, H, G, scale, last, z_t,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t,
    BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: o, the logarithm of the softmax's divisor, the counts.

    N: each row's count where the last block that was not alike begins; FAR: where that is, in
    whole blocks of BM.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the long rows first
    local = tl.program_id(1).to(tl.int64)
    b, h = (first + local) // H, (first + local) % H
    K += b * k_b + (h // G) * k_h
    V += b * v_b + (h // G) * v_h
    i0 = block * BM
    i = i0 + tl.arange(0, BM)
    e, d = tl.arange(0, E), tl.arange(0, D)
    some = i < T
    at = Q + b * q_b + h * q_h + i[:, None] * q_t + e[None, :]
    q = tl.load(at, mask=some[:, None], other=0.0)
    rows = Z + (local * T + tl.minimum(i, T - 1)) * z_t * 2
    alike = tl.load(rows + 2 * last).to(tl.float32)
    most = last << BITS
    acc = tl.zeros((BM, D), tl.float32)
    best = tl.full((BM,), -1e30, tl.float32)  # of rows, too, that see nothing of the first block
    total = tl.zeros((BM,), tl.float32)
    counted = tl.zeros((BM,), tl.int32)
    end = i0 + BM
    tl.static_assert((STRETCH * BN) % BM == 0)  # keys ahead of a query are in the first stretch
    far = tl.maximum(end - STRETCH * BN, 0)
    acc, best, total, counted = count_blocks(
        acc, best, total, counted, q, K, V, rows, i, far, end, T, k_t, v_t, scale, most,
        True, BITS, E, D, BN, PRECISION,
    )  # fmt: skip
    for _ in tl.range(STRETCH * BN, end, STRETCH * BN):
        if tl.min(tl.where(some, counted, most), 0) < most:
            start = tl.maximum(far - STRETCH * BN, 0)
            acc, best, total, counted = count_blocks(
                acc, best, total, counted, q, K, V, rows, i, start, far, T, k_t, v_t, scale, most,
                False, BITS, E, D, BN, PRECISION,
            )  # fmt: skip
            far = start
    for j0 in tl.range(0, far, BN):  # all rows have counted beyond the table
        j = j0 + tl.arange(0, BN)
        k = tl.load(K + j[None, :] * k_t + e[:, None])
        s = tl.dot(q, k, input_precision=PRECISION) * scale + alike[:, None]
        acc, best, total = take_in(acc, best, total, s, V, j, T, v_t, False, D, PRECISION)
    out = (acc / total[:, None]).to(O.dtype.element_ty)
    tl.store(O + b * o_b + h * o_h + i[:, None] * o_t + d[None, :], out, mask=some[:, None])
    row = (first + local) * T + i
    tl.store(L + row, best + tl.math.log2(total), mask=some)
    tl.store(N + row, counted, mask=some)
    tl.store(FAR + (first + local) * tl.num_programs(0) + block, far)
