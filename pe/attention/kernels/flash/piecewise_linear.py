"""Compute a logarithmic bias of far blocks as one line per row, and not as a logarithm per score.

b(d) = -x0 log2(1 + x1 d) has the curvature |b''| <= x0 log2(e) / d^2 for any x1. Over ``side``
tokens, the line through the two Chebyshev nodes of this piece has an error of at most

    |b''| (side / 2)^2 / 4 <= x0 log2(e) side^2 / (16 d^2) bits,

which is 2^-12 at d = side sqrt(256 x0 log2(e)). From this distance on the line is used, but only
for numbers of 16 bits, since weights are then rounded to 9 or 12 bits anyway. A block of queries
has one line over its keys per query, and a block of keys has one over its queries per key. The
distance is also at least 8 sides, however small x0 is, because the gradients do not scale with x0.
The gradient of x0 is a sum of the logarithm itself, for which the line has an error of at most 2^-9
bits there. That of x1 is a sum of d / (1 + x1 d), with a relative error of at most 2^-11.

FIRE's bias is f(psi(i - j) / N_i), and f is linear between its corners. So in a block that contains
no corner, the bias is a line if the logarithm is. `lines` says which blocks these are, and in which
piece of f each of them lies.
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
"""The largest error of a line, in bits."""
SIDES: tl.constexpr = tl.constexpr((LOG2E / (16 * BITS)) ** 0.5)
NODE: tl.constexpr = tl.constexpr(0.125**0.5)
"""The distance of the two Chebyshev nodes from the middle of a piece, as a share of its length."""
MIN_SIDES: tl.constexpr = tl.constexpr(8)
"""The smallest distance at which lines are used, in sides of a block."""
REGION: tl.constexpr = tl.constexpr(65536)
"""`lines` adds this number to that of a piece for every corner of f below the piece."""
LONG = 4096
"""The number of tokens from which on FIRE's lines save more time than it takes to find them."""


def takes_lines(kind: int, dtype: torch.dtype, length: int, long: int = LONG) -> bool:
    """Return whether the bias of far blocks is computed as lines."""
    worth = kind == LOGARITHM or (kind == FIRE and length >= long)
    return worth and dtype in (torch.bfloat16, torch.float16)


def lines(parts: list[Tensor], length: int, rows: int, keys: int, transposed: bool) -> Tensor:
    """Find the piece of f in which each block lies.

    An entry is the index of the piece plus `REGION` times the number of corners below it. It is -1
    if the block lies in several pieces, or if lines over its keys have an error above `BITS`.
    The argument of f rises with the query and falls with the key, so its bounds are in two corners
    of a block. With blocks of 64 x 32 these are T^2 / 2048 numbers per head, much less than a
    matrix of logits.

    Args:
        parts: of FIRE's bias spec. rows, keys: the size of a block.
        transposed: lines go over the queries of a block, and not over its keys.

    Returns:
        (H, blocks of queries, blocks of keys) int32.
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
    if transposed:  # N_i changes along such a line and has a corner of its own
        alone &= (knots[first] == knots[last]) | (knots[first] != knots[first + 1])
    bend = pieces[:, low + 1, 1].abs() * knots[first] * (SIDES.value * side) ** 2
    room = near**2 * (0.25 if transposed else 1.0)
    return torch.where(alone & (bend <= room), low + REGION.value * below[low], -1).int()


def order_of(pieces: Tensor, beyond: int) -> Tensor:
    """Return the order in which `fire_far.far_blocks` visits blocks of queries.

    Args:
        pieces: the result of `lines`. beyond: blocks that are so many blocks away are far.

    Returns:
        (H, 2 + blocks of queries, blocks of keys) int32. For each block of keys, the first entry is
        the number of query blocks with lines, the second one that of all far query blocks. Then
        follow their indices: those with lines, the other far ones, and the rest, each ascending.
    """
    blocks = torch.arange(pieces.shape[-1], device=pieces.device)
    far = blocks[:, None] - blocks >= beyond
    group = torch.where(pieces >= 0, 0, torch.where(far, 1, 2)).int()
    counts = torch.stack(((group == 0).sum(1), (group < 2).sum(1)), 1)
    return torch.cat((counts, group.argsort(dim=1, stable=True)), 1).int().contiguous()


@triton.jit
def linear_from(p_x, SIDE: tl.constexpr):
    """Return the distance from which on -x0 log2(1 + x1 d) is linear over SIDE tokens.

    p_x points to (x0, x1), float32.
    """
    distance = tl.maximum(tl.sqrt(tl.abs(tl.load(p_x))) * SIDES, MIN_SIDES) * SIDE
    return tl.math.ceil(tl.minimum(distance, FARTHEST)).to(tl.int32) + 1


@triton.jit
def offsets_from_middle(o_i, o_j, i0, j0, IS_TRANSPOSED: tl.constexpr, SIDE: tl.constexpr):
    """Return the distance of each row to the middle of the block, and the offsets of its entries.

    Distances rise with the offset. A row is a query, or a key if IS_TRANSPOSED.
    """
    half: tl.constexpr = (SIDE - 1) / 2
    if IS_TRANSPOSED:  # rows are keys, and distances rise along them
        middle, offset = (i0 - o_j).to(tl.float32) + half, (o_i - i0).to(tl.float32) - half
    else:
        middle, offset = (o_i - j0).to(tl.float32) - half, (j0 - o_j).to(tl.float32) + half
    return middle, offset


@triton.jit
def line_of_log(middle, x1, SIDE: tl.constexpr):
    """Return value and slope at ``middle`` of the line for log2(1 + x1 d) as a function of d."""
    more = log2(1.0 + x1 * (middle + SIDE * NODE))
    less = log2(1.0 + x1 * (middle - SIDE * NODE))
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)


@triton.jit
def line_of_share(middle, x1, SIDE: tl.constexpr):
    """Return the same for d / (1 + x1 d), to which the derivative by x1 is proportional."""
    high, low = middle + SIDE * NODE, middle - SIDE * NODE
    more, less = high * inverse(1.0 + x1 * high), low * inverse(1.0 + x1 * low)
    return 0.5 * (more + less), (more - less) / (2 * SIDE * NODE)


@triton.jit
def line_of_fire(o_i, o_j, i0, j0, p_y, p_z, IS_TRANSPOSED: tl.constexpr, SIDE: tl.constexpr):
    """Return the argument of FIRE's f, in pieces, as a line along each row.

    The results are its value in the middle of the block, and its slope per token.
    """
    A: tl.constexpr = (SIDE * 3 + 10) // 20  # Chebyshev's node, in whole tokens from the edge
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
    """Return the offsets of a row's entries from the middle of the block, for `line_of_fire`."""
    half: tl.constexpr = (SIDE - 1) / 2
    if IS_TRANSPOSED:
        offset = (o_i - i0).to(tl.float32) - half
    else:
        offset = (o_j - j0).to(tl.float32) - half
    return offset
