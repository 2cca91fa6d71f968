"""Base class of encodings that are added to the token embeddings before the first layer.

    h_i = c x_i + P(i)        c = sqrt(d), or 1 if the source does not scale

x_i is the embedding of the token at position i, P(i) the vector of that position and d the width of
the embeddings. P reaches the queries, keys and values of all layers through the residual stream.
"""

import math

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding, refuse_positions
from pe.encodings.core.checks import at_least


class Additive(Encoding):
    """Adds a vector per position to the token embeddings. Subclasses override `rows`."""

    relative = False
    embeds = True

    def __init__(self, hidden_size: int, scale_embeddings: bool) -> None:
        super().__init__()
        self.hidden_size = at_least("hidden_size", hidden_size, 1)
        # Token embeddings begin with a spread of 0.02, and P has one of about 1. Without the factor
        # the position would drown out the token in a new model.
        self.token_scale = math.sqrt(hidden_size) if scale_embeddings else 1.0

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return P at positions (..., T), (..., T, hidden), in ``dtype``, float32 or float64."""
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
