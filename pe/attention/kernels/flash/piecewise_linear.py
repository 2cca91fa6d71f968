"""Far away a logarithm is piecewise linear: one line per row of a block, not a logarithm per score.

b(d) = -x0 log2(1 + x1 d) bends by |b''| <= x0 log2(e) / d^2, whatever x1 is. Over ``side`` tokens a
line through the two Chebyshev nodes of the piece is off by at most

    |b''| (side / 2)^2 / 4 <= x0 log2(e) side^2 / (16 d^2) bits,

which is 2^-12 where d = side sqrt(256 x0 log2(e)). From there on the line is taken, for numbers of
16 bits only: weights are rounded to 9 or 12 bits right after. A block of queries takes a line over
its keys for each query, a block of keys one over its queries for each key. Nor from less than 8
sides on, however small x0 is: its gradient is a sum of the logarithm itself, of which a line is
within 2^-9 bits there, and that of x1 of d / (1 + x1 d), within 2^-11 of itself.

FIRE's bias is f(psi(i - j) / N_i), and f is linear between its corners: in a block without one,
lines follow from the logarithm alone. `lines` says which blocks those are, and in which piece of f.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pe.attention.kernels.flash.elementary import inverse, log2
from pe.attention.kernels.flash.kinds import FARTHEST
from pe.encodings.core.forms import FIRE, LOG2E, LOGARITHM

BITS = 2.0**-12
SIDES: tl.constexpr = tl.constexpr((LOG2E / (16 * BITS)) ** 0.5)
NODE: tl.constexpr = tl.constexpr(0.125**0.5)
"""Chebyshev's two nodes lie this share of a piece from its middle."""
MIN_SIDES: tl.constexpr = tl.constexpr(8)
"""Lines begin this many sides of a block away at the earliest: gradients are not scaled by x0."""
REGION: tl.constexpr = tl.constexpr(65536)
"""What counts corners in the number of a piece."""
LONG = 4096
"""Tokens from which on it is worth looking for FIRE's blocks."""


def takes_lines(kind: int, dtype: torch.dtype, length: int, long: int = LONG) -> bool:
    """Whether far blocks take lines."""
    worth = kind == LOGARITHM or (kind == FIRE and length >= long)
    return worth and dtype in (torch.bfloat16, torch.float16)


def lines(parts: list[Tensor], length: int, rows: int, keys: int, transposed: bool) -> Tensor:
    """(H, blocks of queries, blocks of keys) int32: the piece of f that a block lies in, or -1.

    To the piece is added `REGION` times the number of corners below it. -1 where it lies in
    several, or where lines over its keys (``transposed``: queries) are not within `BITS`. The
    arguments of f rise with the query and fall with the key, so two corners of a block hold their
    bounds. In blocks of 64 × 32 that is T^2 / 2048 numbers per head, a thousandth of what a matrix
    of logits would be.
    """
    pieces, steep, knots, breaks = parts[:4]
    side = rows if transposed else keys
    first = torch.arange(0, length, rows, device=steep.device)[:, None]
    begin = torch.arange(0, length, keys, device=steep.device)
    last = first + rows - 1
    nearest = first - (begin + keys - 1)
    near = nearest.clamp(min=1).float()
    count = pieces.shape[1] - 2
    low = ((1 + steep * near).log2() * knots[first]).long().clamp(max=count - 1)
    most = (last - begin).clamp(min=1).float()
    high = ((1 + steep * most).log2() * knots[last]).long().clamp(max=count - 1) + 1
    edges = (breaks[:-1] * count).sort().values
    below = torch.searchsorted(edges, torch.arange(count + 1, device=edges.device), right=True)
    alone = (below[low] == below[high]) & (nearest >= MIN_SIDES.value * side)
    if transposed:  # N changes along such a line, which has a separate corner
        alone &= (knots[first] == knots[last]) | (knots[first] != knots[first + 1])
    bend = pieces[:, low + 1, 1].abs() * knots[first] * (SIDES.value * side) ** 2
    room = near**2 * (0.25 if transposed else 1.0)
    return torch.where(alone & (bend <= room), low + REGION.value * below[low], -1).int()


