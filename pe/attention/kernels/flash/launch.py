"""Run the kernels: shapes and strides in, tensors out. No autograd; `ops` adds that.

q (B, H, T, E), k (B, K, T, E), v (B, K, T, D); ``own`` and ``parts`` as `ops` has them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from pe.attention.kernels.flash import backward as gradients
from pe.attention.kernels.flash import forward as flash
from pe.attention.kernels.flash import learned
from pe.attention.kernels.flash.blocks import Blocks, Plan, plan_for
from pe.attention.kernels.flash.horizon import horizon, skips_underflowed
from pe.attention.kernels.flash.straight import LONG, SHARE, lines, order_of, straightens
from pe.attention.kernels.flash.sums import by_distance, by_unit
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.encodings.core.forms import FIRE, KEYS, LOGARITHM, NONE, PADDING, POWER, TABLE

LN2 = math.log(2.0)
PROGRAMS, SHARED = 1024, 2048
"""Programs that the gradient of FIRE's network is spread over, at most, and that of a table."""


class _Bias:
    """What the kernels are told about the bias."""

    def __init__(
        self, kind: int, q: Tensor, own: Tensor | None, parts: list[Tensor], beyond: Tensor
    ) -> None:
        self.knots, self.strides = 1, [0, 0, 0, 0]
        x = y = q  # of kinds that have none, never read
        z = beyond
        if kind == NONE:
            pass
        elif own is None:
            raise ValueError("own: a bias has numbers of its own")
        elif kind == KEYS:
            x, y = own, parts[0]
            self.strides = [_step(x), x.stride(1), _step(y), y.stride(1)]
        elif kind == TABLE:
            x = own[:, PADDING:]  # distance 0
            self.strides[1] = x.stride(0)
        elif kind == FIRE:
            x, y, z = parts[0][:, 1:], *parts[1:3]  # the first cell
            self.knots, self.strides[1] = x.shape[1] - 1, x.stride(0)
        elif kind in (LOGARITHM, POWER):
            x = own
            self.strides[1] = x.stride(0)
        self.tensors = x, y, z


def _straight(kind: int, q: Tensor, plan: Plan, long: int) -> bool:
    """Whether far blocks take lines; two kernels share FIRE's, and then have to cut alike."""
    alike = plan.keys.queries == plan.keys.keys == plan.table.queries
    return straightens(kind, q.dtype, q.shape[2], long) and (kind != FIRE or alike)


def _lines(
    kind: int, straight: bool, q: Tensor, parts: list[Tensor], b: Blocks, turned: bool = False
) -> Tensor:
    """Which of FIRE's blocks take lines; of other kinds nothing that is read."""
    if kind != FIRE or not straight:
        return torch.empty(0, 0, 0, dtype=torch.int32, device=q.device)
    return lines(parts, q.shape[2], b.queries, b.keys, turned)


class _Network:
    """What the gradient of FIRE's network is made from; of other kinds nothing that is read."""

    def __init__(
        self, kind: int, q: Tensor, parts: list[Tensor], found: Tensor, beyond: int
    ) -> None:
        self.units = parts[3].shape[0] if kind == FIRE else 1
        self.places = 2 ** (self.units - 1).bit_length()
        self.order = order_of(found, beyond) if found.numel() else found
        sizes = q.shape[0], q.shape[1], found.shape[-1], 4, self.places
        self.far = q.new_empty(sizes, dtype=torch.float32)
        own = (parts[3], parts[4][PADDING:], parts[5], parts[6]) if kind == FIRE else (q,) * 4
        self.tensors = (*own, self.far)


def _step(x: Tensor) -> int:
    return 0 if x.shape[0] == 1 else x.stride(0)


