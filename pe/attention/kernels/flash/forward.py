"""The forward kernel of flash attention with a bias that is computed block by block.

    S2 = (scale q k^T + b) log2(e)      P = 2^(S2 - lse)      dS = P (dO v^T - rowsum(dO o))

As in FlashAttention-2 (arXiv:2307.08691), a program holds a block of queries on the chip and visits
blocks of keys. It computes the bias of each block where it needs it. There are seven kinds of bias
(KIND, in `pe.attention.kernels.flash.kinds`), for which the pointers p_x, p_y, p_z and p_w have
different meanings:

    NONE   No bias, no pointers.
    KEYS   b_ij = x_j - x_i, one number per key (FoX, ALiBi). The softmax does not change if all
           logits of a row do by the same amount, so x_j may be taken relative to any number near
           x_i. x, (B or 1, H, T + padding) float32, is x_j minus the x at the start of j's chunk of
           CHUNK keys. y, (B or 1, H, 3, chunks) float64, has the x at the start of each chunk, and
           what `horizon` reads.
    TABLE  b_ij = x[i - j], x (H, T + padding) float32; constant from distance REACH on
           (Sandwich, T5).
    FIRE   b_ij = f(psi(i - j) / N_i), where f is piecewise linear and psi(n) = ln(1 + y n).
           x, (H, K + 1, 2) float32, has height and slope of each of f's pieces, in terms of an
           argument that is smaller by 1/2. y is (1,). z, (T + padding,), is the number of pieces
           over N_i. w, (H, query blocks, key blocks) int32, says in which piece a far block lies
           (`pe.attention.kernels.flash.piecewise_linear.lines`).
    LOGARITHM, POWER
           b_ij = -x0 log2(1 + x1 (i - j)) or -x0 (i - j)^x1, x (H, 2) float32 (KERPLE). Computing
           this is faster than reading a table.
    ROWS   b_ij = x_i[i - j], a table for each query; x (B, H, T, REACH), float32 or bfloat16. From
           distance REACH on b_ij is 0 (relative_content).

Everything is in base 2: x, f and POWER's x0 are multiplied by log2(e), and FIRE's z by ln(2). An
array that is read by distance has `PADDING` entries before distance 0 and after the last distance.
Queries and keys may be wider than values. If keys beyond the horizon are skipped, z is the horizon,
(B, H) float32; kinds that skip them do not use z otherwise.

B batch, H query heads, G query heads per key head, T tokens, E query width, D value width. A
program has BM queries and visits BN keys at a time; in the backward pass it may have keys and visit
queries. Names: ``p_`` pointer, ``b_`` block, ``o_`` offset, ``m_`` mask, ``i_`` program index; i0
and j0 are the first query and key of a block. Strides are tuples of (batch, head, token) unless
stated otherwise.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import log2, read, read_bfloat16, read_two
from pe.attention.kernels.flash.horizon import first_key
from pe.attention.kernels.flash.kinds import CHUNK, FIRE, KEYS, LOGARITHM, POWER, ROWS, TABLE
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
    """Return x[i - j], (BM, BN), or its transpose.

    Addresses are computed in 64 bits, because then those of a thread differ by constants.
    """
    rows = p_x.to(tl.int64) + o_i.to(tl.int64) * 4
    keys = o_j.to(tl.int64) * 4
    return read(rows[None, :] - keys[:, None] if IS_TRANSPOSED else rows[:, None] - keys[None, :])


@triton.jit
def of_rows(p_x, o_i, o_j, T, REACH: tl.constexpr, IS_TRANSPOSED: tl.constexpr):
    """Return x_i[i - j], and 0 where i - j is not in [0, REACH); (BM, BN), or its transpose.

    Queries from T on get the numbers of the last query.
    """
    o_r = tl.minimum(o_i, T - 1).to(tl.int64) * REACH
    if IS_TRANSPOSED:
        distance, first = o_i[None, :] - o_j[:, None], o_r[None, :]
    else:
        distance, first = o_i[:, None] - o_j[None, :], o_r[:, None]
    near = (distance >= 0) & (distance < REACH)
    entry = first + tl.where(near, distance, 0)
    if p_x.dtype.element_ty == tl.bfloat16:
        value = read_bfloat16(p_x.to(tl.int64) + entry * 2)
    else:
        value = read(p_x.to(tl.int64) + entry * 4)
    return tl.where(near, value, 0.0)


@triton.jit
def distances(o_i, o_j, IS_TRANSPOSED: tl.constexpr, IS_DIAGONAL: tl.constexpr):
    """Return i - j in float32, (BM, BN), or its transpose.

    A difference of floats is faster than the conversion of a difference of integers. With
    IS_DIAGONAL some keys are ahead of some queries, and the result is 0 there.
    """
    o_i, o_j = o_i.to(tl.float32), o_j.to(tl.float32)
    distance = o_i[None, :] - o_j[:, None] if IS_TRANSPOSED else o_i[:, None] - o_j[None, :]
    return tl.maximum(distance, 0.0) if IS_DIAGONAL else distance


@triton.jit
def add_fire(b_s, o_i, o_j, p_x, p_y, p_z, IS_TRANSPOSED: tl.constexpr, IS_DIAGONAL: tl.constexpr):
    """Add FIRE's bias; the piece of f is looked up for every score."""
    rows = tl.load(p_z + o_i)
    inner = 1.0 + tl.load(p_y) * distances(o_i, o_j, IS_TRANSPOSED, IS_DIAGONAL)
    offset = log2(inner) * (rows[None, :] if IS_TRANSPOSED else rows[:, None]) - 0.5
    # Adding 1.5 * 2^23 leaves no bits after the point, which rounds without a conversion.
    cell = (offset + 12582912.0).to(tl.int32, bitcast=True).to(tl.int64)
    height, slope = read_two(p_x.to(tl.int64) + (cell - 0x4B400000) * 8)
    b_s += height
    b_s += slope * offset
    return b_s


