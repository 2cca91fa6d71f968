"""The gradients of `pe.attention.kernels.cope.forward` that keys beyond the table have a part in.

To a query that has counted beyond the table a key's bias is one number, `alike`, so that

    P = 2^(s - (lse - alike))    dS = P (dO v^T - rowsum(dO o))
    dv = P^T dO    dq = scale dS k    dk = scale dS^T q

as in `pe.attention.kernels.flash.backward`: dq by queries, dk and dv by keys, each on the chip,
where shares of dk and dv would cost two additions in memory for each score. `far_by_queries` runs
before `pe.attention.kernels.cope.backward` and makes what that needs of each row as well;
`far_by_keys` runs after it and adds up the shares that it left.

FAR says for each block of queries where its far keys end. It mostly rises from block to block, but
need not: gates of later queries may be smaller.
"""

from __future__ import annotations

import triton
import triton.language as tl

CHUNK: tl.constexpr = tl.constexpr(256)
"""Numbers of FAR that are looked at at once."""


@triton.jit
def far_by_queries(
    Q, K, V, O, DO, L, FAR, Z, LARGEST, DQ, UNIT, LESS, SUMS, first, T, H, G, scale, last, z_t,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, g_b, g_h, g_t,
    E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of queries of one head: its part of dq, where there are far keys, and by row
    UNIT of the numbers in DZ, LESS: lse - alike, SUMS: rowsum(dO o).
    """
    tl.static_assert(BM % BN == 0)  # FAR counts whole blocks of BM
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the long rows first
    local = tl.program_id(1).to(tl.int64)
    b, h = (first + local) // H, (first + local) % H
    K += b * k_b + (h // G) * k_h
    V += b * v_b + (h // G) * v_h
    i = block * BM + tl.arange(0, BM)
    e, d = tl.arange(0, E), tl.arange(0, D)
    some = i < T
    at = DO + b * g_b + h * g_h + i[:, None] * g_t + d[None, :]
    g = tl.load(at, mask=some[:, None], other=0.0)
    at = O + b * o_b + h * o_h + i[:, None] * o_t + d[None, :]
    wide = g.to(tl.float32)
    sums = tl.sum(wide * tl.load(at, mask=some[:, None], other=0.0).to(tl.float32), 1)
    # |dS| adds up to no more than this in a row, as P adds up to 1: with room to spare
    largest = tl.load(LARGEST + b * (H // G) + h // G)
    bound = tl.sqrt(tl.sum(wide * wide, 1)) * largest * 2.5
    far = tl.multiple_of(tl.load(FAR + (first + local) * tl.num_programs(0) + block), BM)
    rows = (local * T + tl.minimum(i, T - 1)) * z_t
    alike = tl.load(Z + 2 * (rows + last), mask=some & (far > 0), other=0.0).to(tl.float32)
    lse = tl.load(L + (first + local) * T + i, mask=some, other=float("inf"))
    less = lse - alike  # weights of no query are 0
    tl.store(UNIT + local * T + i, bound / 1073741824.0, mask=some)
    tl.store(LESS + local * T + i, less, mask=some)
    tl.store(SUMS + local * T + i, sums, mask=some)
    if far > 0:
        Q += b * q_b + h * q_h
        q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=some[:, None], other=0.0)
        dq = tl.zeros((BM, E), tl.float32)
        for j0 in tl.range(0, far, BN):
            j = j0 + tl.arange(0, BN)
            k = tl.load(K + j[:, None] * k_t + e[None, :])
            v = tl.load(V + j[:, None] * v_t + d[None, :])
            s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
            p = tl.math.exp2(s - less[:, None])
            dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
            ds = p * (dp - sums[:, None])
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
        tl.store(DQ + (local * T + i[:, None]) * E + e[None, :], dq, mask=some[:, None])


@triton.jit
def added_up(SHARES, j, count, t_t, E: tl.constexpr):
    """(keys, E): ``count`` shares of (E, t_t), one after the other."""
    at = tl.arange(0, E)[None, :] * t_t + j[:, None]
    acc = tl.zeros((j.shape[0], E), tl.float32)
    for _ in tl.range(0, count):
        acc += tl.load(SHARES + at, mask=j[:, None] < t_t, other=0.0)
        SHARES += E * t_t  # all shares together may be beyond 32 bits
    return acc


@triton.jit
def first_beyond(FAR, j0, start, blocks):
    """The first block of queries from ``start`` on to which keys at j0 are far, or ``blocks``."""
    n = start + tl.arange(0, CHUNK)
    found = tl.full((CHUNK,), 2147483647, tl.int32)
    for at in tl.range(0, blocks - start, CHUNK):
        far = tl.load(FAR + at + n, mask=at + n < blocks, other=0)
        found = tl.minimum(found, tl.where(far > j0, at + n, 2147483647))
    return tl.minimum(tl.min(found, 0), blocks)


@triton.jit
def far_by_keys(
    Q, K, V, DO, FAR, LESS, SUMS, DK_SHARES, DV_SHARES, DK, DV, first, T, H, G, shares, t_t,
    scale, plain_scale, q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    dk_b, dk_h, dk_t, dv_b, dv_h, dv_t,
    BF: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """A block of keys of one key head: its shares and its far queries' part. BF: queries of FAR."""
    tl.static_assert(BF % BN == 0 and BF % BM == 0)  # a block is far to all queries of FAR or none
    local = tl.program_id(1).to(tl.int64)
    heads = H // G
    b, hk = (first // G + local) // heads, (first // G + local) % heads
    j0 = tl.program_id(0) * BN  # the first keys are far to most queries
    j = j0 + tl.arange(0, BN)
    e, d = tl.arange(0, E), tl.arange(0, D)
    inside = j[:, None] < T
    dk = added_up(DK_SHARES + local * G * shares * E * t_t, j, G * shares, t_t, E)
    dv = added_up(DV_SHARES + local * G * shares * D * t_t, j, G * shares, t_t, D)
    blocks = tl.cdiv(T, BF)
    for n in range(G):
        h, row = hk * G + n, local * G + n
        Qh, DOh = Q + b * q_b + h * q_h, DO + b * g_b + h * g_h
        FARh = FAR + (first + row) * blocks
        start = first_beyond(FARh, j0, j0 // BF, blocks) * BF
        there = inside & (start < T)  # nothing is read where keys are far to nobody
        k = tl.load(K + b * k_b + hk * k_h + j[:, None] * k_t + e[None, :], mask=there, other=0.0)
        v = tl.load(V + b * v_b + hk * v_h + j[:, None] * v_t + d[None, :], mask=there, other=0.0)
        for i0 in tl.range(start, T, BM):
            i = i0 + tl.arange(0, BM)
            some = i < T
            q = tl.load(Qh + i[:, None] * q_t + e[None, :], mask=some[:, None], other=0.0)
            less = tl.load(LESS + row * T + i, mask=some, other=float("inf"))
            far = tl.load(FARh + i // BF, mask=some, other=0)
            less = tl.where(far > j0, less, float("inf"))  # weights of other queries are 0
            s = tl.dot(k, tl.trans(q), input_precision=PRECISION) * scale
            p = tl.math.exp2(s - less[None, :])
            g = tl.load(DOh + i[:, None] * g_t + d[None, :], mask=some[:, None], other=0.0)
            dv = tl.dot(p.to(g.dtype), g, dv, input_precision=PRECISION)
            sums = tl.load(SUMS + row * T + i, mask=some, other=0.0)
            dp = tl.dot(v, tl.trans(g), input_precision=PRECISION)
            ds = p * (dp - sums[None, :])
            dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
    at = DK + b * dk_b + hk * dk_h + j[:, None] * dk_t + e[None, :]
    tl.store(at, (dk * plain_scale).to(DK.dtype.element_ty), mask=inside)
    at = DV + b * dv_b + hk * dv_h + j[:, None] * dv_t + d[None, :]
    tl.store(at, dv.to(DV.dtype.element_ty), mask=inside)
