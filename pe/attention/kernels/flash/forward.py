"""Flash attention with a bias that is never a matrix, forward and backward, in Triton.

    S2 = (scale q k^T + b) log2(e)      P = 2^(S2 - lse)      dS = P (dO v^T - rowsum(dO o))

Blocks of queries meet blocks of keys on the chip, as in FlashAttention-2 (arXiv:2307.08691); the
bias of a block is made where the block is, from one of these (`KIND`, numbered as in
`pe.encodings.core.forms`):

    NONE   nothing
    KEYS   b_ij = x_j - x_i, one number a key (FoX, ALiBi). Softmax forgets what a row has in
           common, so x_j is measured from any number near x_i: X holds x_j less the x at the
           beginning of its stretch of 128 keys, Y (float64) the x at the beginning of each, and
           what `horizon` reads.
    TABLE  b_ij = t(i - j), one number a distance, the same from REACH on (Sandwich, T5)
    FIRE   b_ij = f(psi(i - j) / N_i), f straight between knots: X has height and slope of each
           piece, over places that are less by 1/2; psi(n) = ln(1 + Y n), Z the knots over N_i,
           W which piece a far block lies in (`pe.attention.kernels.flash.straight.lines`)
    LOGARITHM, POWER
           b_ij = -x0 log2(1 + x1 (i - j)) or -x0 (i - j)^x1, which costs less than reading (KERPLE)

All in base 2: x, t, f and the power's x0 come multiplied by log2(e), Z by ln(2). What is read by
distance has `PADDING` entries before distance 0 and after the last. Queries and keys may be wider
than values.
B batch, H query heads, G of them to a key head, T tokens, E query width, D value width.
"""

from __future__ import annotations

import triton
import triton.language as tl

from pe.attention.kernels.flash.elementary import log2, read, read_two
from pe.attention.kernels.flash.horizon import first_key
from pe.attention.kernels.flash.straight import (
    REGION,
    SHARE,
    along,
    line_of_fire,
    line_of_log,
    middles,
    straight_from,
)


@triton.jit
def by_distance(X, i, j, TURNED: tl.constexpr):
    """X at i - j. In 64 bits throughout: then the addresses of a thread differ by constants."""
    rows = X.to(tl.int64) + i.to(tl.int64) * 4
    keys = j.to(tl.int64) * 4
    return read(rows[None, :] - keys[:, None] if TURNED else rows[:, None] - keys[None, :])


@triton.jit
def apart(i, j, TURNED: tl.constexpr, DIAGONAL: tl.constexpr):
    """i - j, float32; cheaper as a difference of floats than made one afterwards.

    Where some keys are ahead (DIAGONAL), at least 0.
    """
    i, j = i.to(tl.float32), j.to(tl.float32)
    distance = i[None, :] - j[:, None] if TURNED else i[:, None] - j[None, :]
    return tl.maximum(distance, 0.0) if DIAGONAL else distance


@triton.jit
def add_piece(s, i, j, X, Y, Z, TURNED: tl.constexpr, DIAGONAL: tl.constexpr):
    """FIRE, each score from its own piece of f."""
    rows = tl.load(Z + i)
    inner = 1.0 + tl.load(Y) * apart(i, j, TURNED, DIAGONAL)
    place = log2(inner) * (rows[None, :] if TURNED else rows[:, None]) - 0.5
    # 1.5 * 2^23 leaves no bits behind the point: the nearest whole number without a conversion
    cell = (place + 12582912.0).to(tl.int32, bitcast=True).to(tl.int64)
    height, slope = read_two(X.to(tl.int64) + (cell - 0x4B400000) * 8)
    s += height
    s += slope * place
    return s


@triton.jit
def add_line(s, i, j, i0, j0, piece, X, Y, Z, TURNED: tl.constexpr):
    """FIRE in a block within one piece of f, far away: a line along each row."""
    SIDE: tl.constexpr = s.shape[1]
    middle, by_token = line_of_fire(i, j, i0, j0, Y, Z, TURNED, SIDE)
    X += 2 * (piece % REGION)
    height, slope = tl.load(X), tl.load(X + 1)
    s += (height + slope * (middle - 0.5))[:, None]
    s += (slope * by_token)[:, None] * along(i, j, i0, j0, TURNED, SIDE)[None, :]
    return s


