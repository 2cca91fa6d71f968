"""Launch the kernels of flash attention: allocate outputs, and pass shapes, strides and options.

q is (B, H, T, E), k (B, K, T, E) and v (B, K, T, D). `pe.attention.kernels.flash.op` explains
``kind``, ``own``, ``parts``, ``reach`` and ``sink``, and adds autograd.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad
from triton import cdiv

from pe.attention.kernels.flash import backward as gradients
from pe.attention.kernels.flash import forward as flash
from pe.attention.kernels.flash import learned
from pe.attention.kernels.flash.blocks import Blocks, Plan, plan_for
from pe.attention.kernels.flash.horizon import horizon, skips_underflowed
from pe.attention.kernels.flash.piecewise_linear import (
    LONG,
    MIN_SIDES,
    lines,
    order_of,
    takes_lines,
)
from pe.attention.kernels.flash.sums import by_distance, by_unit
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.encodings.core.forms import (
    FIRE,
    KEYS,
    LOG2E,
    LOGARITHM,
    NONE,
    PADDING,
    POWER,
    ROWS,
    TABLE,
)

LN2 = math.log(2.0)
PROGRAMS, SHARED = 1024, 2048
"""The most programs for the gradient of FIRE's network, and for that of a table."""


class Shown(NamedTuple):
    """Which keys are visible; the fields are those of `pe.attention.spans.Spans`."""

    rows: Tensor | None = None
    keeps: bool = False
    segmented: bool = False
    near: int = 0

    @property
    def stride(self) -> int | None:
        """The stride by batch of ``rows``; None without a window."""
        return None if self.rows is None else _batch_stride(self.rows)


ALL_KEYS = Shown()
"""A query sees all keys before it."""


class _Bias:
    """A bias spec as arguments of the kernels: p_x, p_y and p_z, and strides of (batch, head)."""

    def __init__(
        self, kind: int, q: Tensor, own: Tensor | None, parts: list[Tensor], beyond: Tensor
    ) -> None:
        self.knots = 1
        x_strides = y_strides = (0, 0)
        x = y = q  # a kernel takes a pointer here and reads it for some kinds of bias only
        z = beyond
        if kind == NONE:
            pass
        elif own is None:
            raise ValueError("own: a bias of this kind has parameters; pass them")
        elif kind == KEYS:
            x, y = own, parts[0]
            x_strides, y_strides = ((_batch_stride(t), t.stride(1)) for t in (x, y))
        elif kind == TABLE:
            x = own[:, PADDING:]  # distance 0
            x_strides = 0, x.stride(0)
        elif kind == FIRE:
            x, y, z = parts[0][:, 1:], *parts[1:3]  # x begins with the first piece of f
            self.knots, x_strides = x.shape[1] - 1, (0, x.stride(0))
        elif kind == ROWS:
            x = own
            x_strides = _batch_stride(x), x.stride(1)
        elif kind in (LOGARITHM, POWER):
            x = own
            x_strides = 0, x.stride(0)
        self.tensors = x, y, z
        self.strides = x_strides, y_strides


def _uses_lines(kind: int, q: Tensor, plan: Plan, long: int) -> bool:
    """Return whether the bias of far blocks is computed as lines.

    For FIRE two kernels share the result of `lines`, so they must have blocks of the same size.
    """
    same = plan.keys.queries == plan.keys.keys == plan.table.queries
    return takes_lines(kind, q.dtype, q.shape[2], long) and (kind != FIRE or same)


def _pieces(
    kind: int, linear: bool, q: Tensor, parts: list[Tensor], b: Blocks, transposed: bool = False
) -> Tensor:
    """Return p_w of FIRE: the piece of f of each block (`lines`); empty if it is not read."""
    if kind != FIRE or not linear:
        return torch.empty(0, 0, 0, dtype=torch.int32, device=q.device)
    return lines(parts, q.shape[2], b.queries, b.keys, transposed)


class _Network:
    """Arguments for the gradient of FIRE's network, which kernels of other biases do not read."""

    def __init__(
        self, kind: int, q: Tensor, parts: list[Tensor], pieces: Tensor, beyond: int
    ) -> None:
        self.units = parts[3].shape[0] if kind == FIRE else 1
        self.padded = 2 ** (self.units - 1).bit_length()
        self.order = order_of(pieces, beyond) if pieces.numel() else pieces
        sizes = q.shape[0], q.shape[1], pieces.shape[-1], 4, self.padded
        self.far = q.new_empty(sizes, dtype=torch.float32)
        own = (parts[3], parts[4][PADDING:], parts[5], parts[6]) if kind == FIRE else (q,) * 4
        self.tensors = (*own, self.far)


