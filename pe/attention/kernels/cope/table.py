"""What CoPE's table and queries get from DZ, which `pe.attention.kernels.cope.backward` adds up.

    dq_i += unit_i DZ_i t    dt = (unit DZ)^T q    t, dt (rows of the table, E)

A row of dS adds up to 0, so what is alike from ``last`` on is what is missing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def of_queries(
    DQ, DZ, UNIT, N, TOP, TABLE, OUT, first, T, H, last, z_t, scale, o_b, o_h, o_t,
    BITS: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """The whole dq of a block, and into DZ what belongs to the last row of the table."""
    local = tl.program_id(1).to(tl.int64)
    b, h = (first + local) // H, (first + local) % H
    i = tl.program_id(0) * BM + tl.arange(0, BM)
    e = tl.arange(0, E)
    some = i < T
    rows = (local * T + i) * z_t
    top = tl.load(TOP + local * tl.num_programs(0) + tl.program_id(0))
    unit = tl.load(UNIT + local * T + i, mask=some, other=0.0)
    missing = tl.zeros((BM,), tl.int32)
    acc = tl.zeros((BM, E), tl.float32)
    for n0 in tl.range(0, tl.minimum(top + 1, last), BN):
        n = n0 + tl.arange(0, BN)
        at = DZ + rows[:, None] + n[None, :]
        dz = tl.load(at, mask=some[:, None] & (n[None, :] < last), other=0)
        missing -= tl.sum(dz, 1)
        t = tl.load(TABLE + n[:, None] * E + e[None, :], mask=n[:, None] < last, other=0.0)
        weights = (dz.to(tl.float32) * unit[:, None]).to(t.dtype)
        acc = tl.dot(weights, t, acc, input_precision=PRECISION)
    if top == last:
        counted = tl.load(N + (first + local) * T + i, mask=some, other=0)
        lastly = tl.load(DZ + rows + last, mask=some, other=0)
        lastly = tl.where(counted >= (last << BITS), missing, lastly)
        tl.store(DZ + rows + last, lastly, mask=some)
        t = tl.load(TABLE + last * E + e).to(tl.float32)
        acc += (lastly.to(tl.float32) * unit)[:, None] * t[None, :]
    dq = tl.load(DQ + (local * T + i[:, None]) * E + e[None, :], mask=some[:, None], other=0.0)
    out = (dq * scale + acc).to(OUT.dtype.element_ty)
    tl.store(OUT + b * o_b + h * o_h + i[:, None] * o_t + e[None, :], out, mask=some[:, None])


@triton.jit
def of_table(
    Q, DZ, UNIT, TOP, PARTS, first, heads, T, H, last, z_t, q_b, q_h, q_t,
    E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """PARTS (programs, rows, E): some rows' gradient from every n-th block of queries."""
    n0 = tl.program_id(0) * BN
    n = n0 + tl.arange(0, BN)
    e = tl.arange(0, E)
    blocks = tl.cdiv(T, BM)
    acc = tl.zeros((BN, E), tl.float32)
    for which in tl.range(tl.program_id(1), heads * blocks, tl.num_programs(1)):
        if tl.load(TOP + which) >= n0:
            local = (which // blocks).to(tl.int64)
            b, h = (first + local) // H, (first + local) % H
            i = (which % blocks) * BM + tl.arange(0, BM)
            some = i < T
            rows = Q + b * q_b + h * q_h + i[:, None] * q_t
            q = tl.load(rows + e[None, :], mask=some[:, None], other=0.0)
            unit = tl.load(UNIT + local * T + i, mask=some, other=0.0)
            numbers = DZ + (local * T + i[:, None]) * z_t + n[None, :]
            dz = tl.load(numbers, mask=some[:, None] & (n[None, :] <= last), other=0)
            weights = (dz.to(tl.float32) * unit[:, None]).to(q.dtype)
            acc = tl.dot(tl.trans(weights), q, acc, input_precision=PRECISION)
    at = PARTS + (tl.program_id(1).to(tl.int64) * (last + 1) + n[:, None]) * E + e[None, :]
    tl.store(at, acc, mask=n[:, None] <= last)
