"""What a positional encoding is: a module with four hooks, each the identity until overridden.

    embed        on the token embeddings, once
    rotate       on queries and keys, in each layer
    bias         on the attention logits, in each layer
    logit_scale  on the attention logits, one factor a query row

Shapes used below: B batch, T tokens, H query heads, K key heads, D head_dim. Positions are integers
of shape (T,) or (B, T). Nothing is remembered from one call to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Encoding(nn.Module):
    """Base class: no encoding at all. Override the hooks and traits that differ.

    Traits:
        relative: shifting all positions by the same amount changes no logit.
        length_dependent: the result depends on the length of the sequence, so keys are cached
            before they are rotated.
        content_dependent: the bias looks at queries and keys, so keys are cached unrotated.
        per_layer: each layer has its own instance (its own parameters), otherwise all share one.
        rotates: `rotate` does something; two such encodings cannot be combined.
        longest_position: first position that is refused, or None.
    """

    relative: ClassVar[bool] = True
    length_dependent: ClassVar[bool] = False
    content_dependent: ClassVar[bool] = False
    per_layer: ClassVar[bool] = False
    rotates: ClassVar[bool] = False
    longest_position: int | None = None

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        """Token embeddings (B, T, hidden) and positions -> (B, T, hidden)."""
        return x

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, H, Tq, D) and (B, K, Tk, D) -> the pair whose dot products are the logits.

        The result may be wider than D; the logits are still divided by sqrt(D).
        """
        return q, k

    def bias(self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor | None:
        """float32 term to add to the scaled logits, broadcastable to (B, H, Tq, Tk), or None.

        ``q`` and ``k`` are as they were before `rotate`.
        """
        return None

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        """Factor on top of 1/sqrt(D) for each query row, shaped like ``q_positions``; None is 1."""
        return None

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the learned parameters anew (none here)."""

    def exact_buffers(self) -> dict[str, Tensor]:
        """Constants that must survive ``.to(bfloat16)`` and meta-device loading, on the CPU.

        They are registered by `register_exact_buffers` and computed again whenever the module is
        moved or cast, so they are never rounded and never left uninitialised.
        """
        return {}

    def register_exact_buffers(self) -> None:
        """Call once, at the end of ``__init__``."""
        device = torch.empty(0).device  # honours `with torch.device("meta")`
        for name, value in self.exact_buffers().items():
            self.register_buffer(name, value.to(device), persistent=False)

    def reset_buffers(self) -> None:
        """Compute the exact buffers again, each on the device where it is."""
        for name, value in self.exact_buffers().items():
            current = self._buffers[name]
            assert current is not None
            self._buffers[name] = value.to(current.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        super()._apply(fn, recurse)
        self.reset_buffers()
        return self