def _batch_stride(x: Tensor) -> int:
    return 0 if x.shape[0] == 1 else x.stride(0)


def _in_base_2(sink: Tensor | None) -> Tensor | None:
    return None if sink is None else (sink.float() * LOG2E).contiguous()


def _precision(q: Tensor) -> str:
    return "ieee" if q.dtype == torch.float32 else "tf32"


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, kind: int, own: Tensor | None,
    parts: list[Tensor], reach: int, least: int | None = None, long: int = LONG,
    shown: Shown = ALL_KEYS, sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute attention.

    Args:
        least: skip keys beyond the horizon in sequences of at least so many tokens; None:
            `horizon.LEAST`. long: compute FIRE's bias as lines in sequences of at least so many.
        shown: which keys are visible. If some are hidden, neither of these is done and ``reach`` is
            used by ROWS alone, because a window leaves too few far keys for a loop of their own.

    Returns:
        o (B, H, T, D), lse (B, H, T) in base 2, and the horizon (B, H), empty if it is not used.
    """
    q, k, v = (contiguous_last_dim(x) for x in (q, k, v))
    batch, heads, length, width = q.shape
    out = tokens_first(q, v.shape[-1])
    lse = q.new_empty(batch, heads, length, dtype=torch.float32)
    skips = shown.rows is None and skips_underflowed(kind, length, least)
    beyond = horizon(q, k, scale) if skips else lse.new_empty(0)
    bias = _Bias(kind, q, own, parts, beyond)
    reach = reach if shown.rows is None or kind == ROWS else 0
    whole = plan_for(width, v.shape[-1], kind, reach)
    plan = whole.forward
    linear = shown.rows is None and _uses_lines(kind, q, whole, long)
    pieces = _pieces(kind, linear, q, parts, plan)
    flash.forward[(cdiv(length, plan.queries), batch * heads)](
        q, k, v, out, lse, *bias.tensors, pieces, shown.rows, _in_base_2(sink), length, heads,
        heads // k.shape[1], scale / LN2, strides_of(q), strides_of(k), strides_of(v),
        strides_of(out), *bias.strides, pieces.stride()[:2], shown.stride, KIND=kind, REACH=reach,
        USES_HORIZON=skips, USES_LINES=linear, KEEPS=shown.keeps, SEGMENTED=shown.segmented,
        E=width, D=v.shape[-1], BM=plan.queries, BN=plan.keys, PRECISION=_precision(q),
        **plan.options(),
    )  # fmt: skip
    return out, lse, beyond


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, beyond: Tensor,
    scale: float, kind: int, own: Tensor | None, parts: list[Tensor], reach: int, learns: bool,
    long: int = LONG, shown: Shown = ALL_KEYS, sink: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute the gradients.

    Args:
        gradient: (B, H, T, D), of the output. out, lse, beyond: what `forward` returned.
        learns: whether the gradient of ``own`` is needed. long, shown: as in `forward`.

    Returns:
        dq, dk, dv, and the gradients of ``own`` and ``sink``, which are empty if not needed.
    """
    q, k, v, gradient = (contiguous_last_dim(x) for x in (q, k, v, gradient))
    batch, heads, length, width = q.shape
    key_heads, value_width = k.shape[1], v.shape[-1]
    groups = heads // key_heads
    reach = reach if shown.rows is None or kind == ROWS else 0
    plan = plan_for(width, value_width, kind, reach)
    bias, skips = _Bias(kind, q, own, parts, beyond), beyond.numel() > 0
    linear = shown.rows is None and _uses_lines(kind, q, plan, long)
    sums = torch.empty_like(lse)
    inputs = (q, k, v, gradient, lse, sums, *bias.tensors)
    strides = tuple(strides_of(x) for x in (q, k, v, gradient))
    shape: dict[str, Any] = {"KIND": kind, "REACH": reach, "E": width}
    shape |= {"D": value_width, "PRECISION": _precision(q), "SEGMENTED": shown.segmented}
    logits = _in_base_2(sink)
    dq, dk, dv = tokens_first(q, width), tokens_first(k, width), tokens_first(v, value_width)
    b = plan.queries
    pieces = _pieces(kind, linear, q, parts, b)
    gradients.by_queries[(cdiv(length, b.queries), batch * heads)](
        *inputs, pieces, out, dq, shown.rows, logits, length, heads, groups, scale / LN2, scale,
        *strides, *bias.strides, pieces.stride()[:2], strides_of(out), strides_of(dq), shown.stride,
        KEEPS=shown.keeps, NEEDS_SUMS=learns or sink is not None, USES_HORIZON=skips,
        USES_LINES=linear, BM=b.queries, BN=b.keys, **shape, **b.options(),
    )  # fmt: skip
    by_keys = learns and kind in (KEYS, LOGARITHM, POWER, ROWS)
    sizes = 1 if kind == KEYS else 2, batch, heads, length if by_keys else 0
    by_key = q.new_empty(sizes, dtype=torch.float32)
    if by_keys and kind == ROWS:  # pairs that no query sees are not written
        assert own is not None
        by_key = own.new_zeros((1, batch, heads, length, reach))
    b = plan.keys
    pieces = _pieces(kind, linear, q, parts, b, transposed=True)
    network = _Network(kind, q, parts, pieces, MIN_SIDES.value + 1)
    gradients.by_keys[(cdiv(length, b.keys), batch * key_heads)](
        *inputs, pieces, dk, dv, by_key[0], by_key[-1], network.order, *network.tensors,
        shown.rows, length, heads, groups, scale / LN2, scale, *strides, *bias.strides,
        pieces.stride()[:2], strides_of(dk), strides_of(dv), shown.stride, NEEDS_SUMS=by_keys,
        USES_HORIZON=skips, USES_LINES=linear, BM=b.queries, BN=b.keys, **shape,
        UNITS=network.units, KNOTS=bias.knots, PADDED=network.padded, **b.options(),
    )  # fmt: skip
    by_sink, dsink = None, q.new_empty(0, dtype=torch.float32)
    if logits is not None:  # the entries of dS that belong to the sink, (B, H, T)
        own_x = own[..., :length] if kind == KEYS and own is not None else 0.0
        by_sink = -(logits[:, None] + own_x - lse).exp2() * sums
        dsink = by_sink.sum((0, 2))
    if not learns or own is None:
        return dq, dk, dv, q.new_empty(0, dtype=torch.float32), dsink
    if kind == KEYS:
        # The x of a query is in the logits of all its keys, but not in that of the sink.
        dx = by_key[0] if by_sink is None else by_key[0] + by_sink
        dx = dx.sum(0, keepdim=True) if own.shape[0] == 1 else dx
        return dq, dk, dv, pad(dx * LN2, (0, own.shape[-1] - length)), dsink
    if kind == ROWS:
        return dq, dk, dv, by_key[0], dsink
    if by_keys:
        first, second = by_key.sum((1, 3))
        second = second * own[:, 0] * (LN2 * LN2 if kind == POWER else 1.0)
        return dq, dk, dv, -torch.stack((first * LN2, second), -1), dsink
    b = plan.table
    size = b.queries
    arguments = (
        batch, length, heads, groups, scale / LN2, *strides, shown.stride, bias.strides[0][1]
    )  # fmt: skip
    options: dict[str, Any] = {"BM": size} | b.options()
    if kind == FIRE:
        blocks = cdiv(length, size)
        programs = min(blocks * (blocks + 1) // 2, PROGRAMS)
        sums_of_f = q.new_empty(heads, programs, 4, network.padded, dtype=torch.float32)
        learned.of_network[(programs, heads)](
            *inputs, shown.rows, pieces, *network.tensors[:-1], sums_of_f, *arguments,
            pieces.stride()[:2], network.units, KNOTS=bias.knots, PADDED=network.padded,
            USES_LINES=linear, **shape, **options,
        )  # fmt: skip
        total = sums_of_f.sum(1) + network.far.sum((0, 2))
        return dq, dk, dv, by_unit(total[..., : network.units], parts[7], parts[8]), dsink
    diagonals = cdiv(length, size)
    if reach:  # the gradient of the constant part follows from the rest (`by_distance`)
        diagonals = min(diagonals, cdiv(reach + size - 1, size))
    if shown.near:
        diagonals = min(diagonals, cdiv(shown.near + size - 1, size))
    steps = batch * cdiv(length, size)  # blocks of the longest diagonal, in all sequences
    shares = min(steps, cdiv(SHARED, diagonals * heads))
    tiles = q.new_empty(heads, diagonals, shares, size, size, dtype=torch.float32)
    learned.of_table[(diagonals, shares, heads)](
        *inputs, shown.rows, tiles, *arguments, **shape, **options
    )  # fmt: skip
    dtable = by_distance(tiles.sum(2), own.shape[-1] - PADDING, reach, dsink) * LN2
    return dq, dk, dv, pad(dtable, (PADDING, 0)), dsink
