"""Loop bounds and masks where a query sees some of the keys before it only (`pe.attention.spans`).

p_spans points to the four rows of a sequence, T numbers each: first, last, origin, kept. Without a
window it is None, and what is compiled then has nothing of this. KEEPS: first keys stay visible.
SEGMENTED: there are several documents, so that every block takes the mask.

    block of queries i0 .. i0 + BM:    |kept|      [start .. inside)[inside .. diagonal)[diagonal ..
                                        mask        mask             no mask            mask
    block of keys j0 .. j0 + BN:       [j0 .. j0 + BN)[j0 + BN .. inside)[inside .. stop)
                                        mask           no mask            mask

    start = min first_i    inside = max first_i        over the queries of the block
    stop = 1 + max last_j  inside = 1 + min last_j     over its keys

each rounded to whole blocks towards the mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE: tl.constexpr = tl.constexpr(2**31 - 1)
LEAST: tl.constexpr = tl.constexpr(-1e30)
"""In place of -inf as the largest logit of a query that has seen none yet: differences from it are
numbers, and a block of which a query sees nothing leaves its sum at 0."""


@triton.jit
def seen(p_spans, o_i, o_j, T, SEGMENTED: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Which keys of a block its queries see: queries down and keys across, or IS_TRANSPOSED."""
    b_last = tl.load(p_spans + T + o_j, mask=o_j < T, other=-1)
    if IS_TRANSPOSED:
        mask = (o_i[None, :] >= o_j[:, None]) & (o_i[None, :] <= b_last[:, None])
    else:
        mask = (o_i[:, None] >= o_j[None, :]) & (o_i[:, None] <= b_last[None, :])
    if SEGMENTED:
        b_of_i = tl.load(p_spans + 2 * T + o_i, mask=o_i < T, other=-1)
        b_of_j = tl.load(p_spans + 2 * T + o_j, mask=o_j < T, other=-2)
        if IS_TRANSPOSED:
            mask &= b_of_i[None, :] == b_of_j[:, None]
        else:
            mask &= b_of_i[:, None] == b_of_j[None, :]
    return mask


@triton.jit
def keys_of_queries(p_spans, o_i, diagonal, T, SEGMENTED: tl.constexpr, BN: tl.constexpr):
    """Where a block of queries begins to see keys, and from where on all of it sees all."""
    b_first = tl.load(p_spans + o_i, mask=o_i < T, other=NOWHERE)
    start = tl.min(b_first, 0) // BN * BN
    inside = diagonal
    if not SEGMENTED:
        most = tl.max(tl.where(o_i < T, b_first, 0), 0)
        inside = tl.minimum(tl.cdiv(most, BN) * BN, diagonal)
    return start, inside


@triton.jit
def first_keys(p_spans, o_i, start, T, BN: tl.constexpr):
    """The keys before ``start`` that stay visible to a block of queries: begin and end.

    Of documents that begin from ``start`` on there are none.
    """
    b_origin = tl.load(p_spans + 2 * T + o_i, mask=o_i < T, other=NOWHERE)
    b_kept = tl.load(p_spans + 3 * T + o_i, mask=o_i < T, other=0)
    end = tl.max(tl.where(b_origin < start, b_kept, 0), 0)
    return tl.min(b_origin, 0) // BN * BN, tl.minimum(end, start)


@triton.jit
def queries_of_keys(p_spans, o_j, after, T, SEGMENTED: tl.constexpr, BM: tl.constexpr):
    """Up to where all queries from ``after`` on see all of a block of keys, and some see some."""
    b_last = tl.load(p_spans + T + o_j, mask=o_j < T, other=-1)
    stop = tl.max(b_last, 0) + 1
    inside = after
    if not SEGMENTED:
        least = tl.min(tl.where(o_j < T, b_last, NOWHERE - 1), 0) + 1
        inside = after + tl.maximum(least - after, 0) // BM * BM
    return inside, stop


@triton.jit
def block_is_seen(p_spans, i0, j0, T, SIDE: tl.constexpr):
    """Whether a query from ``i0`` on may see one of SIDE keys from ``j0`` on."""
    o_j = j0 + tl.arange(0, SIDE)
    return tl.max(tl.load(p_spans + T + o_j, mask=o_j < T, other=-1), 0) >= i0