def order_of(pieces: Tensor, beyond: int) -> Tensor:
    """(H, 2 + blocks of queries, blocks of keys) int32: what `fire_far.far_blocks` goes through.

    For each block of keys: how many blocks of queries take lines, how many are ``beyond`` blocks
    away or more, with lines or without, and then which: those with lines first, each in order.
    """
    blocks = torch.arange(pieces.shape[-1], device=pieces.device)
    far = blocks[:, None] - blocks >= beyond
    group = torch.where(pieces >= 0, 0, torch.where(far, 1, 2)).int()
    counts = torch.stack(((group == 0).sum(1), (group < 2).sum(1)), 1)
    return torch.cat((counts, group.argsort(dim=1, stable=True)), 1).int().contiguous()


@triton.jit
def linear_from(p_x, SIDE: tl.constexpr):
    """The distance from which on a logarithm is linear over SIDE tokens; p_x: its (x0, x1)."""
    distance = tl.maximum(tl.sqrt(tl.abs(tl.load(p_x))) * SIDES, MIN_SIDES) * SIDE
    return tl.math.ceil(tl.minimum(distance, FARTHEST)).to(tl.int32) + 1


@triton.jit
def offsets_from_middle(o_i, o_j, i0, j0, IS_TRANSPOSED: tl.constexpr, SIDE: tl.constexpr):
    """Distance of each row to the middle of the block, and offsets of its entries from there."""
    half: tl.constexpr = (SIDE - 1) / 2
    if IS_TRANSPOSED:  # rows are keys, and distances rise along them
        middle, offset = (i0 - o_j).to(tl.float32) + half, (o_i - i0).to(tl.float32) - half
    else:
        middle, offset = (o_i - j0).to(tl.float32) - half, (j0 - o_j).to(tl.float32) + half
    return middle, offset


@triton.jit
def line_of_log(middle, x1, SIDE: tl.constexpr):
    """The line of log2(1 + x1 d) by d around ``middle``: its value there, and its slope."""
    more = log2(1.0 + x1 * (middle + SIDE * NODE))
    less = log2(1.0 + x1 * (middle - SIDE * NODE))
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)


@triton.jit
def line_of_share(middle, x1, SIDE: tl.constexpr):
    """The same of d / (1 + x1 d), the derivative by x1."""
    high, low = middle + SIDE * NODE, middle - SIDE * NODE
    more, less = high * inverse(1.0 + x1 * high), low * inverse(1.0 + x1 * low)
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)


@triton.jit
def line_of_fire(o_i, o_j, i0, j0, p_y, p_z, IS_TRANSPOSED: tl.constexpr, SIDE: tl.constexpr):
    """FIRE's knots as a line along each row: in the middle of the block, and by token."""
    A: tl.constexpr = (SIDE * 3 + 10) // 20  # Chebyshev's node from the edge, in whole tokens
    B: tl.constexpr = SIDE - 1 - A
    if IS_TRANSPOSED:
        one = log2(1.0 + tl.load(p_y) * (i0 - o_j + A).to(tl.float32)) * tl.load(p_z + i0 + A)
        two = log2(1.0 + tl.load(p_y) * (i0 - o_j + B).to(tl.float32)) * tl.load(p_z + i0 + B)
    else:
        rows = tl.load(p_z + o_i)
        one = log2(1.0 + tl.load(p_y) * (o_i - j0 - A).to(tl.float32)) * rows
        two = log2(1.0 + tl.load(p_y) * (o_i - j0 - B).to(tl.float32)) * rows
    return 0.5 * (one + two), (two - one) / (B - A)


@triton.jit
def offsets_along(o_i, o_j, i0, j0, IS_TRANSPOSED: tl.constexpr, SIDE: tl.constexpr):
    """Offsets along such a line from the middle of the block."""
    half: tl.constexpr = (SIDE - 1) / 2
    if IS_TRANSPOSED:
        offset = (o_i - i0).to(tl.float32) - half
    else:
        offset = (o_j - j0).to(tl.float32) - half
    return offset
