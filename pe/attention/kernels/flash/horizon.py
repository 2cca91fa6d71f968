"""Skip blocks of keys that are so far away that under a falling bias their weights underflow.

Let s be the logits in base 2 without bias. A query's own key has bias 0. The weight of key j,
relative to that of the query's own key, is

    p_ij / p_ii = 2^(s_ij - s_ii + b_ij) <= 2^(2 S + b_ij),   S = scale log2(e) max |q| max |k|

because |q . k| <= |q| |k|. If b_ij <= -(2 S + 24 + log2 T), the weights of all T keys together are
less than 2^-24 p_ii, which a sum in float32 loses anyway. 2 S + 24 + log2 T is called the horizon.
Blocks that lie beyond it are skipped, forward and backward, and the result is the same. With
ALiBi's slopes this is most of a long sequence in most heads. With FoX it depends on the gates, as
in adaptive computation pruning by its authors (Lin et al. 2025, arXiv:2504.06949).

For KEYS the bias of a block is at most the largest x up to its last key, minus the smallest x from
its first query on. Both rise with the position (`pe.encodings.core.forms.by_key`), so the skipped
blocks are contiguous, and counting them gives their end. For POWER the end is a distance. A
logarithm falls so slowly that skipping would not pay.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.attention.kernels.flash.kinds import CHUNK, FARTHEST, KEYS
from pe.attention.kernels.layout import strides_of
from pe.encodings.core import forms

FALLING = (forms.KEYS, forms.POWER)
LEAST = 1024
"""The number of tokens from which on skipping pays; it costs reading all queries and keys once."""


def skips_underflowed(kind: int, length: int, least: int | None = None) -> bool:
    """Return whether keys beyond the horizon are skipped in a sequence of ``length`` tokens.

    ``least`` replaces `LEAST` unless it is None.
    """
    return kind in FALLING and length >= (LEAST if least is None else least)


def horizon(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """Return the horizon in bits, (B, H) float32, of q (B, H, T, E) and k (B, K, T, E)."""
    bits = q.new_empty(q.shape[:2], dtype=torch.float32)
    rest = 24 + math.log2(q.shape[2])
    groups = q.shape[1] // k.shape[1]
    longest = [_squares(x) for x in (q, k)]
    farthest[tuple(bits.shape)](
        *longest, bits, longest[0].shape[-1], groups, 2 * scale * forms.LOG2E, rest
    )
    return bits


def _squares(x: Tensor) -> Tensor:
    """Return the largest |x|^2 of each chunk of CHUNK tokens, (B, H, chunks) float32."""
    batch, heads, length, width = x.shape
    out = x.new_empty(batch, heads, triton.cdiv(length, forms.CHUNK), dtype=torch.float32)
    grid = heads, out.shape[-1], batch  # heads first, because those of a token are contiguous
    squares[grid](x, out, length, strides_of(x), E=width)
    return out


@triton.jit
def squares(p_x, p_out, T, x_strides, E: tl.constexpr):
    """Compute the largest |x|^2 in a chunk of a head.

    Args:
        p_x: (B, H, T, E). p_out: (B, H, chunks) float32, written.
    """
    i_h, i_chunk, i_b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    o_t = i_chunk * CHUNK + tl.arange(0, CHUNK)
    o_e = tl.arange(0, E)
    p_tile = (
        p_x + i_b * x_strides[0] + i_h * x_strides[1] + o_t.to(tl.int64)[:, None] * x_strides[2]
    )
    p_tile += o_e[None, :]
    b_x = tl.load(p_tile, mask=o_t[:, None] < T, other=0.0).to(tl.float32)
    o_out = (i_b * tl.num_programs(0) + i_h) * tl.num_programs(1) + i_chunk
    tl.store(p_out + o_out, tl.max(tl.sum(b_x * b_x, 1), 0))


@triton.jit
def farthest(p_sq, p_sk, p_out, N, G, factor, b_rest):
    """Compute the horizon of one head: factor max |q| max |k| + rest.

    Args:
        p_sq: (B, H, N) and p_sk: (B, H / G, N) float32, which `squares` wrote for N chunks.
        p_out: (B, H) float32, written.
    """
    i_b, i_h, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    p_sq += (i_b * heads + i_h) * N
    p_sk += (i_b * (heads // G) + i_h // G) * N
    most_q = tl.zeros((CHUNK,), tl.float32)
    most_k = tl.zeros((CHUNK,), tl.float32)
    for n0 in tl.range(0, N, CHUNK):
        o_n = n0 + tl.arange(0, CHUNK)
        most_q = tl.maximum(most_q, tl.load(p_sq + o_n, mask=o_n < N, other=0.0))
        most_k = tl.maximum(most_k, tl.load(p_sk + o_n, mask=o_n < N, other=0.0))
    product = tl.max(most_q, 0) * tl.max(most_k, 0)
    tl.store(p_out + i_b * heads + i_h, factor * tl.sqrt(product) + b_rest)


@triton.jit
def reach(p_x, w):
    """Return the distance from which on -x0 (i - j)^x1 is below -w; p_x points to (x0, x1)."""
    distance = tl.math.exp2(tl.math.log2(w / tl.load(p_x)) / tl.load(p_x + 1))
    return tl.math.ceil(tl.minimum(distance, FARTHEST)).to(tl.int32)


@triton.jit
def first_key(p_x, p_y, w, i0, T, KIND: tl.constexpr):
    """Return the first key that a block of queries from ``i0`` on visits; a chunk begins there.

    Args:
        p_x, p_y: of the bias, of this head. w: the horizon.
    """
    if KIND == KEYS:
        chunks = tl.cdiv(T, CHUNK) + 2
        before = i0 // CHUNK
        bar = tl.load(p_y + 2 * chunks + before) - w
        skipped = before * 0
        for n0 in tl.range(0, before, CHUNK):
            o_n = n0 + tl.arange(0, CHUNK)
            highest = tl.load(p_y + chunks + o_n, mask=o_n < before, other=float("inf"))
            skipped += tl.sum((highest <= bar).to(tl.int32), 0)
        return skipped * CHUNK
    return tl.maximum(i0 - reach(p_x, w), 0) // CHUNK * CHUNK


@triton.jit
def last_query(p_x, p_y, w, j0, end, T, KIND: tl.constexpr):
    """Return the end of the queries that visit the keys from ``j0`` to ``end``.

    Args:
        p_x, p_y: of the bias, of this head. w: the horizon.
    """
    if KIND == KEYS:
        chunks = tl.cdiv(T, CHUNK) + 2
        bar = tl.load(p_y + chunks + j0 // CHUNK) + w
        seen = j0 // CHUNK  # a chunk sees itself
        for m0 in tl.range(j0 // CHUNK, chunks - 2, CHUNK):
            o_m = m0 + tl.arange(0, CHUNK)
            lowest = tl.load(p_y + 2 * chunks + o_m, mask=o_m < chunks - 2, other=float("inf"))
            seen += tl.sum((lowest < bar).to(tl.int32), 0)
        return tl.minimum(seen * CHUNK, T)
    return tl.minimum(end + reach(p_x, w), T)
