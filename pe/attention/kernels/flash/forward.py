"""Flash attention with a bias that is never a matrix, forward and backward, in Triton.

    S2 = (scale q k^T + b) log2(e)      P = 2^(S2 - lse)      dS = P (dO v^T - rowsum(dO o))

Blocks of queries meet blocks of keys on the chip, as in FlashAttention-2 (arXiv:2307.08691); the
bias of a block is computed where the block is, from one of these (KIND, from
`pe.attention.kernels.flash.kinds`), of which x, y, z and w are pointers:

    NONE   nothing
    KEYS   b_ij = x_j - x_i, one number per key (FoX, ALiBi). Softmax cancels what a row has in
           common, so x_j is measured from any number near x_i: x (B or 1, H, T + padding) float32
           holds x_j less the x at the beginning of its chunk of CHUNK keys; y (B or 1, H, 3,
           chunks) float64 the x at the beginning of each, and what `horizon` reads
    TABLE  b_ij = x[i - j], (H, T + padding) float32, constant from distance REACH on (Sandwich, T5)
    FIRE   b_ij = f(psi(i - j) / N_i), f linear between knots: x (H, K + 1, 2) float32 holds height
           and slope of each piece, over numbers that are less by 1/2; psi(n) = ln(1 + y n), y (1,);
           z (T + padding,) the knots over N_i; w (H, query blocks, key blocks) int32 the piece that
           a far block lies in (`pe.attention.kernels.flash.piecewise_linear.lines`)
    LOGARITHM, POWER
           b_ij = -x0 log2(1 + x1 (i - j)) or -x0 (i - j)^x1, x (H, 2) float32: cheaper than reading
           a table (KERPLE)

All in base 2: x, f and the power's x0 come multiplied by log2(e), FIRE's z by ln(2). What is read
by distance has `PADDING` entries before distance 0 and after the last. Queries and keys may be
wider than values. Where a kind does not use z, and keys beyond the horizon are skipped, z is the
horizon, (B, H) float32.

B batch, H query heads, G of them per key head, T tokens, E query width, D value width; a program
has BM queries or keys and visits the others BN at a time. Names: ``p_`` pointer, ``b_`` block,
``o_`` offset, ``m_`` mask, ``i_`` program index; i0 and j0 are the first query and key of a block.
Strides are tuples, of (batch, head, token) where nothing else is said.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import log2, read, read_two
from pe.attention.kernels.flash.horizon import first_key
from pe.attention.kernels.flash.kinds import CHUNK, FIRE, KEYS, LOGARITHM, POWER, TABLE
from pe.attention.kernels.flash.piecewise_linear import (
    MIN_SIDES,
    REGION,
    line_of_fire,
    line_of_log,
    linear_from,
    offsets_along,
    offsets_from_middle,
)
from pe.attention.kernels.flash.spans import LEAST, first_keys, keys_of_queries, seen


@triton.jit
def at_distance(p_x, o_i, o_j, IS_TRANSPOSED: tl.constexpr):
    """x[i - j]. In 64 bits throughout: then the addresses of a thread differ by constants."""
    rows = p_x.to(tl.int64) + o_i.to(tl.int64) * 4
    keys = o_j.to(tl.int64) * 4
    return read(rows[None, :] - keys[:, None] if IS_TRANSPOSED else rows[:, None] - keys[None, :])


@triton.jit
def distances(o_i, o_j, IS_TRANSPOSED: tl.constexpr, IS_DIAGONAL: tl.constexpr):
    """i - j, float32; cheaper as a difference of floats than made one afterwards.

    With IS_DIAGONAL some keys are ahead of some queries; there it is 0.
    """
    o_i, o_j = o_i.to(tl.float32), o_j.to(tl.float32)
    distance = o_i[None, :] - o_j[:, None] if IS_TRANSPOSED else o_i[:, None] - o_j[None, :]
    return tl.maximum(distance, 0.0) if IS_DIAGONAL else distance


@triton.jit
def add_fire(b_s, o_i, o_j, p_x, p_y, p_z, IS_TRANSPOSED: tl.constexpr, IS_DIAGONAL: tl.constexpr):
    """FIRE, each score from its own piece of f."""
    rows = tl.load(p_z + o_i)
    inner = 1.0 + tl.load(p_y) * distances(o_i, o_j, IS_TRANSPOSED, IS_DIAGONAL)
    offset = log2(inner) * (rows[None, :] if IS_TRANSPOSED else rows[:, None]) - 0.5
    # 1.5 * 2^23 leaves no bits behind the point: the nearest whole number without a conversion
    cell = (offset + 12582912.0).to(tl.int32, bitcast=True).to(tl.int64)
    height, slope = read_two(p_x.to(tl.int64) + (cell - 0x4B400000) * 8)
    b_s += height
    b_s += slope * offset
    return b_s


@triton.jit
def add_fire_line(b_s, o_i, o_j, i0, j0, piece, p_x, p_y, p_z, IS_TRANSPOSED: tl.constexpr):
    """FIRE in a block within one piece of f, far away: a line along each row."""
    SIDE: tl.constexpr = b_s.shape[1]
    middle, by_token = line_of_fire(o_i, o_j, i0, j0, p_y, p_z, IS_TRANSPOSED, SIDE)
    p_x += 2 * (piece % REGION)
    height, slope = tl.load(p_x), tl.load(p_x + 1)
    b_s += (height + slope * (middle - 0.5))[:, None]
    offsets = offsets_along(o_i, o_j, i0, j0, IS_TRANSPOSED, SIDE)
    b_s += (slope * by_token)[:, None] * offsets[None, :]
    return b_s


@triton.jit
def add_bias(
    b_s, o_i, o_j, i0, j0, near, p_x, p_y, p_z, KIND: tl.constexpr, REACH: tl.constexpr,
    IS_FAR: tl.constexpr, IS_DIAGONAL: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Add the bias to a block of logits in base 2.

    Args:
        b_s: logits, queries down and keys across, or IS_TRANSPOSED.
        near: what `load_near` loads.
        IS_FAR: the block is far enough away to be constant (TABLE) or to have lines.
        IS_DIAGONAL: some keys are ahead of some queries.
    """
    if KIND == KEYS:
        shift = (tl.load(p_y + j0 // CHUNK) - tl.load(p_y + i0 // CHUNK)).to(tl.float32)
        keys = near + shift
        b_s += keys[:, None] if IS_TRANSPOSED else keys[None, :]
    elif KIND == TABLE:
        if IS_FAR:
            b_s += tl.load(p_x + REACH)
        else:
            b_s += at_distance(p_x, o_i, o_j, IS_TRANSPOSED)
    elif KIND == FIRE and IS_FAR:
        if near >= 0:
            b_s = add_fire_line(b_s, o_i, o_j, i0, j0, near, p_x, p_y, p_z, IS_TRANSPOSED)
        else:
            b_s = add_fire(b_s, o_i, o_j, p_x, p_y, p_z, IS_TRANSPOSED, IS_DIAGONAL)
    elif KIND == FIRE:
        b_s = add_fire(b_s, o_i, o_j, p_x, p_y, p_z, IS_TRANSPOSED, IS_DIAGONAL)
    elif KIND == LOGARITHM and IS_FAR:
        SIDE: tl.constexpr = b_s.shape[1]
        middle, offset = offsets_from_middle(o_i, o_j, i0, j0, IS_TRANSPOSED, SIDE)
        value, slope = line_of_log(middle, tl.load(p_x + 1), SIDE)
        b_s -= (tl.load(p_x) * value)[:, None]
        b_s -= (tl.load(p_x) * slope)[:, None] * offset[None, :]
    elif KIND == LOGARITHM:
        b_s -= tl.load(p_x) * log2(
            1.0 + tl.load(p_x + 1) * distances(o_i, o_j, IS_TRANSPOSED, IS_DIAGONAL)
        )
    elif KIND == POWER:
        b_s -= tl.load(p_x) * tl.math.exp2(
            tl.load(p_x + 1) * log2(distances(o_i, o_j, IS_TRANSPOSED, IS_DIAGONAL))
        )
    return b_s


@triton.jit
def load_near(p_x, p_w, o_j, i_block, KIND: tl.constexpr, IS_FAR: tl.constexpr):
    """Of KEYS the keys' x; of FIRE far away the block's piece of f, or -1; else nothing of use."""
    if KIND == KEYS:
        near = tl.load(p_x + o_j)
    elif KIND == FIRE and IS_FAR:
        near = tl.load(p_w + i_block)
    else:
        near = o_j
    return near


@triton.jit
def far_from(p_x, KIND: tl.constexpr, REACH: tl.constexpr, SIDE: tl.constexpr):
    """The distance from which on blocks have a separate loop: constant (REACH) or linear."""
    if REACH > 0:
        distance = tl.full((), REACH - 1, tl.int32)
    elif KIND == FIRE:
        distance = tl.full((), MIN_SIDES * SIDE, tl.int32)
    else:
        distance = linear_from(p_x, SIDE)
    return distance


@triton.jit
def visit_keys(
    b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, start, stop, T, k_t, v_t, scale, p_x, p_y, p_z,
    p_w, p_spans,
    KIND: tl.constexpr, REACH: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr,
    D: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr, IS_FAR: tl.constexpr,
    IS_EDGE: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Update the online softmax by the key blocks from ``start`` to ``stop``.

    IS_EDGE: some of these keys are hidden from some of the queries (`spans`).
    b_acc (BM, D): the sum of weighted values; b_max and b_total (BM,): the largest logit and the
    sum of weights so far.
    """
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    for j0 in tl.range(start, stop, BN):
        o_j = j0 + tl.arange(0, BN)
        if IS_DIAGONAL:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None], mask=o_j[None, :] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None])
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale
        near = load_near(p_x, p_w, o_j, j0 // BN, KIND, IS_FAR)
        b_s = add_bias(
            b_s, o_i, o_j, i0, j0, near, p_x, p_y, p_z, KIND, REACH, IS_FAR, IS_DIAGONAL,
            IS_TRANSPOSED=False,
        )  # fmt: skip
        if IS_EDGE:
            b_seen = seen(p_spans, o_i, o_j, T, SEGMENTED, IS_TRANSPOSED=False)
            b_s = tl.where(b_seen, b_s, float("-inf"))
        elif IS_DIAGONAL:
            b_s = tl.where(o_i[:, None] >= o_j[None, :], b_s, float("-inf"))
        b_max_new = tl.maximum(b_max, tl.max(b_s, 1))
        b_p = tl.math.exp2(b_s - b_max_new[:, None])
        b_rescale = tl.math.exp2(b_max - b_max_new)
        b_total = b_total * b_rescale + tl.sum(b_p, 1)
        if IS_DIAGONAL:
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :], mask=o_j[:, None] < T, other=0.0)
        else:
            b_v = tl.load(p_v + o_j[:, None] * v_t + o_d[None, :])
        b_acc = tl.dot(
            b_p.to(b_v.dtype), b_v, b_acc * b_rescale[:, None], input_precision=PRECISION
        )
        b_max = b_max_new
    return b_acc, b_max, b_total


@triton.jit
def sink_logits(p_sink, p_x, o_i, KIND: tl.constexpr):
    """A head's sink beside the logits of its queries: above it by the query's own x for KEYS."""
    logits = tl.load(p_sink) + 0.0 * o_i.to(tl.float32)
    if KIND == KEYS:
        logits += tl.load(p_x + o_i)
    return logits


@triton.jit
def forward(
    p_q, p_k, p_v, p_o, p_lse, p_x, p_y, p_z, p_w, p_spans, p_sink, T, H, G, scale,
    q_strides, k_strides, v_strides, out_strides, x_strides, y_strides, w_strides, spans_b,
    KIND: tl.constexpr, REACH: tl.constexpr, USES_HORIZON: tl.constexpr, USES_LINES: tl.constexpr,
    KEEPS: tl.constexpr, SEGMENTED: tl.constexpr, E: tl.constexpr, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: the output, and the base-2 logsumexp of its logits.

    Args:
        p_q, p_k: (B, H or H / G, T, E). p_v: (B, H / G, T, D). p_o: (B, H, T, D).
            All of one type, 16 bits or float32.
        p_lse: (B, H, T) float32, contiguous.
        p_x, p_y, p_z, p_w: of the bias (above). x_strides, y_strides: of (batch, head); w_strides:
            of (head, query block).
        scale: of the logits, times log2(e).
        USES_HORIZON: keys beyond the horizon p_z are skipped. USES_LINES: far blocks are linear.
        p_spans, KEEPS, SEGMENTED: which keys are visible (`pe.attention.kernels.flash.spans`), with
            spans_b, the stride by batch; or None, False, False and None. Not with REACH,
            USES_HORIZON or USES_LINES.
        p_sink: (H,) float32, a logit beside those of the keys, times log2(e); or None. Measured
            like those of the keys, which for KEYS are above what they should be by the query's own.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # those with most keys first
    i_b, i_h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    p_q += i_b * q_strides[0] + i_h * q_strides[1]
    p_k += i_b * k_strides[0] + (i_h // G) * k_strides[1]
    p_v += i_b * v_strides[0] + (i_h // G) * v_strides[1]
    p_o += i_b * out_strides[0] + i_h * out_strides[1]
    p_x += i_b * x_strides[0] + i_h * x_strides[1]
    p_y += i_b * y_strides[0] + i_h * y_strides[1]
    p_w += i_h * w_strides[0] + i_block * w_strides[1]
    i0 = i_block * BM
    o_i = i0 + tl.arange(0, BM)
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    m_i = o_i[:, None] < T
    b_q = tl.load(p_q + o_i[:, None] * q_strides[2] + o_e[None, :], mask=m_i, other=0.0)
    b_acc = tl.zeros((BM, D), tl.float32)
    b_max = tl.full((BM,), float("-inf"), tl.float32)
    b_total = tl.zeros((BM,), tl.float32)
    if p_sink is not None:
        b_max, b_total = sink_logits(p_sink + i_h, p_x, o_i, KIND), b_total + 1.0
    elif p_spans is not None:
        b_max = tl.full((BM,), LEAST, tl.float32)
    diagonal = (i0 // BN) * BN  # key blocks before this lie behind all queries
    far = 0
    if USES_HORIZON:
        far = first_key(p_x, p_y, tl.load(p_z + tl.program_id(1)), i0, T, KIND)
    if REACH > 0 or USES_LINES:
        far = tl.maximum((i0 - far_from(p_x, KIND, REACH, BN)) // BN, 0) * BN
        b_acc, b_max, b_total = visit_keys(
            b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, 0, far, T, k_strides[2],
            v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E, D, BN,
            PRECISION, IS_FAR=True, IS_EDGE=False, IS_DIAGONAL=False,
        )  # fmt: skip
    if p_spans is not None:
        p_spans += i_b * spans_b
        start, far = keys_of_queries(p_spans, o_i, diagonal, T, SEGMENTED, BN)
        if KEEPS:
            begin, end = first_keys(p_spans, o_i, start, T, BN)
            b_acc, b_max, b_total = visit_keys(
                b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, begin, end, T, k_strides[2],
                v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E, D, BN,
                PRECISION, IS_FAR=False, IS_EDGE=True, IS_DIAGONAL=False,
            )  # fmt: skip
        b_acc, b_max, b_total = visit_keys(
            b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, start, far, T, k_strides[2],
            v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E, D, BN,
            PRECISION, IS_FAR=False, IS_EDGE=True, IS_DIAGONAL=False,
        )  # fmt: skip
    b_acc, b_max, b_total = visit_keys(
        b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, far, diagonal, T, k_strides[2],
        v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E, D, BN,
        PRECISION, IS_FAR=False, IS_EDGE=False, IS_DIAGONAL=False,
    )  # fmt: skip
    b_acc, b_max, b_total = visit_keys(
        b_acc, b_max, b_total, b_q, p_k, p_v, o_i, i0, diagonal, i0 + BM, T, k_strides[2],
        v_strides[2], scale, p_x, p_y, p_z, p_w, p_spans, KIND, REACH, SEGMENTED, E, D, BN,
        PRECISION, IS_FAR=False, IS_EDGE=p_spans is not None, IS_DIAGONAL=True,
    )  # fmt: skip
    out = b_acc / b_total[:, None]
    tl.store(p_o + o_i[:, None] * out_strides[2] + o_d[None, :], out, mask=m_i)
    p_lse += tl.program_id(1).to(tl.int64) * T
    tl.store(p_lse + o_i, b_max + tl.math.log2(b_total), mask=o_i < T)