def _precision(q: Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    kind: int,
    own: Tensor | None,
    parts: list[Tensor],
    reach: int,
    least: int | None = None,
    long: int = LONG,
) -> tuple[Tensor, Tensor, Tensor]:
    """o (B, H, T, D), lse (B, H, T) in base 2, and the horizon (B, H), empty where none is used.

    Keys beyond it are skipped in sequences of ``least`` tokens and more (None: `horizon.LEAST`);
    FIRE takes lines in sequences of ``long`` and more.
    """
    q, k, v = contiguous_last_dim(q), contiguous_last_dim(k), contiguous_last_dim(v)
    batch, heads, length, width = q.shape
    out = tokens_first(q, v.shape[-1])
    lse = q.new_empty(batch, heads, length, dtype=torch.float32)
    leaves = skips_underflowed(kind, length, least)
    beyond = horizon(q, k, scale) if leaves else lse.new_empty(0)
    bias = _Bias(kind, q, own, parts, beyond)
    whole = plan_for(width, v.shape[-1], kind, reach)
    plan = whole.forward
    straight = _straight(kind, q, whole, long)
    w = _lines(kind, straight, q, parts, plan)
    flash.forward[(-(-length // plan.queries), batch * heads)](
        q, k, v, out, lse, *bias.tensors, w, length, heads, heads // k.shape[1], scale / LN2,
        *strides_of(q), *strides_of(k), *strides_of(v), *strides_of(out), *bias.strides,
        *w.stride()[:2], KIND=kind, REACH=reach, LEAVES=leaves, STRAIGHT=straight, E=width,
        D=v.shape[-1], BM=plan.queries, BN=plan.keys, PRECISION=_precision(q), **plan.options(),
    )  # fmt: skip
    return out, lse, beyond


def backward(
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    beyond: Tensor,
    scale: float,
    kind: int,
    own: Tensor | None,
    parts: list[Tensor],
    reach: int,
    learns: bool,
    long: int = LONG,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and the gradient of ``own``, empty unless ``learns``."""
    q, k, v, gradient = (
        contiguous_last_dim(q),
        contiguous_last_dim(k),
        contiguous_last_dim(v),
        contiguous_last_dim(gradient),
    )
    batch, heads, length, width = q.shape
    key_heads, value_width = k.shape[1], v.shape[-1]
    groups = heads // key_heads
    plan = plan_for(width, value_width, kind, reach)
    bias, leaves = _Bias(kind, q, own, parts, beyond), beyond.numel() > 0
    straight = _straight(kind, q, plan, long)
    sums = torch.empty_like(lse)
    inputs = (q, k, v, gradient, lse, sums, *bias.tensors)
    strides = (*strides_of(q), *strides_of(k), *strides_of(v), *strides_of(gradient))
    shape: dict[str, Any] = {"KIND": kind, "REACH": reach, "E": width}
    shape |= {"D": value_width, "PRECISION": _precision(q)}
    dq, dk, dv = tokens_first(q, width), tokens_first(k, width), tokens_first(v, value_width)
    b = plan.queries
    w = _lines(kind, straight, q, parts, b)
    gradients.by_queries[(-(-length // b.queries), batch * heads)](
        *inputs, w, out, dq, length, heads, groups, scale / LN2, scale, *strides, *bias.strides,
        *w.stride()[:2], *strides_of(out), *strides_of(dq),
        SUMS=learns, LEAVES=leaves, STRAIGHT=straight,
        BM=b.queries, BN=b.keys, **shape, **b.options(),
    )  # fmt: skip
    by_keys = learns and kind in (KEYS, LOGARITHM, POWER)
    sizes = 1 if kind == KEYS else 2, batch, heads, length if by_keys else 0
    by_key = q.new_empty(sizes, dtype=torch.float32)
    b = plan.keys
    w = _lines(kind, straight, q, parts, b, turned=True)
    network = _Network(kind, q, parts, w, SHARE.value + 1)
    gradients.by_keys[(-(-length // b.keys), batch * key_heads)](
        *inputs, w, dk, dv, by_key[0], by_key[-1], network.order, *network.tensors,
        length, heads, groups, scale / LN2, scale, *strides, *bias.strides, *w.stride()[:2],
        *strides_of(dk), *strides_of(dv), SUMS=by_keys, LEAVES=leaves, STRAIGHT=straight,
        BM=b.queries,
        BN=b.keys, **shape,
        UNITS=network.units, KNOTS=bias.knots, PLACES=network.places, **b.options(),
    )  # fmt: skip
    if not learns or own is None:
        return dq, dk, dv, q.new_empty(0, dtype=torch.float32)
    if kind == KEYS:
        dx = by_key[0].sum(0, keepdim=True) if own.shape[0] == 1 else by_key[0]
        return dq, dk, dv, pad(dx * LN2, (0, own.shape[-1] - length))
    if by_keys:
        first, second = by_key.sum((1, 3))
        second = second * own[:, 0] * (LN2 * LN2 if kind == POWER else 1.0)
        return dq, dk, dv, -torch.stack((first * LN2, second), -1)
    b = plan.table
    size = b.queries
    own_arguments = (batch, length, heads, groups, scale / LN2, *strides, bias.strides[1])
    options: dict[str, Any] = {"BM": size} | b.options()
    if kind == FIRE:
        blocks = -(-length // size)
        programs = min(blocks * (blocks + 1) // 2, PROGRAMS)
        found = q.new_empty(heads, programs, 4, network.places, dtype=torch.float32)
        learned.of_network[(programs, heads)](
            *inputs, w, *network.tensors[:-1], found, *own_arguments, *w.stride()[:2],
            network.units, KNOTS=bias.knots, PLACES=network.places, STRAIGHT=straight, **shape,
            **options,
        )  # fmt: skip
        total = found.sum(1) + network.far.sum((0, 2))
        return dq, dk, dv, by_unit(total[..., : network.units], parts[7], parts[8])
    diagonals = -(-length // size)
    if reach:  # what is alike beyond is found without looking
        diagonals = min(diagonals, -(-(reach + size - 1) // size))
    steps = batch * -(-length // size)  # of the longest diagonal
    shares = min(steps, -(-SHARED // (diagonals * heads)))
    tiles = q.new_empty(heads, diagonals, shares, size, size, dtype=torch.float32)
    learned.of_table[(diagonals, shares, heads)](
        *inputs, tiles, *own_arguments, **shape, **options
    )  # fmt: skip
    found = by_distance(tiles.sum(2), own.shape[-1] - PADDING, reach) * LN2
    return dq, dk, dv, pad(found, (PADDING, 0))
