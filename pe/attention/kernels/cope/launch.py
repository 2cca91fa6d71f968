"""Launch CoPE's kernels for q (B, H, T, E), k (B, K, T, E), v (B, K, T, D) and its table (rows, E).

The products of queries and rows of the table are T numbers per row and head. They are computed for
some heads at a time, but at least for a group that shares its keys. Memory does not grow with the
square of the length, unless the number of rows grows with the length. In a window, the number of
rows that counts can reach does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from triton import cdiv

from pe.attention.kernels.cope import backward as cope_gradients
from pe.attention.kernels.cope import far as cope_far
from pe.attention.kernels.cope import forward as cope
from pe.attention.kernels.cope import table as cope_table
from pe.attention.kernels.flash.blocks import Blocks
from pe.attention.kernels.flash.launch import ALL_KEYS, Shown
from pe.attention.kernels.layout import contiguous_last_dim, strides_of, tokens_first
from pe.encodings.core.forms import LOG2E

HELD = 5 * 2**27
"""The most products of queries and table rows that are held at once, 4 bytes each."""
SHARES = 2**29
"""The most numbers in all shares of dk and dv, unless one share per head has more."""
PROGRAMS = 264
"""The number of programs that run at once on an H100: two on each of 132 multiprocessors."""
SPLITS, WAVES = 64, 4
"""The queries are divided among at most SPLITS programs for the table's gradient, and among no more
than fill the GPU WAVES times, because each program writes a table."""
ALIGNED = 32
"""The products of each query begin at a multiple of this number."""
FORWARD, BACKWARD, PRODUCTS = Blocks(64, 32, 4, 2), Blocks(64, 32, 4, 2), Blocks(64, 64, 4, 2)
"""Forward and backward blocks must have the same number of queries, and the number of keys of a
backward block must divide that of a forward block."""
FAR_QUERIES, FAR_KEYS = Blocks(64, 64, 4, 2), Blocks(32, 64, 4, 3)
"""For far keys. FAR_QUERIES must have as many queries as FORWARD, whose blocks ``far`` refers to;
all other sizes must divide this number."""


def bits(length: int) -> int:
    """Return the number of bits of a count of at most ``length`` keys after the point.

    A count has 32 bits, and a gate consists of two halves of 11 bits.
    """
    return min(22, 31 - (length + 2).bit_length())


def across(length: int, b: Blocks = FORWARD) -> int:
    """Return the number of blocks of queries in a sequence of ``length`` tokens."""
    return int(cdiv(length, b.queries))


class _Call:
    """Sizes and tables that all kernels of one call share."""

    def __init__(self, q: Tensor, k: Tensor, table: Tensor, shown: Shown) -> None:
        self.batch, self.heads, self.length, self.width = q.shape
        self.groups = self.heads // k.shape[1]
        counted = min(self.length, shown.near or self.length)
        self.bits = bits(counted)
        table = table[: counted + 2]  # a gate is at most 1, and a row needs the next one
        self.last = table.shape[0] - 1
        self.columns = cdiv(table.shape[0] + 2, ALIGNED) * ALIGNED  # two are written and not read
        self.high = table.to(q.dtype).contiguous()
        self.low = (table - self.high.to(table.dtype)).to(q.dtype)
        self.precision = "ieee" if q.dtype == torch.float32 else "tf32"
        fits = max(1, HELD // (self.groups * self.length * self.columns))
        all_heads = self.batch * self.heads
        pieces = cdiv(all_heads, fits * self.groups)
        self.step = int(cdiv(all_heads, pieces * self.groups)) * self.groups
        self.firsts = range(0, all_heads, self.step)

    def cut(self, b: Blocks) -> dict[str, Any]:
        """Return the constants and options with which a kernel is compiled."""
        return {
            "E": self.width, "BM": b.queries, "BN": b.keys, "PRECISION": self.precision,
        } | b.options()  # fmt: skip

    def here(self, first: int) -> int:
        """Return the number of heads, from ``first`` on, in one launch."""
        return min(self.step, self.batch * self.heads - first)

    def products(
        self, q: Tensor, first: int, counts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute z and, given the ``counts`` of the forward pass, dz, which is 0, and top."""
        here, is_backward = self.here(first), counts is not None
        dtype = torch.float32 if q.dtype == torch.float32 else torch.float16
        z = q.new_empty(here, self.length, self.columns, 2, dtype=dtype)
        dz = q.new_empty(z.shape[:3] if is_backward else (1,), dtype=torch.int32)
        top = q.new_empty(
            here, across(self.length, PRODUCTS) if is_backward else 1, dtype=torch.int32
        )
        b = PRODUCTS
        cope.products[(across(self.length, b), here)](
            q, self.high, self.low, z, dz, counts if counts is not None else top, top, first,
            self.length, self.heads, self.last, LOG2E, strides_of(q), self.columns,
            IS_BACKWARD=is_backward,
            BITS=self.bits, **self.cut(b),
        )  # fmt: skip
        return z, dz, top


