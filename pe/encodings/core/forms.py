"""What a bias is made of, where it is less than a matrix.

An encoding whose bias follows from one number per key (`KeyBias`), one per distance
(`DistanceBias`), one vector a count of keys (CoPE), or FIRE's network says so in
`Encoding.bias_form`, and a kernel makes each block of the matrix where it is needed. Everything
here is float32 or float64, whatever the queries are.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

LOG2E = 1.0 / math.log(2.0)
NONE, KEYS, TABLE, FIRE, COUNTS, LOGARITHM, POWER = 0, 1, 2, 3, 4, 5, 6
"""The kinds of bias; `pe.attention.kernels.flash.forward` says what each is, and `.cope` COUNTS."""
CHUNK = 128
"""Keys that are measured from one number; no block of a kernel is longer."""
PADDING = 256
"""Entries around what is read by distance, and after what is read by place: blocks stick out."""


class Form(NamedTuple):
    """What the kernels are handed; see `pe.attention.kernels.flash.op`."""

    kind: int = NONE
    own: Tensor | None = None
    parts: tuple[Tensor, ...] = ()
    reach: int = 0


def by_key(total: Tensor) -> Form:
    """b(i, j) = x_j - x_i for x = ``total``, (B or 1, H, T) float64.

    Only differences are ever rounded, so neighbours far into a text still differ by what they
    should. A gradient goes to x_j alone: that of x_i is 0. The part (B or 1, H, 3, chunks) has
    each chunk's first x, the largest x up to its end and the smallest from its beginning on.
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
    """b(i, j) = table[h, i - j], (H, T); constant from distance ``reach`` on."""
    own = pad(table.float() * LOG2E, (PADDING, PADDING))
    return Form(TABLE, own, (), reach if reach is not None and reach < table.shape[-1] else 0)


def by_logarithm(strength: Tensor, steepness: Tensor) -> Form:
    """b(i, j) = -strength ln(1 + steepness (i - j)), two numbers (H,) that are positive."""
    return Form(LOGARITHM, torch.stack((strength.float(), steepness.float()), -1))


def by_power(strength: Tensor, exponent: Tensor) -> Form:
    """b(i, j) = -strength (i - j)^exponent, two numbers (H,) that are positive."""
    return Form(POWER, torch.stack((strength.float() * LOG2E, exponent.float()), -1))


def by_count(table: Tensor) -> Form:
    """b(i, j) = q_i . table[c_ij], (rows, D): c_ij the gates of i from j on, at most rows - 1.

    Gates are sigmoids of the logits, so this holds for queries and keys that nothing turns or
    scales in between.
    """
    return Form(COUNTS, table.float().contiguous())


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
    """FIRE's bias (`pe.encodings.fire`): U units of ``weight`` and ``offset``, (H, U) to the heads.

    f is a broken line with U corners. Read between K knots it is exact but in the cells that hold
    a corner, and there off by at most a quarter of the cell times the change of slope:
    max |f - f_K| <= max_u |head_weight_u weight_u| / 4K for corners in cells of their own.
    """
    device = c.device
    with torch.no_grad():
        at = torch.arange(knots + 1, device=device, dtype=torch.float64) / knots
        w, o = weight.double().flatten(), offset.double()
        heights = head_weight.double() @ (w[:, None] * at + o[:, None]).relu()
        values = (heights + head_offset.double()[:, None]) * LOG2E
        rises = values[:, 1:] - values[:, :-1]
        # Straight pieces over places less 1/2, whose nearest whole number is the cell.
        cells = torch.arange(knots, device=device)
        pieces = torch.stack((values[:, :-1] + (0.5 - cells) * rises, rises), -1).float()
        # One more on either side, for places that rounding puts there
        pieces = torch.cat((pieces[:, :1], pieces, pieces[:, -1:]), 1)
        # c and m enter with their signs: psi(x) = ln(1 + |c x|)
        distance = torch.arange(length + PADDING, device=device, dtype=torch.float64)
        steep, sign = c.double().abs(), c.double().sign()
        by_c = pad((sign * distance / (1 + steep * distance)).float(), (PADDING, 0))
        bound = (multiplier.double() * threshold).abs()
        reach = torch.maximum(distance, bound)
        whole = (steep * reach).log1p() + eps
        rows = (knots * math.log(2.0) / whole).float()
        rows_c = (sign * reach / (1 + steep * reach)).float()
        # half where both are equal, as torch.maximum has it
        part = (distance < bound) + 0.5 * (distance == bound)
        moved = part * multiplier.double().sign() * threshold
        rows_m = (steep * moved / (1 + steep * reach)).float()
        breaks = torch.where(w == 0, torch.where(o > 0, -math.inf, math.inf), -o / w).float()
        breaks = pad(breaks, (0, 1), value=-math.inf)  # and one below which there is nothing
    # f = sum of units that are above their corner, or below it where they fall.
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
    """The bias that ``form`` stands for, (1 or B, H, T, T) float32: what a kernel must compute.

    Keys ahead of a query get whatever there is; they are masked. KEYS is given up to what a row has
    in common, here with 0 for the token itself. COUNTS needs (B, H, T, D) and (B, K, T, D).
    """
    assert form.own is not None
    if form.kind == COUNTS:
        assert q is not None
        assert k is not None
        return _counted(form.own, q.float(), k.float())
    position = torch.arange(length, device=form.own.device)
    distance = (position[:, None] - position).clamp(min=0)
    if form.kind == KEYS:
        anchors = form.parts[0][..., 0, position // CHUNK]
        inside = form.own[..., :length].double()
        total = anchors + inside
        return ((total[..., None, :] - total[..., :, None]) / LOG2E).float()
    if form.kind == TABLE:
        reached = distance.clamp(max=form.reach) if form.reach else distance
        return (form.own[:, PADDING:][:, reached] / LOG2E)[None]
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
    """COUNTS, read between rows by weights that are 0 from a distance of 1 on."""
    logits = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).transpose(-1, -2)
    gates = (logits / math.sqrt(q.shape[-1])).sigmoid().tril()
    counts = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=len(table) - 1)
    rows = torch.arange(len(table), device=q.device)
    weights = (1 - (counts[..., None] - rows).abs()).clamp(min=0)
    return torch.einsum("bhid,nd,bhijn->bhij", q, table, weights)
