"""Keys so far away that a falling bias leaves nothing of them are not looked at.

Base 2, s the logits without bias, which is 0 for a query's own key. Beside that one key j weighs

    p_ij / p_ii = 2^(s_ij - s_ii + b_ij) <= 2^(2 S + b_ij),   S = scale log2(e) max |q| max |k|

since |q . k| <= |q| |k|. Where b_ij <= -(2 S + 24 + log2 T), all T keys together weigh less than
2^-24 of p_ii alone: less than a sum in float32 keeps. So blocks that lie wholly beyond are left
out, forward and backward, whatever the numbers are, and nothing is approximated. With ALiBi's
slopes that is most of a long text in most heads; with FoX it depends on the gates, as in its
authors' adaptive computation pruning (Lin et al. 2025, arXiv:2504.06949).

For KEYS a block's bias is bounded by the largest x up to its last key less the smallest x from its
first query on, and both rise with the place (`pe.encodings.core.forms.by_key`), so what is left
out is an unbroken piece, and counting finds its end. For POWER it is a distance. A logarithm falls
too slowly to be worth the look.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.encodings.core.forms import KEYS, LOG2E, POWER, STRETCH

FALLING = (KEYS, POWER)
LEAST = 1024
"""Tokens from which on it is worth looking: queries and keys are read once more for it."""
SIDE: tl.constexpr = tl.constexpr(STRETCH)
FAR: tl.constexpr = tl.constexpr(1e9)


def skips_underflowed(kind: int, length: int, least: int | None = None) -> bool:
    """Whether keys beyond the horizon are skipped: from ``least`` tokens on, or `LEAST`."""
    return kind in FALLING and length >= (LEAST if least is None else least)


def horizon(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """(B, H): how far below a query's own bias, in bits, nothing is left."""
    found = q.new_empty(q.shape[:2], dtype=torch.float32)
    rest = 24 + math.log2(q.shape[2])
    groups = q.shape[1] // k.shape[1]
    longest = [_squares(x) for x in (q, k)]
    farthest[tuple(found.shape)](
        *longest, found, longest[0].shape[-1], groups, 2 * scale * LOG2E, rest
    )
    return found


def _squares(x: Tensor) -> Tensor:
    """(B, H, stretches): the largest |x|^2 of each stretch, x read once and as it is."""
    batch, heads, length, width = x.shape
    found = x.new_empty(batch, heads, triton.cdiv(length, STRETCH), dtype=torch.float32)
    grid = heads, found.shape[-1], batch  # heads of a token lie side by side in memory
    squares[grid](x, found, length, x.stride(0), x.stride(1), x.stride(2), E=width)
    return found


@triton.jit
def squares(X, OUT, T, x_b, x_h, x_t, E: tl.constexpr):
    """The largest |x|^2 of a stretch of one head."""
    h, stretch, b = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    t = stretch * SIDE + tl.arange(0, SIDE)
    e = tl.arange(0, E)
    where = X + b * x_b + h * x_h + t.to(tl.int64)[:, None] * x_t + e[None, :]
    x = tl.load(where, mask=t[:, None] < T, other=0.0).to(tl.float32)
    place = (b * tl.num_programs(0) + h) * tl.num_programs(1) + stretch
    tl.store(OUT + place, tl.max(tl.sum(x * x, 1), 0))


@triton.jit
def farthest(SQ, SK, OUT, N, G, factor, rest):
    """The horizon of one head: factor max |q| max |k| + rest."""
    b, h, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    SQ += (b * heads + h) * N
    SK += (b * (heads // G) + h // G) * N
    most_q = tl.zeros((SIDE,), tl.float32)
    most_k = tl.zeros((SIDE,), tl.float32)
    for n0 in tl.range(0, N, SIDE):
        n = n0 + tl.arange(0, SIDE)
        most_q = tl.maximum(most_q, tl.load(SQ + n, mask=n < N, other=0.0))
        most_k = tl.maximum(most_k, tl.load(SK + n, mask=n < N, other=0.0))
    product = tl.max(most_q, 0) * tl.max(most_k, 0)
    tl.store(OUT + b * heads + h, factor * tl.sqrt(product) + rest)


@triton.jit
def reach(X, w):
    """From which distance on -first (i - j)^second is below -w; both are positive."""
    distance = tl.math.exp2(tl.math.log2(w / tl.load(X)) / tl.load(X + 1))
    return tl.math.ceil(tl.minimum(distance, FAR)).to(tl.int32)


@triton.jit
def first_key(X, Y, w, i0, T, KIND: tl.constexpr):
    """The first key that a block of queries from ``i0`` on looks at, the first of a stretch."""
    if KIND == 1:
        stretches = tl.cdiv(T, SIDE) + 2
        before = i0 // SIDE
        bar = tl.load(Y + 2 * stretches + before) - w
        found = before * 0
        for n0 in tl.range(0, before, SIDE):
            n = n0 + tl.arange(0, SIDE)
            highest = tl.load(Y + stretches + n, mask=n < before, other=float("inf"))
            found += tl.sum((highest <= bar).to(tl.int32), 0)
        return found * SIDE
    return tl.maximum(i0 - reach(X, w), 0) // SIDE * SIDE


@triton.jit
def last_query(X, Y, w, j0, end, T, KIND: tl.constexpr):
    """Up to where queries look at the keys from ``j0`` to ``end``."""
    if KIND == 1:
        stretches = tl.cdiv(T, SIDE) + 2
        bar = tl.load(Y + stretches + j0 // SIDE) + w
        found = j0 // SIDE  # a stretch sees itself
        for m0 in tl.range(j0 // SIDE, stretches - 2, SIDE):
            m = m0 + tl.arange(0, SIDE)
            lowest = tl.load(Y + 2 * stretches + m, mask=m < stretches - 2, other=float("inf"))
            found += tl.sum((lowest < bar).to(tl.int32), 0)
        return tl.minimum(found * SIDE, T)
    return tl.minimum(end + reach(X, w), T)