def forward(
    q: Tensor, k: Tensor, v: Tensor, table: Tensor, scale: float, shown: Shown = ALL_KEYS
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute attention.

    Args:
        scale: of the logits. The bias, q times the table, is not scaled.
        shown: which keys are visible; no first keys are kept.

    Returns:
        o (B, H, T, D), lse (B, H, T) in base 2, and ``counts`` and ``far`` of the kernel `forward`.
    """
    q, k, v = (contiguous_last_dim(x) for x in (q, k, v))
    call, b = _Call(q, k, table, shown), FORWARD
    out = tokens_first(q, v.shape[-1])
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    counts = q.new_empty(q.shape[:3], dtype=torch.int32)
    far = q.new_empty(*q.shape[:2], across(call.length, b), dtype=torch.int32)
    for first in call.firsts:
        z, _, _ = call.products(q, first, None)
        cope.forward[(across(call.length, b), call.here(first))](
            q, k, v, z, out, lse, counts, far, shown.rows, first, call.length, call.heads,
            call.groups, scale * LOG2E, call.last, call.columns, strides_of(q), strides_of(k),
            strides_of(v), strides_of(out), shown.stride, SEGMENTED=shown.segmented, BITS=call.bits,
            D=v.shape[-1], **call.cut(b),
        )  # fmt: skip
    return out, lse, counts, far


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, counts: Tensor,
    far: Tensor, table: Tensor, scale: float, shown: Shown = ALL_KEYS,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return dq, dk and dv, in the types of q, k and v, and the table's gradient in float32.

    Args:
        gradient: (B, H, T, D), of the output. out, lse, counts, far: what `forward` returned.
        shown: as in `forward`.
    """
    q, k, v, gradient = (contiguous_last_dim(x) for x in (q, k, v, gradient))
    call, b = _Call(q, k, table, shown), BACKWARD
    length, width, value_width = call.length, call.width, v.shape[-1]
    padded = cdiv(length, b.keys) * b.keys  # whole blocks
    dq, dk, dv = tokens_first(q, width), tokens_first(k, width), tokens_first(v, value_width)
    largest = torch.linalg.vector_norm(v, dim=-1, dtype=torch.float32).amax(-1).contiguous()
    rows = call.last + 1
    tiles = cdiv(rows, PRODUCTS.keys)
    splits = min(SPLITS, call.step * across(length, PRODUCTS), cdiv(WAVES * PROGRAMS, tiles))
    parts = q.new_empty(splits, rows, width, dtype=torch.float32)
    of_table = torch.zeros_like(table, dtype=torch.float32)
    for first in call.firsts:
        here = call.here(first)
        z, dz, top = call.products(q, first, counts)
        most = SHARES // (here * length * (width + value_width))
        shares = max(1, min(PROGRAMS // here, across(length, b), most))
        dk_parts = q.new_zeros(here, shares, width, padded, dtype=torch.float32)
        dv_parts = q.new_zeros(here, shares, value_width, padded, dtype=torch.float32)
        dq_part = q.new_empty(here, length, width, dtype=torch.float32)
        unit, lse_far, sums = q.new_empty(3, here, length, dtype=torch.float32)
        strides = tuple(strides_of(x) for x in (q, k, v, gradient))
        cope_far.far_by_queries[(across(length, FAR_QUERIES), here)](
            q, k, v, out, gradient, lse, far, z, largest, dq_part, unit, lse_far, sums, first,
            length, call.heads, call.groups, scale * LOG2E, call.last, call.columns, *strides[:3],
            strides_of(out), strides[3], D=value_width, **call.cut(FAR_QUERIES),
        )  # fmt: skip
        cope_gradients.backward[(shares, here)](
            q, k, v, gradient, lse, counts, far, z, dq_part, dz, unit, sums, dk_parts, dv_parts,
            shown.rows, first, length, call.heads, call.groups, scale * LOG2E, call.last,
            call.columns, padded, *strides, shown.stride, SEGMENTED=shown.segmented, BITS=call.bits,
            D=value_width, **call.cut(b),
        )  # fmt: skip
        del z
        cope_table.of_queries[(across(call.length, PRODUCTS), here)](
            dq_part, dz, unit, counts, top, call.high, dq, first, length, call.heads, call.last,
            call.columns, scale, strides_of(dq), BITS=call.bits, **call.cut(PRODUCTS),
        )  # fmt: skip
        cope_table.of_table[(tiles, splits)](
            q, dz, unit, top, parts, first, here, length, call.heads, call.last,
            call.columns, strides_of(q), **call.cut(PRODUCTS),
        )  # fmt: skip
        cope_far.far_by_keys[(cdiv(length, FAR_KEYS.keys), here // call.groups)](
            q, k, v, gradient, far, lse_far, sums, dk_parts, dv_parts, dk, dv, first, length,
            call.heads, call.groups, shares, padded, scale * LOG2E, scale, *strides,
            strides_of(dk), strides_of(dv), BF=FORWARD.queries, D=value_width, **call.cut(FAR_KEYS),
        )  # fmt: skip
        of_table[:rows] += parts.sum(0)
    return dq, dk, dv, of_table