@triton.jit
def add_fire_line(b_s, o_i, o_j, i0, j0, piece, p_x, p_y, p_z, IS_TRANSPOSED: tl.constexpr):
    """Add FIRE's bias to a far block that lies within one piece of f, as a line along each row."""
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
    b_s, o_i, o_j, i0, j0, T, b_aux, p_x, p_y, p_z, KIND: tl.constexpr, REACH: tl.constexpr,
    IS_FAR: tl.constexpr, IS_DIAGONAL: tl.constexpr, IS_TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Add the bias to a block of logits in base 2.

    Args:
        b_s: logits, (BM, BN), or IS_TRANSPOSED.
        b_aux: what `load_aux` returned.
        IS_FAR: the block is so far away that the bias is constant (TABLE), 0 (ROWS) or linear.
        IS_DIAGONAL: some keys are ahead of some queries.
    """
    if KIND == KEYS:
        shift = (tl.load(p_y + j0 // CHUNK) - tl.load(p_y + i0 // CHUNK)).to(tl.float32)
        keys = b_aux + shift
        b_s += keys[:, None] if IS_TRANSPOSED else keys[None, :]
    elif KIND == TABLE:
        if IS_FAR:
            b_s += tl.load(p_x + REACH)
        else:
            b_s += at_distance(p_x, o_i, o_j, IS_TRANSPOSED)
    elif KIND == ROWS:
        if not IS_FAR:
            b_s += of_rows(p_x, o_i, o_j, T, REACH, IS_TRANSPOSED)
    elif KIND == FIRE and IS_FAR:
        if b_aux >= 0:
            b_s = add_fire_line(b_s, o_i, o_j, i0, j0, b_aux, p_x, p_y, p_z, IS_TRANSPOSED)
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
def load_aux(p_x, p_w, o_j, i_block, KIND: tl.constexpr, IS_FAR: tl.constexpr):
    """Load what `add_bias` needs of a block, before the product of queries and keys.

    For KEYS it is the x of the keys, and for far blocks of FIRE the piece of f, or -1. Other kinds
    need nothing, and get the offsets of the keys.
    """
    if KIND == KEYS:
        b_aux = tl.load(p_x + o_j)
    elif KIND == FIRE and IS_FAR:
        b_aux = tl.load(p_w + i_block)
    else:
        b_aux = o_j
    return b_aux


@triton.jit
def far_from(p_x, KIND: tl.constexpr, REACH: tl.constexpr, SIDE: tl.constexpr):
    """Return the distance from which on blocks have their own loop, in which IS_FAR holds."""
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
    """Update the online softmax with the key blocks from ``start`` to ``stop``.

    Args:
        b_acc: (BM, D), the sum of weighted values so far. b_max, b_total: (BM,), the largest logit
            and the sum of weights so far.
        p_k, p_v, p_x, p_y, p_w: already those of this head. k_t, v_t: strides by token.
        IS_FAR, IS_DIAGONAL: as in `add_bias`.
        IS_EDGE: some of these keys are hidden from some of the queries (`spans`).
    """
    o_e, o_d = tl.arange(0, E), tl.arange(0, D)
    for j0 in tl.range(start, stop, BN):
        o_j = j0 + tl.arange(0, BN)
        if IS_DIAGONAL:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None], mask=o_j[None, :] < T, other=0.0)
        else:
            b_k = tl.load(p_k + o_j[None, :] * k_t + o_e[:, None])
        b_s = tl.dot(b_q, b_k, input_precision=PRECISION) * scale
        b_aux = load_aux(p_x, p_w, o_j, j0 // BN, KIND, IS_FAR)
        b_s = add_bias(
            b_s, o_i, o_j, i0, j0, T, b_aux, p_x, p_y, p_z, KIND, REACH, IS_FAR, IS_DIAGONAL,
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
    """Return the sink of a head as a logit per query, (BM,).

    For KEYS the logits of a query are too large by its own x, so the sink's logit is raised by it.
    """
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
    """Compute the output of one block of queries of one head, and the logsumexp of its logits.

    Args:
        p_q: (B, H, T, E). p_k: (B, H / G, T, E). p_v: (B, H / G, T, D). All have the same type, 16
            bits or float32.
        p_o: (B, H, T, D), the output, written.
        p_lse: (B, H, T) float32, contiguous, the logsumexp in base 2, written.
        p_x, p_y, p_z, p_w: of the bias, see the top of this file. x_strides, y_strides: of (batch,
            head). w_strides: of (head, query block).
        scale: of the logits, times log2(e).
        USES_HORIZON: keys beyond the horizon p_z are skipped. USES_LINES: far blocks are linear.
        p_spans, KEEPS, SEGMENTED: which keys are visible (`pe.attention.kernels.flash.spans`), with
            spans_b, the stride by batch. Without a window they are None, False, False and None.
            They exclude USES_HORIZON and USES_LINES, and REACH has no loop of its own then.
        p_sink: (H,) float32, one more logit per head, times log2(e); or None.
    """
    i_block = tl.num_programs(0) - 1 - tl.program_id(0)  # blocks with the most keys start first
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
    diagonal = (i0 // BN) * BN  # key blocks before this one are seen by all queries of the block
    far = 0
    if USES_HORIZON:
        far = first_key(p_x, p_y, tl.load(p_z + tl.program_id(1)), i0, T, KIND)
    if (REACH > 0 or USES_LINES) and p_spans is None:
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
