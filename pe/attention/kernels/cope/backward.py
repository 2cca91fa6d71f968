"""The gradients of `pe.attention.kernels.cope.forward`, in the same terms.

    dS = P (dO v^T - rowsum(dO o))        as for any bias
    dc_ij = dS_ij (q_i . t)'(c_ij)        a count's share
    dg_it = dc_i0 + ... + dc_it           a gate is in the counts of all keys up to its own
    logits get dS + dg g (1 - g)

and dS goes to the two rows of the table between which a count lies: DZ, by query and row, from
which `pe.attention.kernels.cope.table` makes what the table and the queries get. DZ adds up whole
numbers, multiples of ``UNIT``, since those have the same sum in whatever order they come: the same
bits every time.

Here are the near keys, those from FAR on; of those that all rows of a block have counted beyond the
table to, no count is needed (`pe.attention.kernels.cope.far`). A program takes every S-th block of
queries of one head and goes from left to right. It alone adds to its share of dk and dv; the shares
are added up in order afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.cope.forward import counts_of, gates_of, read_bias
from pe.attention.kernels.flash.elementary import INTERPRETED


@triton.jit
def nearest(x):
    """The nearest whole number, int32."""
    if INTERPRETED:
        return tl.floor(x + 0.5).to(tl.int32)
    return tl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def add_number(at, number):
    """Add whole numbers at addresses some of which may be the same."""
    if INTERPRETED:
        tl.atomic_add(at, number, sem="relaxed")
    else:
        tl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.s32 [$1], $2; mov.b32 $0, 0;", "=r,l,r",
            [at.to(tl.int64), number], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def share_out(rows, below, to_this, to_next, BM: tl.constexpr, BN: tl.constexpr):
    """Add to the row below a count and to the next, for two keys at once.

    The count from the left one lies in the same place or, no gate being more than 1, in the next.
    What counts beyond the table have to add to its next rows is 0, and nobody reads it.
    """
    far, near = tl.split(tl.reshape(below, (BM, BN // 2, 2)))
    far_this, near_this = tl.split(tl.reshape(to_this, (BM, BN // 2, 2)))
    far_next, near_next = tl.split(tl.reshape(to_next, (BM, BN // 2, 2)))
    same, at = far == near, rows + near
    add_number(at, near_this + tl.where(same, far_this, 0))
    add_number(at + 1, near_next + tl.where(same, far_next, far_this))
    add_number(at + 2, tl.where(same, 0, far_next))


@triton.jit
def add_tile(TO, r, j, x, t_t):
    """Add a tile to memory that no other program touches."""
    tl.atomic_add(TO + r[:, None] * t_t + j[None, :], x, sem="relaxed")


@triton.jit
def count_blocks(
    dq, left, before, q, g, lse, sums, fine, K, V, Z, DZ, DK, DV, rows, i, start, stop,
    T, k_t, v_t, t_t, scale, most,
    LAST: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients from the key blocks from ``start`` to ``stop``; LAST: some are ahead.

    ``left``: counts from the left edge of a block; ``before``: shares of counts left of it.
    """
    e, d, r = tl.arange(0, E), tl.arange(0, D), tl.arange(0, BN)
    earlier = r[:, None] < r[None, :]
    for j0 in tl.range(start, stop, BN):
        j = j0 + r
        seen = i[:, None] >= j[None, :]
        if LAST:
            k = tl.load(K + j[:, None] * k_t + e[None, :], mask=j[:, None] < T, other=0.0)
            v = tl.load(V + j[:, None] * v_t + d[None, :], mask=j[:, None] < T, other=0.0)
        else:
            k = tl.load(K + j[:, None] * k_t + e[None, :])
            v = tl.load(V + j[:, None] * v_t + d[None, :])
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        gate, numbers, high, low = gates_of(s, seen, LAST, BITS)
        slope = gate - gate * gate
        counts = counts_of(left, high, low, earlier.to(tl.float16))
        left -= tl.sum(numbers, 1)
        below, part, value, rise = read_bias(Z + 2 * rows, counts, most, BITS)
        p = tl.math.exp2(s + value + part * rise - lse[:, None])
        if LAST:
            p = tl.where(seen, p, 0.0)
        dp = tl.dot(g, tl.trans(v), input_precision=PRECISION)
        ds = p * (dp - sums[:, None])
        steps = ds * fine[:, None]
        to_next = nearest(steps * part)
        share_out(DZ + rows[:, None], below, nearest(steps) - to_next, to_next, BM, BN)
        dc = ds * rise * 0.6931471805599453  # products are in base 2
        inner = tl.dot(dc.to(k.dtype), earlier.to(k.dtype), input_precision=PRECISION)
        dg = before[:, None] + inner + dc
        before += tl.sum(dc, 1)
        ds = (ds + dg * slope).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision=PRECISION)
        dv = tl.dot(tl.trans(g), p.to(g.dtype), input_precision=PRECISION)
        add_tile(DV, d, j, dv, t_t)
        dk = tl.dot(tl.trans(q), ds, input_precision=PRECISION)
        add_tile(DK, e, j, dk, t_t)
    return dq, left, before


