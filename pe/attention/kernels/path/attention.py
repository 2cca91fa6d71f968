"""PaTH's attention across chunks, forward and backward.

`pe.attention.kernels.path.op` explains the method and the names.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import tile
from pe.attention.kernels.path.chunk import C, nearest, part, turned
from pe.encodings.core.forms import LOG2E

BASE_2: tl.constexpr = tl.constexpr(LOG2E)


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
