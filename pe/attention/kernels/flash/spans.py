"""Loop bounds and masks of kernels whose queries see only some of the keys before them.

p_spans points to `pe.attention.spans.Spans.rows` of a sequence: first, last, origin and kept, T
int32 each. Without a window it is None, and kernels are compiled without any of this. KEEPS: the
first keys stay visible. SEGMENTED: there are several documents, so that every block needs the mask.

    block of queries i0 .. i0 + BM:    |kept|      [start .. inside)[inside .. diagonal)[diagonal ..
                                        mask        mask             no mask            mask
    block of keys j0 .. j0 + BN:       [j0 .. j0 + BN)[j0 + BN .. inside)[inside .. stop)
                                        mask           no mask            mask

    start = min first_i    inside = max first_i        over the queries of the block
    stop = 1 + max last_j  inside = 1 + min last_j     over its keys

All bounds are rounded to whole blocks, such that every block that needs a mask gets it.
"""

from __future__ import annotations

import triton
import triton.language as tl

NOWHERE: tl.constexpr = tl.constexpr(2**31 - 1)
LEAST: tl.constexpr = tl.constexpr(-1e30)
"""The largest logit of a query that has seen no key yet. With -inf in its place, the difference of
two of them would be NaN. With this number, a block of which a query sees nothing leaves its sum
at 0."""


@triton.jit
def seen(p_spans, o_i, o_j, T, SEGMENTED: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Return the mask of a block, True where a query sees a key: (BM, BN), or IS_TRANSPOSED."""
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
    """Return the first key that a block of queries sees, and the first that needs no mask.

    Both are multiples of BN. ``diagonal`` is the first key block that contains a key ahead of a
    query.
    """
    b_first = tl.load(p_spans + o_i, mask=o_i < T, other=NOWHERE)
    start = tl.min(b_first, 0) // BN * BN
    inside = diagonal
    if not SEGMENTED:
        most = tl.max(tl.where(o_i < T, b_first, 0), 0)
        inside = tl.minimum(tl.cdiv(most, BN) * BN, diagonal)
    return start, inside


@triton.jit
def first_keys(p_spans, o_i, start, T, BN: tl.constexpr):
    """Return begin and end of the first keys, before ``start``, that a block of queries sees.

    Documents that begin at ``start`` or later have no such keys.
    """
    b_origin = tl.load(p_spans + 2 * T + o_i, mask=o_i < T, other=NOWHERE)
    b_kept = tl.load(p_spans + 3 * T + o_i, mask=o_i < T, other=0)
    end = tl.max(tl.where(b_origin < start, b_kept, 0), 0)
    return tl.min(b_origin, 0) // BN * BN, tl.minimum(end, start)


@triton.jit
def queries_of_keys(p_spans, o_j, after, T, SEGMENTED: tl.constexpr, BM: tl.constexpr):
    """Return up to which query all queries from ``after`` on see a whole block of keys, and the
    end of the queries that see any of it."""
    b_last = tl.load(p_spans + T + o_j, mask=o_j < T, other=-1)
    stop = tl.max(b_last, 0) + 1
    inside = after
    if not SEGMENTED:
        least = tl.min(tl.where(o_j < T, b_last, NOWHERE - 1), 0) + 1
        inside = after + tl.maximum(least - after, 0) // BM * BM
    return inside, stop


@triton.jit
def block_is_seen(p_spans, i0, j0, T, SIDE: tl.constexpr):
    """Return whether a query from ``i0`` on may see one of the SIDE keys from ``j0`` on."""
    o_j = j0 + tl.arange(0, SIDE)
    return tl.max(tl.load(p_spans + T + o_j, mask=o_j < T, other=-1), 0) >= i0