@triton.jit
def backward(
    Q, K, V, DO, L, N, FAR, Z, DQ, DZ, UNIT, SUMS, DK, DV,
    first, T, H, G, scale, last, z_t, t_t,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, g_b, g_h, g_t,
    BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Every S-th block of queries of one head: dq less the table's part, DZ, shares of dk, dv.

    DQ comes with the part of far keys where there are any.
    """
    share, local = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, h = (first + local) // H, (first + local) % H
    Q += b * q_b + h * q_h
    DO += b * g_b + h * g_h
    K += b * k_b + (h // G) * k_h
    V += b * v_b + (h // G) * v_h
    DK += (local * tl.num_programs(0) + share) * t_t * E
    DV += (local * tl.num_programs(0) + share) * t_t * D
    e, d = tl.arange(0, E), tl.arange(0, D)
    most = last << BITS
    blocks = tl.cdiv(T, BM)
    for block in tl.range(share, blocks, tl.num_programs(0)):
        tl.debug_barrier()  # what was added for other queries comes first
        i0 = block * BM
        i = i0 + tl.arange(0, BM)
        some = i < T
        q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=some[:, None], other=0.0)
        g = tl.load(DO + i[:, None] * g_t + d[None, :], mask=some[:, None], other=0.0)
        row = (first + local) * T + i
        lse = tl.load(L + row, mask=some, other=float("inf"))  # weights of no query are 0
        left = tl.load(N + row, mask=some, other=0)
        sums = tl.load(SUMS + local * T + i, mask=some, other=0.0)
        fine = 1.0 / tl.maximum(tl.load(UNIT + local * T + i, mask=some, other=1.0), 1e-29)
        far = tl.multiple_of(tl.load(FAR + (first + local) * blocks + block), BN)
        at = DQ + (local * T + i[:, None]) * E + e[None, :]
        dq = tl.load(at, mask=some[:, None] & (far > 0), other=0.0)
        rows = (local * T + tl.minimum(i, T - 1)) * z_t
        before = tl.zeros((BM,), tl.float32)
        last_ones = tl.maximum(far, i0 // BN * BN)
        dq, left, before = count_blocks(
            dq, left, before, q, g, lse, sums, fine, K, V, Z, DZ, DK, DV, rows, i, far, last_ones,
            T, k_t, v_t, t_t, scale, most, False, BITS, E, D, BM, BN, PRECISION,
        )  # fmt: skip
        dq, left, before = count_blocks(
            dq, left, before, q, g, lse, sums, fine, K, V, Z, DZ, DK, DV, rows, i, last_ones,
            tl.minimum(i0 + BM, T), T, k_t, v_t, t_t, scale, most, True, BITS, E, D, BM, BN,
            PRECISION,
        )  # fmt: skip
        tl.store(at, dq, mask=some[:, None])
