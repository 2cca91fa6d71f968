"""Several encodings at once: hooks chain, biases add, scales multiply."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pe.encodings.base import Encoding


class Composite(Encoding):
    """``rope+alibi``: each hook of each part, in order. At most one part rotates."""

    def __init__(self, parts: list[Encoding]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        # Traits of a whole follow from its parts, so they are set on the instance.
        self.relative = all(p.relative for p in parts)  # type: ignore[misc]
        self.length_dependent = any(p.length_dependent for p in parts)  # type: ignore[misc]
        self.content_dependent = any(p.content_dependent for p in parts)  # type: ignore[misc]
        self.per_layer = any(p.per_layer for p in parts)  # type: ignore[misc]
        self.rotates = any(p.rotates for p in parts)  # type: ignore[misc]
        limits = [p.longest_position for p in parts if p.longest_position is not None]
        self.longest_position = min(limits, default=None)

    def _encodings(self) -> list[Encoding]:
        return list(self.parts)  # type: ignore[arg-type]

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        for part in self._encodings():
            x = part.embed(x, positions)
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        for part in self._encodings():
            q, k = part.rotate(q, k, q_positions, k_positions)
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        terms = [p.bias(q, k, q_positions, k_positions) for p in self._encodings()]
        given = [t for t in terms if t is not None]
        return None if not given else sum(given[1:], start=given[0])

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        scale: Tensor | None = None
        for part in self._encodings():
            factor = part.logit_scale(q_positions)
            if factor is not None:
                scale = factor if scale is None else scale * factor
        return scale

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for part in self._encodings():
            part.reset_parameters(generator)
