"""PaTH's work in one chunk: what `pe.attention.kernels.path.attention` needs of it, and gradients.

`pe.attention.kernels.path.op` explains the method and the names.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import tile
from pe.encodings.core.reflections import CHUNK

C: tl.constexpr = tl.constexpr(CHUNK)
SOLVED: tl.constexpr = tl.constexpr(16)
"""The largest triangular matrix that is inverted by substitution; a quarter of C."""


@triton.jit
def part(p, i, o_row, o_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the addresses of matrix ``i`` of contiguous matrices (ROWS, COLUMNS)."""
    return p + i * (ROWS * COLUMNS) + o_row[:, None] * COLUMNS + o_column[None, :]


@triton.jit
def turned(p, i, o_row, o_column, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the addresses of the transpose of matrix ``i``, (COLUMNS, ROWS)."""
    return p + i * (ROWS * COLUMNS) + o_row[None, :] * COLUMNS + o_column[:, None]


@triton.jit
def nearest(x, PRECISION: tl.constexpr):
    """Round float32 to the nearest TF32, because products would cut off the bits beyond."""
    if PRECISION != "ieee":
        x = ((x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return x


@triton.jit
def product(a, b, PRECISION: tl.constexpr, AT: tl.constexpr = False, BT: tl.constexpr = False):
    """Return a @ b of float32 with a relative error of about 2^-16; AT, BT: of a^T or b^T.

    Each factor is the sum of two bfloat16, because tensor cores read a matrix of 16 bits in either
    direction and one of TF32 in one only. PRECISION "ieee" is the product in float32.
    """
    if PRECISION == "ieee":
        high_a, high_b = a, b
    else:
        high_a, high_b = a.to(tl.bfloat16), b.to(tl.bfloat16)
        low_a = (a - high_a.to(tl.float32)).to(tl.bfloat16)
        low_b = (b - high_b.to(tl.float32)).to(tl.bfloat16)
        if AT:
            low_a = tl.trans(low_a)
        if BT:
            low_b = tl.trans(low_b)
    if AT:
        high_a = tl.trans(high_a)
    if BT:
        high_b = tl.trans(high_b)
    c = tl.dot(high_a, high_b, input_precision="ieee")
    if PRECISION != "ieee":
        c = tl.dot(low_a, high_b, c)
        c = tl.dot(high_a, low_b, c)
    return c


@triton.jit
def inverse(b_l, o_c, PRECISION: tl.constexpr):
    """Return (I + b_l)^-1 for b_l strictly lower triangular, (C, C)."""
    m_near = (o_c[:, None] // SOLVED) == (o_c[None, :] // SOLVED)
    b_near = tl.where(m_near, b_l, 0.0)
    b_x = tl.where(o_c[:, None] == o_c[None, :], 1.0, 0.0)
    # Substitution in the four blocks on the diagonal at once: row i is subtracted from later ones.
    for i in tl.range(0, SOLVED - 1):
        o_i = o_c // SOLVED * SOLVED + i
        b_column = tl.sum(tl.where(o_c[None, :] == o_i[:, None], b_near, 0.0), 1)
        b_row = tl.sum(tl.where(o_c[:, None] == o_i[None, :], b_x, 0.0), 0)
        b_x -= tl.where(m_near, b_column[:, None] * b_row[None, :], 0.0)
    # (I + M)^-1 = (I - M) (I + M^2), because M^4 is 0.
    b_m = product(b_x, b_l - b_near, PRECISION)
    b_x += product(product(b_m, b_m, PRECISION), b_x, PRECISION)
    return b_x - product(b_m, b_x, PRECISION)


@triton.jit
def prepare(
    p_q, p_k, p_state, p_rest, p_own, p_keys, p_xt, p_x, p_solved, p_copy, T, H, G, scale,
    q_strides, k_strides, state_strides, E: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute what concerns one chunk alone.

    Args:
        p_q: (B, H, T, E). p_k: (B, H / G, T, E). p_state: (B, H, T, E + 1) float32, w and beta.
        p_rest: Q~ (N, n, C, E). p_own: the bias (N, n, C, C). p_keys: K' (N, n, C, E).
        p_xt: the transpose of X (N, n, E, E). p_x: X. p_solved: (I + L)^-1, (N, n, C, C).
            p_copy: w (N, n, C, E). All are written, and are float32 except K'. p_x, p_solved and
            p_copy are None in the forward pass.
        scale: of the logits.
    """
    i_c, n = tl.program_id(0), tl.num_programs(0)
    i_n = tl.program_id(1).to(tl.int64)
    i_b, i_h, i_at = i_n // H, i_n % H, i_n * n + i_c
    o_c, o_e = tl.arange(0, C), tl.arange(0, E)
    o_t = i_c * C + o_c - (n * C - T)
    m_t, m_below = (o_t >= 0)[:, None], o_c[:, None] > o_c[None, :]
    p_state += i_b * state_strides[0] + i_h * state_strides[1] + o_t * state_strides[2]
    p_w = p_state[:, None] + o_e[None, :]
    b_w = tl.load(p_w, mask=m_t, other=0.0)
    b_beta = tl.load(p_state + E, mask=o_t >= 0, other=0.0)
    b_l = product(b_w, b_w, PRECISION, BT=True) * b_beta[:, None]
    b_solved = inverse(tl.where(m_below, b_l, 0.0), o_c, PRECISION)
    if p_solved is not None:
        tl.store(part(p_solved, i_at, o_c, o_c, C, C), b_solved)
        tl.store(part(p_copy, i_at, o_c, o_e, C, E), b_w)
    tl.debug_barrier()  # after each the compiler loads w again, which spares registers
    b_w = tl.load(p_w, mask=m_t, other=0.0)
    b_u = b_solved * b_beta[None, :]
    b_passed = product(b_u, b_w, PRECISION)
    b_x = nearest(-product(b_w, b_passed, PRECISION, AT=True), PRECISION)
    if p_x is not None:
        tl.store(part(p_x, i_at, o_e, o_e, E, E), b_x)
    tl.store(part(p_xt, i_at, o_e, o_e, E, E), tl.trans(b_x))
    tl.debug_barrier()
    b_w = tl.load(p_w, mask=m_t, other=0.0)
    p_k = tile(p_k, k_strides, i_b, i_h // G, o_t, o_e)
    b_k = tl.load(p_k, mask=m_t, other=0.0).to(tl.float32)
    b_kept = tl.where(m_below, product(b_w, b_k, PRECISION, BT=True), 0.0)
    b_reflected = product(b_u, b_kept, PRECISION)
    b_keys = b_k - product(b_reflected, b_w, PRECISION, AT=True)
    tl.store(part(p_keys, i_at, o_c, o_e, C, E), b_keys.to(p_keys.dtype.element_ty))
    tl.debug_barrier()
    b_w = tl.load(p_w, mask=m_t, other=0.0)
    p_q = tile(p_q, q_strides, i_b, i_h, o_t, o_e)
    b_q = tl.load(p_q, mask=m_t, other=0.0).to(tl.float32) * scale
    b_met = product(b_q, b_w, PRECISION, BT=True)
    b_met = -tl.where(o_c[:, None] >= o_c[None, :], b_met, 0.0)
    tl.store(part(p_own, i_at, o_c, o_c, C, C), product(b_met, b_reflected, PRECISION))
    b_rest = b_q + product(b_met, b_passed, PRECISION)
    tl.store(part(p_rest, i_at, o_c, o_e, C, E), b_rest)


@triton.jit
def finish(
    p_q, p_k, p_state, p_solved, p_copy, p_drest, p_down, p_dkeys, p_dx, p_dq, p_dk, p_dstate, T,
    H, G, scale, q_strides, k_strides, state_strides, dq_strides, dk_strides, E: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of q, k, w and beta of one chunk.

    Args:
        p_drest, p_down, p_dkeys, p_dx: from `by_queries` and `by_keys`.
        p_dq, p_dk: (B, H, T, E), written; p_dk for each head even if several share their keys.
        p_dstate: (B, H, T, E + 1) float32, contiguous, written.
        Other arguments are those of `prepare`.
    """
    i_c, n = tl.program_id(0), tl.num_programs(0)
    i_n = tl.program_id(1).to(tl.int64)
    i_b, i_h, i_at = i_n // H, i_n % H, i_n * n + i_c
    o_c, o_e = tl.arange(0, C), tl.arange(0, E)
    o_t = i_c * C + o_c - (n * C - T)
    m_t = (o_t >= 0)[:, None]
    m_below, m_upto = o_c[:, None] > o_c[None, :], o_c[:, None] >= o_c[None, :]
    p_q = tile(p_q, q_strides, i_b, i_h, o_t, o_e)
    p_k = tile(p_k, k_strides, i_b, i_h // G, o_t, o_e)
    p_state += i_b * state_strides[0] + i_h * state_strides[1] + o_t * state_strides[2]
    p_solved, p_down = part(p_solved, i_at, o_c, o_c, C, C), part(p_down, i_at, o_c, o_c, C, C)
    p_w, p_drest = part(p_copy, i_at, o_c, o_e, C, E), part(p_drest, i_at, o_c, o_e, C, E)
    b_beta = tl.load(p_state + E, mask=o_t >= 0, other=0.0)
    # After each barrier inputs are loaded or computed again, which spares registers.
    b_w = tl.load(p_w)
    b_k = tl.load(p_k, mask=m_t, other=0.0).to(tl.float32)
    b_u = tl.load(p_solved) * b_beta[None, :]
    b_passed = product(b_u, b_w, PRECISION)
    b_kept = tl.where(m_below, product(b_w, b_k, PRECISION, BT=True), 0.0)
    b_reflected = product(b_u, b_kept, PRECISION)
    # Q~ = Q - M passed, own = Q K^T - M reflected, with M = lower(Q W^T)
    tl.debug_barrier()
    b_drest, b_down = tl.load(p_drest), tl.load(p_down)
    b_dmet = product(b_drest, b_passed, PRECISION, BT=True)
    b_dmet += product(b_down, b_reflected, PRECISION, BT=True)
    b_dmet = -tl.where(m_upto, b_dmet, 0.0)
    b_w = tl.load(p_w)
    b_k = tl.load(p_k, mask=m_t, other=0.0).to(tl.float32)
    b_dq = b_drest + product(b_dmet, b_w, PRECISION) + product(b_down, b_k, PRECISION)
    p_dq = tile(p_dq, dq_strides, i_b, i_h, o_t, o_e)
    tl.store(p_dq, (b_dq * scale).to(p_dq.dtype.element_ty), mask=m_t)
    tl.debug_barrier()
    b_drest, b_down = tl.load(p_drest), tl.load(p_down)
    b_w = tl.load(p_w)
    b_q = tl.load(p_q, mask=m_t, other=0.0).to(tl.float32) * scale
    b_dw = product(b_dmet, b_q, PRECISION, AT=True)
    b_dk = product(b_down, b_q, PRECISION, AT=True)
    b_met = tl.where(m_upto, product(b_q, b_w, PRECISION, BT=True), 0.0)
    b_dpassed = product(b_met, b_drest, PRECISION, AT=True)
    b_dreflected = product(b_met, b_down, PRECISION, AT=True)
    # X = -W^T passed, with passed = U W
    tl.debug_barrier()
    b_w = tl.load(p_w)
    b_passed = product(tl.load(p_solved) * b_beta[None, :], b_w, PRECISION)
    b_dx = tl.load(part(p_dx, i_at, o_e, o_e, E, E))
    b_dpassed = -b_dpassed - product(b_w, b_dx, PRECISION)
    b_dw -= product(b_passed, b_dx, PRECISION, BT=True)
    # K' = K - reflected^T W, with reflected = U kept and kept = below(W K^T)
    tl.debug_barrier()
    b_w = tl.load(p_w)
    b_k = tl.load(p_k, mask=m_t, other=0.0).to(tl.float32)
    b_kept = tl.where(m_below, product(b_w, b_k, PRECISION, BT=True), 0.0)
    b_reflected = product(tl.load(p_solved) * b_beta[None, :], b_kept, PRECISION)
    b_dkeys = tl.load(part(p_dkeys, i_at, o_c, o_e, C, E))
    b_dreflected = -b_dreflected - product(b_w, b_dkeys, PRECISION, BT=True)
    b_dw -= product(b_reflected, b_dkeys, PRECISION)
    b_dk += b_dkeys
    tl.debug_barrier()
    b_w = tl.load(p_w)
    b_k = tl.load(p_k, mask=m_t, other=0.0).to(tl.float32)
    b_u = tl.load(p_solved) * b_beta[None, :]
    b_dw += product(b_u, b_dpassed, PRECISION, AT=True)
    b_dkept = tl.where(m_below, product(b_u, b_dreflected, PRECISION, AT=True), 0.0)
    b_dw += product(b_dkept, b_k, PRECISION)
    b_dk += product(b_dkept, b_w, PRECISION, AT=True)
    p_dk = tile(p_dk, dk_strides, i_b, i_h, o_t, o_e)
    tl.store(p_dk, b_dk.to(p_dk.dtype.element_ty), mask=m_t)
    # U = (I + L)^-1 diag(beta), with L = diag(beta) below(W W^T)
    tl.debug_barrier()
    b_w = tl.load(p_w)
    b_solved = tl.load(p_solved)
    b_du = product(b_dpassed, b_w, PRECISION, BT=True)
    b_du += product(b_dreflected, b_kept, PRECISION, BT=True)
    b_dbeta = tl.sum(b_du * b_solved, 0)
    b_dl = product(b_solved, b_du * b_beta[None, :], PRECISION, AT=True)
    b_dl = -tl.where(m_below, product(b_dl, b_solved, PRECISION, BT=True), 0.0)
    b_dbeta += tl.sum(b_dl * product(b_w, b_w, PRECISION, BT=True), 1)
    b_dl *= b_beta[:, None]
    b_dw += product(b_dl, b_w, PRECISION) + product(b_dl, b_w, PRECISION, AT=True)
    p_dstate += (i_n * T + o_t) * (E + 1)
    tl.store(p_dstate[:, None] + o_e[None, :], b_dw, mask=m_t)
    tl.store(p_dstate + E, b_dbeta, mask=o_t >= 0)
