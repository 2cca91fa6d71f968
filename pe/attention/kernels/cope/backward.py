"""CoPE's gradients from near keys; terms are those of `pe.attention.kernels.cope.forward`.

    dS = P (dO v^T - rowsum(dO o))        as for any bias
    dc_ij = dS_ij (q_i . t)'(c_ij)        the gradient of a count
    dg_it = dc_i0 + ... + dc_it           a gate is a part of the counts of all keys up to its own
    the gradient of the logits is dS + dg g (1 - g)

dS is also divided between the two rows of the table between which a count lies. Its sums by query
and row are dz, from which `pe.attention.kernels.cope.table` computes the gradients of the table and
a part of those of the queries. dz is summed in whole numbers, multiples of ``unit``. Their sum does
not depend on the order, so results have the same bits every time.

Near keys are those from ``far`` on. For earlier keys no count is needed, and
`pe.attention.kernels.cope.far` has their gradients. In a window all visible keys are near, and a
program goes from the first of them to the right. A program takes every S-th block of queries of
one head and goes from left to right. It has its own share of dk and dv, to which no other program
adds, and the shares are summed in order afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.cope.forward import counts_from, gates_from, read_bias, visible
from pe.attention.kernels.flash.elementary import INTERPRETED
from pe.attention.kernels.flash.spans import NOWHERE


@triton.jit
def nearest(x):
    """Return the nearest whole number, int32."""
    if INTERPRETED:
        return tl.floor(x + 0.5).to(tl.int32)
    return tl.inline_asm_elementwise(
        "cvt.rni.s32.f32 $0, $1;", "=r,f", [x], dtype=tl.int32, is_pure=True, pack=1
    )


@triton.jit
def add_number(p_at, number):
    """Add whole numbers to memory; some of the addresses may be equal."""
    if INTERPRETED:
        tl.atomic_add(p_at, number, sem="relaxed")
    else:
        tl.inline_asm_elementwise(
            "red.relaxed.gpu.global.add.s32 [$1], $2; mov.b32 $0, 0;", "=r,l,r",
            [p_at.to(tl.int64), number], dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def add_shares(p_rows, below, to_this, to_next, BM: tl.constexpr, BN: tl.constexpr):
    """Add to dz in the row of the table below each count and in the next one, for pairs of keys.

    The count of the left key of a pair lies between the same two rows as that of the right key, or
    between the next two, because a gate is at most 1. Additions beyond the last row are 0.

    Args:
        p_rows: (BM, 1), pointers to rows of dz. below: (BM, BN), the row below each count.
        to_this, to_next: (BM, BN) int32, what is added to that row and to the next one.
    """
    far, near = tl.split(tl.reshape(below, (BM, BN // 2, 2)))
    far_this, near_this = tl.split(tl.reshape(to_this, (BM, BN // 2, 2)))
    far_next, near_next = tl.split(tl.reshape(to_next, (BM, BN // 2, 2)))
    same, p_at = far == near, p_rows + near
    add_number(p_at, near_this + tl.where(same, far_this, 0))
    add_number(p_at + 1, near_next + tl.where(same, far_next, far_this))
    add_number(p_at + 2, tl.where(same, 0, far_next))


@triton.jit
def add_tile(p_to, o_r, o_j, b_x, t_t):
    """Add a tile to memory to which no other program writes."""
    tl.atomic_add(p_to + o_r[:, None] * t_t + o_j[None, :], b_x, sem="relaxed")


@triton.jit
def visit_counted(
    b_dq, left, before, b_q, b_do, b_lse, b_sums, fine, p_k, p_v, p_z, p_dz, p_dk, p_dv, rows, o_i,
    p_spans, b_first, start, stop, T, k_t, v_t, t_t, scale, most,
    IS_EDGE: tl.constexpr, SEGMENTED: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the contributions of the key blocks from ``start`` to ``stop``.

    Args:
        left: (BM,) int32, the counts from the first key of the next block. before: (BM,), the sum
            of dc over all keys before it.
        fine: (BM,), 1 / unit. rows: (BM,), offsets of the rows of z and dz.
        p_dk: (E, t_t) and p_dv: (D, t_t), this program's share.
        IS_EDGE: some of the queries do not see all of these keys.
    """
    o_e, o_d, o_r = tl.arange(0, E), tl.arange(0, D), tl.arange(0, BN)
    earlier = o_r[:, None] < o_r[None, :]
    for j0 in tl.range(start, stop, BN):
        o_j = j0 + o_r
        m_seen = visible(o_i, o_j, p_spans, b_first, T, SEGMENTED)
        if IS_EDGE:
            b_k = tl.load(p_k + o_j[:, None] * k_t + o_e[None, :], mask=o_j[:, None] < T, other=0.0)
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[:, None] * k_t + o_e[None, :])
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision=PRECISION) * scale
        gate, numbers, high, low = gates_from(b_s, m_seen, IS_EDGE, BITS)
        slope = gate - gate * gate
        counts = counts_from(left, high, low, earlier.to(tl.float16))
        left -= tl.sum(numbers, 1)
        below, part, value, rise = read_bias(p_z + 2 * rows, counts, most, BITS)
        b_p = tl.math.exp2(b_s + value + part * rise - b_lse[:, None])
        if IS_EDGE:
            b_p = tl.where(m_seen, b_p, 0.0)
        b_dp = tl.dot(b_do, tl.trans(b_v), input_precision=PRECISION)
        b_ds = b_p * (b_dp - b_sums[:, None])
        steps = b_ds * fine[:, None]
        to_next = nearest(steps * part)
        add_shares(p_dz + rows[:, None], below, nearest(steps) - to_next, to_next, BM, BN)
        b_dc = b_ds * rise * 0.6931471805599453  # products are in base 2
        inner = tl.dot(b_dc.to(b_k.dtype), earlier.to(b_k.dtype), input_precision=PRECISION)
        b_dg = before[:, None] + inner + b_dc
        before += tl.sum(b_dc, 1)
        b_ds = (b_ds + b_dg * slope).to(b_k.dtype)
        b_dq = tl.dot(b_ds, b_k, b_dq, input_precision=PRECISION)
        b_dv = tl.dot(tl.trans(b_do), b_p.to(b_do.dtype), input_precision=PRECISION)
        add_tile(p_dv, o_d, o_j, b_dv, t_t)
        b_dk = tl.dot(tl.trans(b_q), b_ds, input_precision=PRECISION)
        add_tile(p_dk, o_e, o_j, b_dk, t_t)
    return b_dq, left, before


