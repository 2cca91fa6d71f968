"""Bias specs: what a kernel needs to compute a bias block by block, without the whole matrix.

An encoding returns a bias spec from `Encoding.bias_form` if its bias follows from one number per
key (`by_key`), one per distance (`by_distance`), one per query and distance (`by_query`), a
logarithm or power of the distance, one vector per count of keys (CoPE), a network of FIRE or DAPE,
the logits alone (stick-breaking), or a reflection per key (PaTH). All numbers are float32 or
float64, whatever the dtype of the queries, but those of `by_query` may be bfloat16.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, pad, softplus

from pe.encodings.core.reflections import reflect

LOG2E = 1.0 / math.log(2.0)
# One statement each, so that a new kind leaves the hashes of the other encodings as they are.
NONE = 0
KEYS = 1
TABLE = 2
FIRE = 3
COUNTS = 4
LOGARITHM = 5
POWER = 6
ROWS = 7
HEADS = 8
STICKS = 9
REFLECTED = 10
"""The kinds of bias. `pe.attention.kernels.flash.forward` describes them, `.cope` COUNTS, `.dape`
HEADS, `.stickbreaking` STICKS and `.path` REFLECTED."""
CHUNK = 128
"""Number of keys whose values are stored relative to the same number, the longest block."""
PADDING = 256
"""Padding of tables by distance (both sides) and by key (the end): blocks may reach beyond."""


class Form(NamedTuple):
    """A bias spec, the input of the kernels; see `pe.attention.kernels.flash.op`."""

    kind: int = NONE
    own: Tensor | None = None
    parts: tuple[Tensor, ...] = ()
    reach: int = 0


def by_key(total: Tensor) -> Form:
    """Return the spec of b(m, n) = x_n - x_m for x = ``total``, (B or 1, H, T) float64.

    Only differences within a chunk are rounded, so the error does not grow with the position.
    x_n alone gets a gradient; that of x_m is 0. The part (B or 1, H, 3, chunks) holds the first x
    of each chunk, the largest x up to its end and the smallest x from its beginning.
    """
    length = total.shape[-1]
    total = total * LOG2E
    fixed = total.detach()
    anchors = fixed[..., ::CHUNK]
    inside = total - anchors.repeat_interleave(CHUNK, -1)[..., :length]
    missing = -length % CHUNK
    highest = pad(fixed, (0, missing), value=-math.inf).unflatten(-1, (-1, CHUNK)).amax(-1)
    lowest = pad(fixed, (0, missing), value=math.inf).unflatten(-1, (-1, CHUNK)).amin(-1)
    highest = highest.cummax(-1).values
    lowest = lowest.flip(-1).cummin(-1).values.flip(-1)
    part = pad(torch.stack((anchors, highest, lowest), -2), (0, PADDING // CHUNK)).contiguous()
    return Form(KEYS, pad(inside.float(), (0, PADDING)), (part,))


def by_distance(table: Tensor, reach: int | None = None) -> Form:
    """Return the spec of b(m, n) = table[h, m - n] for a table (H, T).

    The bias is constant from distance ``reach`` on.
    """
    own = pad(table.float() * LOG2E, (PADDING, PADDING))
    return Form(TABLE, own, (), reach if reach is not None and reach < table.shape[-1] else 0)


def by_query(weights: Tensor, vectors: Tensor) -> Form:
    """Return the spec of b(m, n) = weights[h, m] . vectors[:, m - n]; 0 from distance W on.

    Args:
        weights: (B, H, T, R). If it is bfloat16, so are the products of each query with all
            vectors, (B, H, T, W), which kernels read; otherwise they are float32.
        vectors: (R, W).
    """
    if weights.dtype != torch.bfloat16:
        weights = weights.float()
    rows = weights @ (vectors.float() * LOG2E).to(weights.dtype)
    return Form(ROWS, rows.contiguous(), (), vectors.shape[-1])


def by_logarithm(strength: Tensor, steepness: Tensor) -> Form:
    """Return the spec of b(m, n) = -strength ln(1 + steepness (m - n)); both are positive, (H,)."""
    return Form(LOGARITHM, torch.stack((strength.float(), steepness.float()), -1))


def by_power(strength: Tensor, exponent: Tensor) -> Form:
    """Return the spec of b(m, n) = -strength (m - n)^exponent; both are positive, (H,)."""
    return Form(POWER, torch.stack((strength.float() * LOG2E, exponent.float()), -1))


def by_count(table: Tensor) -> Form:
    """Return the spec of b(m, n) = q_m . table[c_mn] for a table (rows, D).


    Between its rows the table is linearly interpolated. c_mn is the sum of the gates of query m
    from key n up to m, at most rows - 1. Gates are sigmoids of the logits, so queries and keys must
    be neither rotated nor scaled in between.
    """
    return Form(COUNTS, table.float().contiguous())


def by_heads(table: Tensor, weight: Tensor, offset: Tensor, head_weight: Tensor) -> Form:
    """Return the spec of b + f([z, b]) for the logits z and biases b of all heads (DAPE).

    b(m, n) = table[h, m - n] for a table (H, T). f has U hidden units with ``weight`` (U, 2H),
    ``offset`` (U,) and leaky_relu, and ``head_weight`` (H, U) for the heads. z is computed from
    queries and keys as the kernel gets them.
    """
    network = weight, offset, head_weight
    return Form(HEADS, table.float().contiguous(), tuple(x.float().contiguous() for x in network))


def by_sticks(attend_current: bool) -> Form:
    """Return the spec of stick-breaking weights, with the sink of logit 0 that belongs to them.

    Queries and keys must be neither rotated nor scaled in between. ``reach`` is the distance of the
    nearest key that counts.
    """
    return Form(STICKS, reach=0 if attend_current else 1)


def by_reflections(state: Tensor) -> Form:
    """Return the spec of PaTH's bias for w and beta of each key, ``state`` (B, H, T, D + 1).

    It belongs to logits divided by sqrt(D), of queries and keys that are not rotated.
    """
    return Form(REFLECTED, state.float())


def fire(
    c: Tensor,
    multiplier: Tensor,
    weight: Tensor,
    offset: Tensor,
    head_weight: Tensor,
    head_offset: Tensor,
    threshold: float,
    eps: float,
    length: int,
    knots: int = 4096,
) -> Form:
    """Return the spec of FIRE's bias (`pe.encodings.fire`), with f as a table between ``knots``.

    The network f has U hidden units with ``weight`` (U, 1) and ``offset`` (U,), and ``head_weight``
    (H, U) and ``head_offset`` (H,) for the heads. f is piecewise linear with U corners. Linear
    interpolation between K knots is exact except in cells that hold a corner. The error there is at
    most a quarter of the cell's width times the change of slope:
    max |f - f_K| <= max_u |head_weight_u weight_u| / 4K if no cell holds two corners.
    """
    device = c.device
    with torch.no_grad():
        at = torch.arange(knots + 1, device=device, dtype=torch.float64) / knots
        w, o = weight.double().flatten(), offset.double()
        heights = head_weight.double() @ (w[:, None] * at + o[:, None]).relu()
        values = (heights + head_offset.double()[:, None]) * LOG2E
        rises = values[:, 1:] - values[:, :-1]
        # Linear pieces as functions of u K - 1/2, whose nearest integer is the cell.
        cells = torch.arange(knots, device=device)
        pieces = torch.stack((values[:, :-1] + (0.5 - cells) * rises, rises), -1).float()
        # One more cell on each side, in case rounding leads there.
        pieces = torch.cat((pieces[:, :1], pieces, pieces[:, -1:]), 1)
        # The gradients depend on the signs of c and m, because psi(x) = ln(1 + |c x|).
        distance = torch.arange(length + PADDING, device=device, dtype=torch.float64)
        steep, sign = c.double().abs(), c.double().sign()
        by_c = pad((sign * distance / (1 + steep * distance)).float(), (PADDING, 0))
        bound = (multiplier.double() * threshold).abs()
        reach = torch.maximum(distance, bound)
        whole = (steep * reach).log1p() + eps
        rows = (knots * math.log(2.0) / whole).float()
        rows_c = (sign * reach / (1 + steep * reach)).float()
        # half of the gradient if both are equal, as in torch.maximum
        part = (distance < bound) + 0.5 * (distance == bound)
        moved = part * multiplier.double().sign() * threshold
        rows_m = (steep * moved / (1 + steep * reach)).float()
        breaks = torch.where(w == 0, torch.where(o > 0, -math.inf, math.inf), -o / w).float()
        breaks = pad(breaks, (0, 1), value=-math.inf)  # the last lies below every input
    # f is the sum of the units that are above their corner, or below it if their weight is < 0.
    heights = head_weight * offset + 0.0 * head_offset[:, None]
    own = torch.cat(
        (heights, head_weight * weight.flatten(), (c + 0 * multiplier).expand(len(head_weight), 1),
         multiplier.expand(len(head_weight), 1)), dim=-1,
    ).float()  # fmt: skip
    slopes = own.detach()[:, len(w) : 2 * len(w)]
    return Form(
        FIRE,
        own,
        (pieces, steep.reshape(1).float(), rows, breaks, by_c, rows_c, rows_m, w >= 0, slopes),
    )


def matrix(form: Form, length: int, q: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Return the bias of a bias spec, (1 or B, H, T, T) float32: the reference for kernels.

    The values of keys ahead of a query have no meaning. KEYS is determined up to a constant per
    row, which is chosen so that each token has 0 for itself. COUNTS and the kinds from HEADS on
    need ``q`` (B, H, T, D) and ``k`` (B, K, T, D).
    """
    if form.kind == STICKS:
        assert q is not None
        assert k is not None
        return _broken_off(form.reach, q.float(), k.float())
    assert form.own is not None
    if form.kind == COUNTS:
        assert q is not None
        assert k is not None
        return _counted(form.own, q.float(), k.float())
    if form.kind == REFLECTED:
        assert q is not None
        assert k is not None
        bias: Tensor = reflect(q.float(), k.float(), form.own, None)
        return bias
    position = torch.arange(length, device=form.own.device)
    distance = (position[:, None] - position).clamp(min=0)
    if form.kind == HEADS:
        assert q is not None
        assert k is not None
        return _corrected(form.own[:, distance], q.float(), k.float(), *form.parts)
    if form.kind == KEYS:
        anchors = form.parts[0][..., 0, position // CHUNK]
        inside = form.own[..., :length].double()
        total = anchors + inside
        return ((total[..., None, :] - total[..., :, None]) / LOG2E).float()
    if form.kind == TABLE:
        reached = distance.clamp(max=form.reach) if form.reach else distance
        return (form.own[:, PADDING:][:, reached] / LOG2E)[None]
    if form.kind == ROWS:
        near = distance.clamp(max=form.reach - 1).expand(*form.own.shape[:2], -1, -1)
        return form.own.float().gather(-1, near).masked_fill(distance >= form.reach, 0.0) / LOG2E
    if form.kind in (LOGARITHM, POWER):
        first, second = form.own[..., None, None].unbind(1)
        far = distance.float()
        value = (1 + second * far).log2() if form.kind == LOGARITHM else far**second
        return (-first * value / LOG2E)[None]
    pieces, steep, rows = form.parts[:3]
    at = (1 + steep * distance).log2() * rows[:length, None]
    here = pieces[:, at.long() + 1]
    return ((here[..., 0] + here[..., 1] * (at - 0.5)) / LOG2E)[None]


def _counted(table: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return the bias of COUNTS; a row of the table has weight max(0, 1 - |row - count|)."""
    logits = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    gates = (logits / math.sqrt(q.shape[-1])).sigmoid().tril()
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(table) - 1)
    rows = torch.arange(len(table), device=q.device)
    weights = (1 - (counts[..., None] - rows).abs()).clamp(min=0)
    return torch.einsum("bhid,nd,bhijn->bhij", q, table, weights)


def _corrected(
    bias: Tensor, q: Tensor, k: Tensor, weight: Tensor, offset: Tensor, head_weight: Tensor
) -> Tensor:
    """Return the bias of HEADS, given b (H, T, T)."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    both = torch.cat((logits, bias.expand_as(logits)), 1)
    units = torch.einsum("uh,bhij->buij", weight, both) + offset[:, None, None]
    return bias + torch.einsum("hu,buij->bhij", head_weight, leaky_relu(units))


def _broken_off(nearest: int, q: Tensor, k: Tensor) -> Tensor:
    """Return the bias of STICKS, as `pe.encodings.stickbreaking` gives it."""
    logits = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    broken = softplus(logits / math.sqrt(q.shape[-1])).tril(-nearest)
    sums = broken.flip(-1).cumsum(-1).flip(-1)
    bias = sums[..., :1].clamp(max=40.0) - sums
    own = torch.eye(q.shape[-2], dtype=torch.bool, device=q.device)
    return bias.masked_fill(own, -1e4) if nearest else bias
