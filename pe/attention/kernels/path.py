"""PaTH's attention (`pe.encodings.path`, arXiv:2505.16381), forward and backward.

`pe.encodings.core.reflections` says how chunks of C tokens turn PaTH into products of matrices. For
a query q = Q~ after the reflections in its own chunk, and the chunks j before it, last one first,

    logits = q K'_j^T,    q <- q + q X_j,    X_j = A_j - I

`prepare` computes Q~, K', X and the bias in the own chunk, one program per chunk. `forward` is
flash attention with the second product. In the backward pass `prepare` runs again. `by_queries`
computes the queries q_ij that arrive at chunk j, and from the first chunk on their gradients

    g_ij = dS_ij K'_j + h_ij (I + X_j)^T,    h_ij = g_i(j-1)

It writes q and h in 16 bits for some heads at a time, D T^2 / 2C numbers per head each. `by_keys`
reads them and adds up dV, dK' = sum_i dS_ij^T q_ij and dX_j = sum_i q_ij^T h_ij. `finish` leads
these gradients back through `prepare` to q, k, w and beta. There are no atomic operations, so the
results are the same in each run.

If queries have 16 bits, q K'^T and the products with P, V and their gradients take factors of 16
bits. q and g are carried on in float32, and their products with X take TF32. Products of a single
chunk take three products of bfloat16 (`product`).

The first chunk begins with zeros if C does not divide T. Tensors that only kernels read count these
tokens as well. They are (N, n, C or D, ...), N heads of all sequences and n chunks. Names: ``p_``
pointer, ``b_`` block, ``o_`` offset, ``m_`` mask, ``i_`` program index; everything else is a value.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import pad
from triton import cdiv

from pe.attention.kernels import self_check as checks
from pe.attention.kernels.flash.elementary import tile
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.encodings.core.forms import LOG2E
from pe.encodings.core.reflections import CHUNK, unmasked, unmasked_gradient

C: tl.constexpr = tl.constexpr(CHUNK)
BASE_2: tl.constexpr = tl.constexpr(LOG2E)
SOLVED: tl.constexpr = tl.constexpr(16)
"""The largest triangular matrix that is inverted by substitution; a quarter of C."""
HELD = 2**29
"""The most numbers of 16 bits for `by_keys` that are held at once, unless one head has more."""
LENGTH = 300
"""The number of tokens of the self-check."""
NARROW: dict[str, dict[str, int]] = {
    "prepare": {"num_warps": 4, "num_stages": 1},
    "forward": {"num_warps": 4, "num_stages": 2},
    "by_queries": {"num_warps": 4, "num_stages": 2},
    "by_keys": {"num_warps": 4, "num_stages": 3},
    "finish": {"num_warps": 4, "num_stages": 1},
}
"""Options of the compiler for heads of at most 64 channels. Those of `forward`, `by_queries` and
`by_keys` were the fastest of a few on an H200."""
WIDE = NARROW | {name: {"num_warps": 8, "num_stages": 1} for name in NARROW}


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
def own_logits(b_q, b_k, p_own, i_at, o_c, o_t, scale):
    """Return the logits in base 2 of the keys in the queries' own chunk, (C, C)."""
    b_own = tl.load(part(p_own, i_at, o_c, o_c, C, C))
    b_s = (tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale + b_own) * BASE_2
    # Zeros before the first token are seen by one another, so that no sum of weights is 0.
    m_seen = (o_c[:, None] >= o_c[None, :]) & ((o_t[None, :] >= 0) | (o_t[:, None] < 0))
    return tl.where(m_seen, b_s, float("-inf"))


