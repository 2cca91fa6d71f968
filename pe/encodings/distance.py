"""Biases that are a function of distance alone: ALiBi, T5, KERPLE, Sandwich.

    logit_h(i, j) += b_h(i - j)

One function of the distance is all that such an encoding defines; the dense matrix, the decoding
step and any kernel follow from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pe.encodings.base import Encoding


def distances(q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """How far each key lies behind each query: (Tq, Tk), or (B, Tq, Tk) if either has rows.

    Keys ahead of a query are masked in a decoder; they get distance 0, so that nothing grows there.
    """
    return (q_positions[..., :, None] - k_positions[..., None, :]).clamp(min=0)


class DistanceBias(Encoding):
    """Base class: override `distance_bias`, one value for each head and distance."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        """Integer distances of any shape (...) -> float32 (H, ...)."""
        raise NotImplementedError

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        with torch.autocast(q.device.type, enabled=False):
            values = self.distance_bias(distances(q_positions, k_positions))
        return values[None] if values.dim() == 3 else values.transpose(0, 1)  # (1 or B, H, Tq, Tk)
