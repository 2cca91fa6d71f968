"""Encodings that are added to the token embeddings, before the first layer.

    h_i = c x_i + P(i)        c = sqrt(d), or 1 where the source does not scale

Each layer adds to a residual stream, so what is added here reaches all layers, and queries, keys
and values all carry it. d is the width of the embeddings.
"""

import math

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding, refuse_positions
from pe.encodings.core.checks import at_least


class Additive(Encoding):
    """Base class: override `rows`, the vector of each position."""

    relative = False
    embeds = True

    def __init__(self, hidden_size: int, scale_embeddings: bool) -> None:
        super().__init__()
        self.hidden_size = at_least("hidden_size", hidden_size, 1)
        # Tokens are drawn with a spread of 0.02 and these vectors with one of about 1. Without the
        # factor a new model would see the position of a token and hardly which token it is.
        self.token_scale = math.sqrt(hidden_size) if scale_embeddings else 1.0

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """P: positions (..., T) -> (..., T, hidden) in ``dtype``, float32 or float64."""
        raise NotImplementedError

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        if x.dim() not in (2, 3) or x.shape[-1] != self.hidden_size:
            raise ValueError(
                f"embeddings: expected (batch, tokens, {self.hidden_size}), got {tuple(x.shape)}"
            )
        refuse_positions("positions", positions, len(x) if x.dim() == 3 else None, x.shape[-2])
        self.refuse_too_far(positions)
        wide = torch.float64 if x.dtype == torch.float64 else torch.float32
        return (x.to(wide) * self.token_scale + self.rows(positions, wide)).to(x.dtype)