@triton.jit
def add_bias(
    s, i, j, i0, j0, near, X, Y, Z, KIND: tl.constexpr, FAR: tl.constexpr, REACH: tl.constexpr,
    TURNED: tl.constexpr, DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add the bias to a block in base 2: queries i down and keys j across, or TURNED.

    ``near``: X of the keys, which KEYS adds; of FIRE far away the block's piece of f, if it lies in
    one, or -1; anything for other kinds. DIAGONAL: some keys are
    ahead of some queries.
    """
    if KIND == 1:
        shift = (tl.load(Y + j0 // 128) - tl.load(Y + i0 // 128)).to(tl.float32)
        keys = near + shift
        s += keys[:, None] if TURNED else keys[None, :]
    elif KIND == 2:
        if FAR:
            s += tl.load(X + REACH)
        else:
            s += by_distance(X, i, j, TURNED)
    elif KIND == 3 and FAR:
        if near >= 0:
            s = add_line(s, i, j, i0, j0, near, X, Y, Z, TURNED)
        else:
            s = add_piece(s, i, j, X, Y, Z, TURNED, DIAGONAL)
    elif KIND == 3:
        s = add_piece(s, i, j, X, Y, Z, TURNED, DIAGONAL)
    elif KIND == 5 and FAR:
        SIDE: tl.constexpr = s.shape[1]
        middle, place = middles(i, j, i0, j0, TURNED, SIDE)
        value, slope = line_of_log(middle, tl.load(X + 1), SIDE)
        s -= (tl.load(X) * value)[:, None]
        s -= (tl.load(X) * slope)[:, None] * place[None, :]
    elif KIND == 5:
        s -= tl.load(X) * log2(1.0 + tl.load(X + 1) * apart(i, j, TURNED, DIAGONAL))
    elif KIND == 6:
        s -= tl.load(X) * tl.math.exp2(tl.load(X + 1) * log2(apart(i, j, TURNED, DIAGONAL)))
    return s


@triton.jit
def block_of(X, W, j, block, KIND: tl.constexpr, FAR: tl.constexpr):
    """What `add_bias` calls ``near``."""
    if KIND == 1:
        near = tl.load(X + j)
    elif KIND == 3 and FAR:
        near = tl.load(W + block)
    else:
        near = j
    return near


@triton.jit
def simple_from(X, KIND: tl.constexpr, REACH: tl.constexpr, SIDE: tl.constexpr):
    """The distance from which on blocks are worth another loop: alike (REACH), or maybe lines."""
    if REACH > 0:
        distance = tl.full((), REACH - 1, tl.int32)
    elif KIND == 3:
        distance = tl.full((), SHARE * SIDE, tl.int32)
    else:
        distance = straight_from(X, SIDE)
    return distance


@triton.jit
def forward_blocks(
    acc, top, total, q, K, V, i, i0, start, stop, T, k_t, v_t, scale, X, Y, Z, W,
    KIND: tl.constexpr, FAR: tl.constexpr, DIAGONAL: tl.constexpr, REACH: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Take in the key blocks from ``start`` to ``stop``."""
    e, d = tl.arange(0, E), tl.arange(0, D)
    for j0 in tl.range(start, stop, BN):
        j = j0 + tl.arange(0, BN)
        if DIAGONAL:
            k = tl.load(K + j[None, :] * k_t + e[:, None], mask=j[None, :] < T, other=0.0)
        else:
            k = tl.load(K + j[None, :] * k_t + e[:, None])
        s = tl.dot(q, k, input_precision=PRECISION) * scale
        near = block_of(X, W, j, j0 // BN, KIND, FAR)
        s = add_bias(s, i, j, i0, j0, near, X, Y, Z, KIND, FAR, REACH, False, DIAGONAL)
        if DIAGONAL:
            s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        shrink = tl.math.exp2(top - new)
        total = total * shrink + tl.sum(p, 1)
        if DIAGONAL:
            v = tl.load(V + j[:, None] * v_t + d[None, :], mask=j[:, None] < T, other=0.0)
        else:
            v = tl.load(V + j[:, None] * v_t + d[None, :])
        acc = tl.dot(p.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        top = new
    return acc, top, total


@triton.jit
def forward(
    Q, K, V, O, L, X, Y, Z, W, T, H, G, scale,
    q_b, q_h, q_t, k_b, k_h, k_t, v_b, v_h, v_t, o_b, o_h, o_t, x_b, x_h, y_b, y_h, w_h, w_i,
    KIND: tl.constexpr, REACH: tl.constexpr, LEAVES: tl.constexpr, STRAIGHT: tl.constexpr,
    E: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: o and the base-2 logarithm of the softmax's divisor.

    LEAVES out what lies beyond the horizon, Z of (B, H); takes far blocks for STRAIGHT.
    """
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # the long rows first
    b, h = (tl.program_id(1) // H).to(tl.int64), tl.program_id(1) % H
    Q += b * q_b + h * q_h
    K += b * k_b + (h // G) * k_h
    V += b * v_b + (h // G) * v_h
    O += b * o_b + h * o_h
    X += b * x_b + h * x_h
    Y += b * y_b + h * y_h
    W += h * w_h + block * w_i
    i0 = block * BM
    i = i0 + tl.arange(0, BM)
    e, d = tl.arange(0, E), tl.arange(0, D)
    q = tl.load(Q + i[:, None] * q_t + e[None, :], mask=i[:, None] < T, other=0.0)
    acc = tl.zeros((BM, D), tl.float32)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    whole = (i0 // BN) * BN  # key blocks before this lie behind all queries
    far = 0
    if LEAVES:
        far = first_key(X, Y, tl.load(Z + tl.program_id(1)), i0, T, KIND)
    if REACH > 0 or STRAIGHT:
        far = tl.maximum((i0 - simple_from(X, KIND, REACH, BN)) // BN, 0) * BN
        acc, top, total = forward_blocks(
            acc, top, total, q, K, V, i, i0, 0, far, T, k_t, v_t, scale, X, Y, Z, W,
            KIND, True, False, REACH, E, D, BN, PRECISION,
        )  # fmt: skip
    acc, top, total = forward_blocks(
        acc, top, total, q, K, V, i, i0, far, whole, T, k_t, v_t, scale, X, Y, Z, W,
        KIND, False, False, REACH, E, D, BN, PRECISION,
    )  # fmt: skip
    acc, top, total = forward_blocks(
        acc, top, total, q, K, V, i, i0, whole, i0 + BM, T, k_t, v_t, scale, X, Y, Z, W,
        KIND, False, True, REACH, E, D, BN, PRECISION,
    )  # fmt: skip
    out = acc / total[:, None]
    tl.store(O + i[:, None] * o_t + d[None, :], out.to(O.dtype.element_ty), mask=i[:, None] < T)
    tl.store(L + tl.program_id(1).to(tl.int64) * T + i, top + tl.math.log2(total), mask=i < T)