@triton.jit
def backward(
    p_q, p_k, p_v, p_do, p_lse, p_counts, p_far, p_z, p_dq, p_dz, p_unit, p_sums, p_dk, p_dv,
    p_spans, first, T, H, G, scale, last, z_t, t_t,
    q_strides, k_strides, v_strides, do_strides, spans_b,
    SEGMENTED: tl.constexpr, BITS: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq without the table's part, dz, and a share of dk and dv.

    A program does this for every S-th block of queries of one head.

    Args:
        p_q, p_k, p_v, p_lse, p_counts, p_far, p_z, p_spans, SEGMENTED: as in `forward`.
        p_do: (B, H, T, D), the gradient of the output.
        p_unit, p_sums: (heads, T) float32, which `far.far_by_queries` wrote.
        p_dq: (heads, T, E) float32, to which the part of near keys is added. If there are far keys,
            it holds their part already.
        p_dz: (heads, T, z_t) int32, to which is added.
        p_dk, p_dv: (heads, S, E or D, t_t) float32, to which is added. t_t: T, rounded up to whole
            blocks.
    """
    i_share, i_local = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    p_q += i_b * q_strides[0] + i_h * q_strides[1]
    p_do += i_b * do_strides[0] + i_h * do_strides[1]
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    p_dk += (i_local * tl.num_programs(0) + i_share) * t_t * E
    p_dv += (i_local * tl.num_programs(0) + i_share) * t_t * D
    if p_spans is not None:
        p_spans += i_b * spans_b
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    most = last << BITS
    blocks = tl.cdiv(T, BM)
    for i_block in tl.range(i_share, blocks, tl.num_programs(0)):
        tl.debug_barrier()  # additions for the block before must be complete
        i0 = i_block * BM
        o_i = i0 + tl.arange(0, BM)
        m_i = o_i < T
        b_q = tl.load(
            p_q + o_i[:, None] * q_strides[2] + o_e[None, :], mask=m_i[:, None], other=0.0
        )
        b_do = tl.load(
            p_do + o_i[:, None] * do_strides[2] + o_d[None, :], mask=m_i[:, None], other=0.0
        )
        o_row = (first + i_local) * T + o_i
        b_lse = tl.load(p_lse + o_row, mask=m_i, other=float("inf"))  # makes weights beyond T 0
        left = tl.load(p_counts + o_row, mask=m_i, other=0)
        b_sums = tl.load(p_sums + i_local * T + o_i, mask=m_i, other=0.0)
        fine = 1.0 / tl.maximum(tl.load(p_unit + i_local * T + o_i, mask=m_i, other=1.0), 1e-29)
        far = tl.multiple_of(tl.load(p_far + (first + i_local) * blocks + i_block), BN)
        p_at = p_dq + (i_local * T + o_i[:, None]) * E + o_e[None, :]
        if p_spans is None:
            b_dq = tl.load(p_at, mask=m_i[:, None] & (far > 0), other=0.0)
        else:
            b_dq = tl.zeros((BM, E), tl.float32)
        o_rows = (i_local * T + tl.minimum(o_i, T - 1)) * z_t
        before = tl.zeros((BM,), tl.float32)
        last_ones = tl.maximum(far, i0 // BN * BN)
        b_first = None
        if p_spans is None:
            b_dq, left, before = visit_counted(
                b_dq, left, before, b_q, b_do, b_lse, b_sums, fine, p_k, p_v, p_z, p_dz, p_dk, p_dv,
                o_rows, o_i, p_spans, b_first, far, last_ones, T, k_strides[2], v_strides[2], t_t,
                scale, most, False, SEGMENTED, BITS, E, D, BM, BN, PRECISION,
            )  # fmt: skip
        else:
            b_first = tl.load(p_spans + o_i, mask=m_i, other=NOWHERE)
            last_ones = tl.min(b_first, 0) // BN * BN
        b_dq, left, before = visit_counted(
            b_dq, left, before, b_q, b_do, b_lse, b_sums, fine, p_k, p_v, p_z, p_dz, p_dk, p_dv,
            o_rows, o_i, p_spans, b_first, last_ones, tl.minimum(i0 + BM, T), T, k_strides[2],
            v_strides[2], t_t, scale, most, True, SEGMENTED, BITS, E, D, BM, BN, PRECISION,
        )  # fmt: skip
        tl.store(p_at, b_dq, mask=m_i[:, None])
