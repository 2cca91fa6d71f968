"""CoPE's gradients through the table: that of the table, and its part in that of the queries.

    dq_i += unit_i dz_i t    dt = (unit dz)^T q    t and dt are (rows of the table, E)

dz comes from `pe.attention.kernels.cope.backward`. A row of dS sums to 0, so the entry of dz for
the last row of the table, to which all far keys belong, is minus the sum of the others.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import tile


@triton.jit
def of_queries(
    p_dq, p_dz, p_unit, p_counts, p_top, p_table, p_out, first, T, H, last, z_t, scale, out_strides,
    BITS: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute dq of a block of queries, and complete dz with the entry for the table's last row.

    Args:
        p_dq: (heads, T, E) float32, without the table's part.
        p_dz: (heads, T, z_t) int32; the entry for the last row is written.
        p_unit: (heads, T) float32. p_counts: (B, H, T) int32. p_top: (heads, query blocks) int32.
        p_table: (last + 1, E), of q's type. p_out: (B, H, T, E), dq, written.
        scale: of the logits.
    """
    i_local = tl.program_id(1).to(tl.int64)
    i_b, i_h = (first + i_local) // H, (first + i_local) % H
    o_i = tl.program_id(0) * BM + tl.arange(0, BM)
    o_e = tl.arange(0, E)
    m_i = o_i < T
    o_rows = (i_local * T + o_i) * z_t
    top = tl.load(p_top + i_local * tl.num_programs(0) + tl.program_id(0))
    unit = tl.load(p_unit + i_local * T + o_i, mask=m_i, other=0.0)
    missing = tl.zeros((BM,), tl.int32)
    b_acc = tl.zeros((BM, E), tl.float32)
    for n0 in tl.range(0, tl.minimum(top + 1, last), BN):
        o_n = n0 + tl.arange(0, BN)
        p_at = p_dz + o_rows[:, None] + o_n[None, :]
        b_dz = tl.load(p_at, mask=m_i[:, None] & (o_n[None, :] < last), other=0)
        missing -= tl.sum(b_dz, 1)
        b_table = tl.load(
            p_table + o_n[:, None] * E + o_e[None, :], mask=o_n[:, None] < last, other=0.0
        )
        weights = (b_dz.to(tl.float32) * unit[:, None]).to(b_table.dtype)
        b_acc = tl.dot(weights, b_table, b_acc, input_precision=PRECISION)
    if top == last:
        counted = tl.load(p_counts + (first + i_local) * T + o_i, mask=m_i, other=0)
        b_last = tl.load(p_dz + o_rows + last, mask=m_i, other=0)
        b_last = tl.where(counted >= (last << BITS), missing, b_last)
        tl.store(p_dz + o_rows + last, b_last, mask=m_i)
        b_table = tl.load(p_table + last * E + o_e).to(tl.float32)
        b_acc += (b_last.to(tl.float32) * unit)[:, None] * b_table[None, :]
    b_dq = tl.load(
        p_dq + (i_local * T + o_i[:, None]) * E + o_e[None, :], mask=m_i[:, None], other=0.0
    )
    out = (b_dq * scale + b_acc).to(p_out.dtype.element_ty)
    tl.store(tile(p_out, out_strides, i_b, i_h, o_i, o_e), out, mask=m_i[:, None])


@triton.jit
def of_table(
    p_q, p_dz, p_unit, p_top, p_parts, first, heads, T, H, last, z_t, q_strides,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of BN rows of the table from every n-th block of queries.

    Args:
        p_q: (B, H, T, E). p_dz, p_unit, p_top: as in `of_queries`.
        p_parts: (programs, last + 1, E) float32, written; the parts are summed afterwards.
    """
    n0 = tl.program_id(0) * BN
    o_n = n0 + tl.arange(0, BN)
    o_e = tl.arange(0, E)
    blocks = tl.cdiv(T, BM)
    b_acc = tl.zeros((BN, E), tl.float32)
    for i_which in tl.range(tl.program_id(1), heads * blocks, tl.num_programs(1)):
        if tl.load(p_top + i_which) >= n0:
            i_local = (i_which // blocks).to(tl.int64)
            i_b, i_h = (first + i_local) // H, (first + i_local) % H
            o_i = (i_which % blocks) * BM + tl.arange(0, BM)
            m_i = o_i < T
            b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_i, o_e), mask=m_i[:, None], other=0.0)
            unit = tl.load(p_unit + i_local * T + o_i, mask=m_i, other=0.0)
            numbers = p_dz + (i_local * T + o_i[:, None]) * z_t + o_n[None, :]
            b_dz = tl.load(numbers, mask=m_i[:, None] & (o_n[None, :] <= last), other=0)
            weights = (b_dz.to(tl.float32) * unit[:, None]).to(b_q.dtype)
            b_acc = tl.dot(tl.trans(weights), b_q, b_acc, input_precision=PRECISION)
    p_at = p_parts + (tl.program_id(1).to(tl.int64) * (last + 1) + o_n[:, None]) * E + o_e[None, :]
    tl.store(p_at, b_acc, mask=o_n[:, None] <= last)