@triton.jit
def forward(
    p_q, p_k, p_v, p_o, p_lse, p_rest, p_own, p_keys, p_xt, T, H, G, scale, q_strides, k_strides,
    v_strides, out_strides, E: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the output of one chunk of queries of one head.

    Args:
        p_v: (B, H / G, T, D). p_o: (B, H, T, D), written.
        p_lse: (N, n, C) float32, log2 of the sum of 2^s over the logits s in base 2, written.
        Other arguments are those of `prepare`, which wrote p_rest, p_own, p_keys and p_xt.
    """
    n = tl.num_programs(0)
    i_c = n - 1 - tl.program_id(0)  # chunks with the most keys start first
    i_n = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_n // H, i_n % H
    o_c, o_e, o_d = tl.arange(0, C), tl.arange(0, E), tl.arange(0, D)
    ahead = n * C - T
    o_t = i_c * C + o_c - ahead
    m_t = (o_t >= 0)[:, None]
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_t, o_e), mask=m_t, other=0.0)
    b_k = tl.load(tile(p_k, k_strides, i_b, i_h // G, o_t, o_e), mask=m_t, other=0.0)
    b_v = tl.load(tile(p_v, v_strides, i_b, i_h // G, o_t, o_d), mask=m_t, other=0.0)
    b_s = own_logits(b_q, b_k, p_own, i_n * n + i_c, o_c, o_t, scale)
    b_top = tl.max(b_s, 1)
    b_p = tl.math.exp2(b_s - b_top[:, None])
    b_sum = tl.sum(b_p, 1)
    b_acc = tl.dot(b_p.to(b_v.dtype), b_v, input_precision="ieee")
    b_q32 = tl.load(part(p_rest, i_n * n + i_c, o_c, o_e, C, E))
    for i in tl.range(0, i_c):
        i_j = i_c - 1 - i
        o_j = i_j * C + o_c - ahead
        b_keys = tl.load(turned(p_keys, i_n * n + i_j, o_c, o_e, C, E))
        b_x = tl.load(turned(p_xt, i_n * n + i_j, o_e, o_e, E, E))
        b_v = tl.load(
            tile(p_v, v_strides, i_b, i_h // G, o_j, o_d), mask=(o_j >= 0)[:, None], other=0.0
        )
        b_s = tl.dot(b_q32.to(b_keys.dtype), b_keys, input_precision="ieee") * BASE_2
        b_s = tl.where(o_j[None, :] >= 0, b_s, float("-inf"))
        b_q32 = tl.dot(nearest(b_q32, PRECISION), b_x, b_q32, input_precision=PRECISION)
        b_higher = tl.maximum(b_top, tl.max(b_s, 1))
        b_p = tl.math.exp2(b_s - b_higher[:, None])
        b_shrink = tl.math.exp2(b_top - b_higher)
        b_sum = b_sum * b_shrink + tl.sum(b_p, 1)
        b_acc = b_acc * b_shrink[:, None]
        b_acc = tl.dot(b_p.to(b_v.dtype), b_v, b_acc, input_precision="ieee")
        b_top = b_higher
    b_out = (b_acc / b_sum[:, None]).to(p_o.dtype.element_ty)
    tl.store(tile(p_o, out_strides, i_b, i_h, o_t, o_d), b_out, mask=m_t)
    tl.store(p_lse + (i_n * n + i_c) * C + o_c, b_top + tl.math.log2(b_sum))


@triton.jit(do_not_specialize=["first"])
def by_queries(
    p_v, p_do, p_lse, p_delta, p_rest, p_keys, p_x, p_xt, p_arrived, p_onward, p_drest, first, T, H,
    G, v_strides, do_strides, E: tl.constexpr, D: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of Q~ of one chunk of one head, and what `by_keys` needs.

    Args:
        p_do: (B, H, T, D), the gradient of the output. p_lse: from `forward`.
        p_delta: (N, n, C) float32, the sums of o do.
        p_arrived, p_onward: (heads, n (n - 1) / 2, C, E), written from head ``first`` on: q_ij and
            h_ij for all i > j.
        p_drest: (N, n, C, E) float32, written.
        Other arguments are those of `forward`.
    """
    n = tl.num_programs(0)
    i_c = n - 1 - tl.program_id(0)
    i_local = tl.program_id(1).to(tl.int64)
    i_n = first + i_local
    i_b, i_h = i_n // H, i_n % H
    i_pairs = i_local * (n * (n - 1) // 2) + i_c * (i_c - 1) // 2
    i_at = i_n * n + i_c
    o_c, o_e, o_d = tl.arange(0, C), tl.arange(0, E), tl.arange(0, D)
    ahead = n * C - T
    o_t = i_c * C + o_c - ahead
    b_q32 = tl.load(part(p_rest, i_at, o_c, o_e, C, E))
    for i in tl.range(0, i_c):
        i_j = i_c - 1 - i
        b_x = tl.load(turned(p_xt, i_n * n + i_j, o_e, o_e, E, E))
        b_q = b_q32.to(p_arrived.dtype.element_ty)
        tl.store(part(p_arrived, i_pairs + i_j, o_c, o_e, C, E), b_q)
        b_q32 = tl.dot(nearest(b_q32, PRECISION), b_x, b_q32, input_precision=PRECISION)
    tl.debug_barrier()  # another thread may have written what is read now
    m_t = (o_t >= 0)[:, None]
    b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_t, o_d), mask=m_t, other=0.0)
    b_lse = tl.load(p_lse + i_at * C + o_c)
    b_delta = tl.load(p_delta + i_at * C + o_c)
    b_g = tl.zeros((C, E), tl.float32)
    for i_j in tl.range(0, i_c):
        o_j = i_j * C + o_c - ahead
        b_q = tl.load(part(p_arrived, i_pairs + i_j, o_c, o_e, C, E))
        b_keys = tl.load(part(p_keys, i_n * n + i_j, o_c, o_e, C, E))
        b_x = tl.load(turned(p_x, i_n * n + i_j, o_e, o_e, E, E))
        b_v = tl.load(
            tile(p_v, v_strides, i_b, i_h // G, o_j, o_d), mask=(o_j >= 0)[:, None], other=0.0
        )
        tl.store(part(p_onward, i_pairs + i_j, o_c, o_e, C, E), b_g.to(b_q.dtype))
        b_s = tl.dot(b_q, tl.trans(b_keys), input_precision="ieee") * BASE_2
        b_p = tl.where(o_j[None, :] >= 0, tl.math.exp2(b_s - b_lse[:, None]), 0.0)
        b_ds = b_p * (tl.dot(b_do, tl.trans(b_v), input_precision="ieee") - b_delta[:, None])
        b_g = tl.dot(nearest(b_g, PRECISION), b_x, b_g, input_precision=PRECISION)
        b_g = tl.dot(b_ds.to(b_keys.dtype), b_keys, b_g, input_precision="ieee")
    tl.store(part(p_drest, i_at, o_c, o_e, C, E), b_g)


@triton.jit(do_not_specialize=["first"])
def by_keys(
    p_q, p_k, p_v, p_do, p_dv, p_lse, p_delta, p_own, p_keys, p_arrived, p_onward, p_down, p_dkeys,
    p_dx, first, T, H, G, scale, q_strides, k_strides, v_strides, do_strides, dv_strides,
    E: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of V, of K' and X, and of the logits in the own chunk, of one chunk.

    Args:
        p_dv: (B, H, T, D), for each head even if several share their values, written.
        p_down: (N, n, C, C), p_dkeys: (N, n, C, E) and p_dx: (N, n, E, E), float32, written.
        Other arguments are those of `prepare`, `forward` and `by_queries`.
    """
    i_c, n = tl.program_id(0), tl.num_programs(0)
    i_local = tl.program_id(1).to(tl.int64)
    i_n = first + i_local
    i_b, i_h = i_n // H, i_n % H
    i_at = i_n * n + i_c
    o_c, o_e, o_d = tl.arange(0, C), tl.arange(0, E), tl.arange(0, D)
    ahead = n * C - T
    o_t = i_c * C + o_c - ahead
    m_t = (o_t >= 0)[:, None]
    b_q = tl.load(tile(p_q, q_strides, i_b, i_h, o_t, o_e), mask=m_t, other=0.0)
    b_k = tl.load(tile(p_k, k_strides, i_b, i_h // G, o_t, o_e), mask=m_t, other=0.0)
    b_v = tl.load(tile(p_v, v_strides, i_b, i_h // G, o_t, o_d), mask=m_t, other=0.0)
    b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_t, o_d), mask=m_t, other=0.0)
    b_lse = tl.load(p_lse + i_at * C + o_c)
    b_delta = tl.load(p_delta + i_at * C + o_c)
    b_s = own_logits(b_q, b_k, p_own, i_at, o_c, o_t, scale)
    b_p = tl.math.exp2(b_s - b_lse[:, None])
    b_dp = tl.dot(b_do, tl.trans(b_v), input_precision="ieee")
    tl.store(part(p_down, i_at, o_c, o_c, C, C), b_p * (b_dp - b_delta[:, None]))
    b_dv = tl.dot(tl.trans(b_p.to(b_do.dtype)), b_do, input_precision="ieee")
    b_keys = tl.load(part(p_keys, i_at, o_c, o_e, C, E))
    b_dkeys = tl.zeros((C, E), tl.float32)
    b_dx = tl.zeros((E, E), tl.float32)
    for i_i in tl.range(i_c + 1, n):
        i_pair = i_local * (n * (n - 1) // 2) + i_i * (i_i - 1) // 2 + i_c
        o_i = i_i * C + o_c - ahead
        b_q = tl.load(part(p_arrived, i_pair, o_c, o_e, C, E))
        b_onward = tl.load(part(p_onward, i_pair, o_c, o_e, C, E))
        b_do = tl.load(tile(p_do, do_strides, i_b, i_h, o_i, o_d))
        b_lse = tl.load(p_lse + (i_n * n + i_i) * C + o_c)
        b_delta = tl.load(p_delta + (i_n * n + i_i) * C + o_c)
        b_s = tl.dot(b_keys, tl.trans(b_q), input_precision="ieee") * BASE_2
        b_p = tl.where(o_t[:, None] >= 0, tl.math.exp2(b_s - b_lse[None, :]), 0.0)
        b_dv = tl.dot(b_p.to(b_do.dtype), b_do, b_dv, input_precision="ieee")
        b_dp = tl.dot(b_v, tl.trans(b_do), input_precision="ieee")
        b_ds = (b_p * (b_dp - b_delta[None, :])).to(b_q.dtype)
        b_dkeys = tl.dot(b_ds, b_q, b_dkeys, input_precision="ieee")
        b_dx = tl.dot(tl.trans(b_q), b_onward, b_dx, input_precision="ieee")
    b_dv = b_dv.to(p_dv.dtype.element_ty)
    tl.store(tile(p_dv, dv_strides, i_b, i_h, o_t, o_d), b_dv, mask=m_t)
    tl.store(part(p_dkeys, i_at, o_c, o_e, C, E), b_dkeys)
    tl.store(part(p_dx, i_at, o_e, o_e, E, E), b_dx)


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


def _options(q: Tensor, v: Tensor) -> dict[str, dict[str, int]]:
    """Return the options of the compiler for heads as wide as these."""
    return NARROW if max(q.shape[-1], v.shape[-1]) <= 64 else WIDE


def _precision(q: Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def prepared(
    q: Tensor, k: Tensor, state: Tensor, options: dict[str, int], for_gradient: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return p_rest to p_xt of `prepare`, and p_x to p_copy, which only gradients need."""
    batch, heads, length, width = q.shape
    n, every = cdiv(length, CHUNK), batch * heads

    def new(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return q.new_empty((every, n, *sizes), dtype=dtype)

    made = [new(CHUNK, width), new(CHUNK, CHUNK), new(CHUNK, width, dtype=q.dtype)]
    made.append(new(width, width))
    sizes = (width, width), (CHUNK, CHUNK), (CHUNK, width)
    more = [new(*size) for size in sizes] if for_gradient else []
    places = (*made, *more, *[None] * (len(sizes) - len(more)))
    prepare[(n, every)](
        q, k, state, *places, length, heads, heads // k.shape[1], width**-0.5,
        *map(strides_of, (q, k, state)), E=width, PRECISION=_precision(q), **options,
    )  # fmt: skip
    return made, more


def attend_by_kernel(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `attend` without the self-check."""
    q, k, v, state = (contiguous_last_dim(x) for x in (q, k, v, state))
    batch, heads, length, width = q.shape
    n = cdiv(length, CHUNK)
    out = tokens_first(q, v.shape[-1])
    lse = q.new_empty((batch * heads, n, CHUNK), dtype=torch.float32)
    options = _options(q, v)
    made, _ = prepared(q, k, state, options["prepare"], for_gradient=False)
    forward[(n, batch * heads)](
        q, k, v, out, lse, *made, length, heads, heads // k.shape[1], width**-0.5,
        *map(strides_of, (q, k, v, out)), E=width, D=v.shape[-1], PRECISION=_precision(q),
        **options["forward"],
    )  # fmt: skip
    return out, lse


def gradients(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of q, k, v and state.

    Args:
        gradient: (B, H, T, D), of the output. out, lse: what `attend` returned.
    """
    q, k, v, state, gradient = (contiguous_last_dim(x) for x in (q, k, v, state, gradient))
    gradient = gradient.to(q.dtype)
    batch, heads, length, width = q.shape
    every, n, groups = batch * heads, lse.shape[1], heads // k.shape[1]
    delta = pad((gradient.float() * out).sum(-1), (n * CHUNK - length, 0)).contiguous()
    options = _options(q, v)
    made, more = prepared(q, k, state, options["prepare"], for_gradient=True)
    (rest, own, keys, xt), (x, solved, copy) = made, more
    written = rest, own, keys, x
    drest, down, dkeys, dx = (torch.empty_like(t, dtype=torch.float32) for t in written)
    dq, dk, dv = (tokens_first(q, size) for size in (width, width, v.shape[-1]))
    if groups > 1:
        dk, dv = (torch.empty_like(t, dtype=torch.float32) for t in (dk, dv))
    dstate = state.new_empty(state.shape)
    pairs = n * (n - 1) // 2
    step = min(every, max(1, HELD // max(1, 2 * pairs * CHUNK * width)))
    arrived, onward = (q.new_empty((step, pairs, CHUNK, width)) for _ in range(2))
    sizes = {"E": width, "D": v.shape[-1]}
    for first in range(0, every, step):
        grid = n, min(step, every - first)
        by_queries[grid](
            v, gradient, lse, delta, rest, keys, x, xt, arrived, onward, drest, first, length,
            heads, groups, strides_of(v), strides_of(gradient), **sizes, PRECISION=_precision(q),
            **options["by_queries"],
        )  # fmt: skip
        by_keys[grid](
            q, k, v, gradient, dv, lse, delta, own, keys, arrived, onward, down, dkeys, dx, first,
            length, heads, groups, width**-0.5, *map(strides_of, (q, k, v, gradient, dv)), **sizes,
            **options["by_keys"],
        )  # fmt: skip
    finish[(n, every)](
        q, k, state, solved, copy, drest, down, dkeys, dx, dq, dk, dstate, length, heads, groups,
        width**-0.5, *map(strides_of, (q, k, state, dq, dk)), E=width, PRECISION=_precision(q),
        **options["finish"],
    )  # fmt: skip
    if groups > 1:
        sums = (x.unflatten(1, (-1, groups)).sum(2) for x in (dk, dv))
        dk, dv = (tokens_first(k, x.shape[-1]).copy_(x) for x in sums)
    return dq, dk, dv, dstate


@torch.library.custom_op("pe::path", mutates_args=())
def attend(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute causal attention.

    Args:
        q: (B, H, T, E). k: (B, K, T, E). v: (B, K, T, D). They have 16 bits or are float32.
        state: (B, H, T, E + 1) float32, which is w and beta.

    Returns:
        o (B, H, T, D), and ``lse`` of the kernel `forward`.

    Raises:
        RuntimeError: the self-check of the kernels fails on this machine.
    """
    if q.is_cuda:
        self_check(q.shape[-1], v.shape[-1], q.dtype, q.device)
    return attend_by_kernel(q, k, v, state)


@attend.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    shape = q.shape[0] * q.shape[1], (q.shape[2] + CHUNK - 1) // CHUNK, CHUNK
    return tokens_first(q, v.shape[-1]), q.new_empty(shape, dtype=torch.float32)


attend_backward = torch.library.custom_op("pe::path_backward", gradients, mutates_args=())


@attend_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, state: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dq, dk, dv = (tokens_first(x, x.shape[-1]) for x in (q, k, v))
    return dq, dk, dv, state.new_empty(state.shape)


def _save(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor, ...]:
    slopes: tuple[Tensor, ...] = attend_backward(gradient, *ctx.saved_tensors)
    return slopes


attend.register_autograd(_backward, setup_context=_save)


@functools.cache
def self_check(width: int, value_width: int, dtype: torch.dtype, device: torch.device) -> None:
    """Compare the kernels with the definition, once for each combination of arguments.

    Raises:
        RuntimeError: the kernels fail or differ. The message says how, and what to use instead.
    """
    random = checks.random_on(device)
    q, k, v, gradient = checks.inputs(random, 2, 2, LENGTH, width, value_width, dtype)
    w, beta = random(2, 2, LENGTH, width), 2 * random(2, 2, LENGTH, 1).sigmoid()
    state = torch.cat((w / w.norm(dim=-1, keepdim=True), beta), -1)

    def compute() -> tuple[Tensor, ...]:
        out, lse = attend_by_kernel(q, k, v, state)
        return out, *gradients(gradient, q, k, v, state, out, lse)

    checks.agree(compute, expected(q, k, v, state, gradient), dtype, ("w and beta",))


def expected(
    q: Tensor, k: Tensor, v: Tensor, state: Tensor, gradient: Tensor
) -> tuple[Tensor, ...]:
    """Return o, dq, dk, dv and the gradient of state in float64, without autograd."""
    q, k, v, state, gradient = (x.double() for x in (q, k, v, state, gradient))
    scale, groups = q.shape[-1] ** -0.5, q.shape[1] // k.shape[1]

    keys, values = (x.repeat_interleave(groups, 1) for x in (k, v))
    ahead = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)
    logits = scale * q @ keys.mT + unmasked(q, k, state)
    p = logits.masked_fill(ahead, -torch.inf).softmax(-1)
    out = p @ values
    ds = p * (gradient @ values.mT - (gradient * out).sum(-1, keepdim=True))
    dq, dk, dstate = unmasked_gradient(ds, q, k, state)
    more, dv = (x.unflatten(1, (-1, groups)).sum(2) for x in (scale * ds.mT @ q, p.mT @ gradient))
    return out, dq + scale * ds @ keys, dk + more, dv, dstate
