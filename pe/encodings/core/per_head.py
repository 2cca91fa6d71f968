"""Rotary encodings whose heads rotate in different ways.

One way for each key head: the query heads of a group are compared with the same rotated key, so
they rotate as it does.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pe.encodings.rope import RoPE


class PerHeadRoPE(RoPE):
    """Base class: `_tables` returns (1 or B, K, T, d/2), K being the key heads."""

    def rotate(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        tables: Any = None,
    ) -> tuple[Tensor, Tensor]:
        self.refuse_misfit(q, k, q_positions, k_positions)
        q_tables, k_tables = tables or self.prepare(q_positions, k_positions, q.dtype).tables
        group = q.shape[1] // k.shape[1]
        if group > 1:
            q_tables = tuple(t.repeat_interleave(group, dim=1) for t in q_tables)
        return self._rotate(q, *q_tables), self._rotate(k, *k_tables)
