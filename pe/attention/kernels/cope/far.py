"""CoPE's gradients from far keys.

A query counts from its own key backwards. The keys before the one at which its count reaches the
end of the table are far. For a query they all have the same bias, ``beyond``, so that

    P = 2^(s - lse_far), lse_far = lse - beyond    dS = P (dO v^T - rowsum(dO o))
    dv = P^T dO    dq = scale dS k    dk = scale dS^T q

As in `pe.attention.kernels.flash.backward`, dq is computed by blocks of queries, and dk and dv by
blocks of keys. Sums stay on the chip, while the shares of dk and dv that near keys need would cost
two additions in memory per score. `far_by_queries` runs before `pe.attention.kernels.cope.backward`
and also computes what that kernel needs of each query. `far_by_keys` runs after it and sums the
shares that it wrote.

``far`` is for each block of queries the end of its far keys. It mostly rises from block to block,
but not always, because gates of later queries may be smaller.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import tile

READ_AT_ONCE: tl.constexpr = tl.constexpr(256)
"""How many numbers of ``far`` are read at once."""


@triton.jit
def far_by_queries(
    p_q, p_k, p_v, p_o, p_do, p_lse, p_far, p_z, p_largest, p_dq, p_unit, p_lse_far, p_sums, first,
    T, H, G, scale, last, z_t, q_strides, k_strides, v_strides, out_strides, do_strides,
    E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the part of dq from far keys for a block of queries, and three numbers per query.

    Args:
        p_q, p_k, p_v, p_o, p_lse, p_far, p_z: as in `forward`.
        p_do: (B, H, T, D), the gradient of the output.
        p_largest: (B, H / G) float32, the largest norm of a value.
        p_dq: (heads, T, E) float32, written if there are far keys.
        p_unit, p_lse_far, p_sums: (heads, T) float32, written: the unit of dz, lse_far, and
            rowsum(dO o).
    """
    tl.static_assert(BM % BN == 0)  # because far is a multiple of BM
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # blocks with the most keys start first
    i_local = tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    o_i = i_block * BM + tl.arange(0, BM)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_i = o_i < T
    b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_i, o_d), mask=m_i[:, None], other=0.0)
    p_at = tile(p_o, out_strides, i_b, i_h, o_i, o_d)
    wide = b_do.to(tl.float32)
    b_o = tl.load(p_at, mask=m_i[:, None], other=0.0)
    b_sums = tl.sum(wide * b_o.to(tl.float32), 1)
    # A bound of the sum of |dS| over a row, with room to spare, because the sum of P is 1.
    largest = tl.load(p_largest + i_b * (H // G) + i_h // G)
    bound = tl.sqrt(tl.sum(wide * wide, 1)) * largest * 2.5
    far = tl.multiple_of(tl.load(p_far + (first + i_local) * tl.num_programs(0) + i_block), BM)
    o_rows = (i_local * T + tl.minimum(o_i, T - 1)) * z_t
    b_beyond = tl.load(p_z + 2 * (o_rows + last), mask=m_i & (far > 0), other=0.0).to(tl.float32)
    b_lse = tl.load(p_lse + (first + i_local) * T + o_i, mask=m_i, other=float("inf"))
    b_lse_far = b_lse - b_beyond  # infinite beyond T, so that weights there are 0
    tl.store(p_unit + i_local * T + o_i, bound / 1073741824.0, mask=m_i)
    tl.store(p_lse_far + i_local * T + o_i, b_lse_far, mask=m_i)
    tl.store(p_sums + i_local * T + o_i, b_sums, mask=m_i)
    if far > 0:
        b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
        b_dq = tl.zeros((BM, E), tl.float32)
        for j0 in tl.range(0, far, BN):
            o_j = j0 + tl.arange(0, BN)
            b_k = tl.load(p_k + o_j[:, None] * k_strides[2] + o_e[None, :])
            b_v = tl.load(p_v + o_j[:, None] * v_strides[2] + o_d[None, :])
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
            b_p = tl.math.exp2(b_s - b_lse_far[:, None])
            b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
            b_ds = b_p * (b_dp - b_sums[:, None])
            b_dq = tl.dot(b_ds.to(b_k.dtype), b_k, b_dq, input_precision=PRECISION)
        tl.store(p_dq + (i_local * T + o_i[:, None]) * E + o_e[None, :], b_dq, mask=m_i[:, None])


@triton.jit
def sum_of_shares(p_shares, o_j, count, t_t, E: tl.constexpr):
    """Return the sum of ``count`` adjacent shares, each (E, t_t), for some keys: (keys, E)."""
    o_at = tl.arange(0, E)[None, :] * t_t + o_j[:, None]
    b_acc = tl.zeros((o_j.shape[0], E), tl.float32)
    for _ in tl.range(0, count):
        b_acc += tl.load(p_shares + o_at, mask=o_j[:, None] < t_t, other=0.0)
        p_shares += E * t_t  # an offset into all shares might not fit into 32 bits
    return b_acc


@triton.jit
def first_beyond(p_far, j0, start, blocks):
    """Return the first block of queries, from ``start`` on, for which the keys at j0 are far.

    It is ``blocks`` if there is none.
    """
    o_n = start + tl.arange(0, READ_AT_ONCE)
    first_block = tl.full((READ_AT_ONCE,), 2147483647, tl.int32)
    for o_block in tl.range(0, blocks - start, READ_AT_ONCE):
        far = tl.load(p_far + o_block + o_n, mask=o_block + o_n < blocks, other=0)
        first_block = tl.minimum(first_block, tl.where(far > j0, o_block + o_n, 2147483647))
    return tl.minimum(tl.min(first_block, 0), blocks)


@triton.jit
def far_by_keys(
    p_q, p_k, p_v, p_do, p_far, p_lse_far, p_sums, p_dk_shares, p_dv_shares, p_dk, p_dv, first, T,
    H, G, shares, t_t, scale, plain_scale, q_strides, k_strides, v_strides, do_strides, dk_strides,
    dv_strides, BF: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dk and dv of a block of keys: the sum of its shares, and parts from far queries.

    Args:
        p_q, p_k, p_v, p_far: as in `forward`. p_do: (B, H, T, D), the gradient of the output.
        p_lse_far, p_sums: (heads, T) float32, which `far_by_queries` wrote.
        p_dk_shares, p_dv_shares: (heads, shares, E or D, t_t) float32, which
            `pe.attention.kernels.cope.backward.backward` wrote.
        p_dk: (B, H / G, T, E), written. p_dv: (B, H / G, T, D), written.
        BF: the number of queries per entry of p_far.
    """
    # So the keys of a block are far either for all queries of a block or for none.
    tl.static_assert(BF % BN == 0 and BF % BM == 0)
    i_local = tl.program_id(1).to(tl.int64)
    heads = H // G
    i_b, i_hk = (first // G + i_local) // heads, (first // G + i_local) % heads
    j0 = tl.program_id(0) * BN  # the first keys are far for the most queries, and start first
    o_j = j0 + tl.arange(0, BN)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_j = o_j[:, None] < T
    b_dk = sum_of_shares(p_dk_shares + i_local * G * shares * E * t_t, o_j, G * shares, t_t, E)
    b_dv = sum_of_shares(p_dv_shares + i_local * G * shares * D * t_t, o_j, G * shares, t_t, D)
    blocks = tl.cdiv(T, BF)
    for i_g in range(G):
        i_h, row = i_hk * G + i_g, i_local * G + i_g
        p_qh = p_q + i_b * q_strides[0] + i_h * q_strides[1]
        p_doh = p_do + i_b * do_strides[0] + i_h * do_strides[1]
        p_farh = p_far + (first + row) * blocks
        start = first_beyond(p_farh, j0, j0 // BF, blocks) * BF
        m_far = m_j & (start < T)  # nothing is read if the keys are far for no query
        b_k = tl.load(tile(p_k, k_strides, i_b, i_hk, o_j, o_e), mask=m_far, other=0.0)
        b_v = tl.load(tile(p_v, v_strides, i_b, i_hk, o_j, o_d), mask=m_far, other=0.0)
        for i0 in tl.range(start, T, BM):
            o_i = i0 + tl.arange(0, BM)
            m_i = o_i < T
            p_at = p_qh + o_i[:, None] * q_strides[2] + o_e[None, :]
            b_q = tl.load(p_at, mask=m_i[:, None], other=0.0)
            b_lse_far = tl.load(p_lse_far + row * T + o_i, mask=m_i, other=float("inf"))
            far = tl.load(p_farh + o_i // BF, mask=m_i, other=0)
            b_lse_far = tl.where(far > j0, b_lse_far, float("inf"))  # makes other weights 0
            b_s = tl.dot(b_k, tl.trans(b_q), input_precision=PRECISION) * scale
            b_p = tl.math.exp2(b_s - b_lse_far[None, :])
            p_at = p_doh + o_i[:, None] * do_strides[2] + o_d[None, :]
            b_do = tl.load(p_at, mask=m_i[:, None], other=0.0)
            b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision=PRECISION)
            b_sums = tl.load(p_sums + row * T + o_i, mask=m_i, other=0.0)
            b_dp = tl.dot(b_v, tl.trans(b_do), input_precision=PRECISION)
            b_ds = b_p * (b_dp - b_sums[None, :])
            b_dk = tl.dot(b_ds.to(b_q.dtype), b_q, b_dk, input_precision=PRECISION)
    tl.store(tile(p_dk, dk_strides, i_b, i_hk, o_j, o_e), b_dk * plain_scale, mask=m_j)
    tl.store(tile(p_dv, dv_strides, i_b, i_hk, o_j, o_d), b_dv, mask=m_j)
