"""Far away a logarithm is straight: one line for a row of a block, not one logarithm a score.

b(d) = -x0 log2(1 + x1 d) bends by |b''| <= x0 log2(e) / d^2, whatever x1 is. Over ``side`` tokens a
line through the two Chebyshev nodes of the piece is off by at most

    |b''| (side / 2)^2 / 4 <= x0 log2(e) side^2 / (16 d^2) bits,

which is 2^-12 where d = side sqrt(256 x0 log2(e)). From there on the line is taken, for numbers of
16 bits only: weights are rounded to 9 or 12 bits right after. A block of queries takes a line over
its keys for each query, a block of keys one over its queries for each key.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from pe.attention.kernels.elementary import inverse, log2
from pe.encodings.forms import LOGARITHM

BITS = 2.0**-12
SIDES: tl.constexpr = tl.constexpr((1.4426950408889634 / (16 * BITS)) ** 0.5)
NODE: tl.constexpr = tl.constexpr(0.125**0.5)
"""Chebyshev's two nodes lie this share of a piece from its middle."""
FAR: tl.constexpr = tl.constexpr(1e9)


def straightens(kind: int, dtype: torch.dtype) -> bool:
    """Whether far blocks take lines."""
    return kind == LOGARITHM and dtype in (torch.bfloat16, torch.float16)


@triton.jit
def straight_from(X, SIDE: tl.constexpr):
    """The distance from which on a logarithm is straight over SIDE tokens."""
    distance = tl.sqrt(tl.abs(tl.load(X))) * SIDES * SIDE
    return tl.math.ceil(tl.minimum(distance, FAR)).to(tl.int32) + 1


@triton.jit
def middles(i, j, i0, j0, TURNED: tl.constexpr, SIDE: tl.constexpr):
    """Distance of each row to the middle of the block, and places of the block from there."""
    half: tl.constexpr = (SIDE - 1) / 2
    if TURNED:  # rows are keys, and distances rise along them
        middle, place = (i0 - j).to(tl.float32) + half, (i - i0).to(tl.float32) - half
    else:
        middle, place = (i - j0).to(tl.float32) - half, (j0 - j).to(tl.float32) + half
    return middle, place


@triton.jit
def line_of_log(middle, x1, SIDE: tl.constexpr):
    """The line of log2(1 + x1 d) by d around ``middle``: its value there, and its slope."""
    more = log2(1.0 + x1 * (middle + SIDE * NODE))
    less = log2(1.0 + x1 * (middle - SIDE * NODE))
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)


@triton.jit
def line_of_share(middle, x1, SIDE: tl.constexpr):
    """The same of d / (1 + x1 d), which x1 gets from a score."""
    high, low = middle + SIDE * NODE, middle - SIDE * NODE
    more, less = high * inverse(1.0 + x1 * high), low * inverse(1.0 + x1 * low)
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)
