"""Learned absolute positions: adds one learned vector per position to the token embeddings.

    h_i = x_i + P[i],      P of shape (table_size, d), drawn from Normal(0, 0.02)

x_i is the embedding of the token at position i and d its width. Gehring et al. 2017
(arXiv:1705.03122). As in GPT-2, the tokens are not scaled.

It learns table_size x d numbers for the whole model and costs one addition per number of an
embedding. It works at positions below table_size, and larger ones raise PositionError. A table
larger than the training length would only add rows that are never trained.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from pe.encodings.core.additive import Additive
from pe.encodings.core.checks import at_least, positive
from pe.encodings.core.registry import register


@register("learned", title="Learned", paper="1705.03122", family="embeddings")
class Learned(Additive):
    """A table with one vector per position.

    Args:
        original_length: training length in tokens, the default of ``table_size``.
        table_size: number of positions.
        std: standard deviation of the initial values.
        scale_embeddings: whether tokens are multiplied by sqrt(d) first.

    Raises:
        ValueError: neither original_length nor table_size is given.
    """

    def __init__(
        self,
        hidden_size: int,
        original_length: int | None = None,
        table_size: int | None = None,
        std: float = 0.02,
        scale_embeddings: bool = False,
    ) -> None:
        super().__init__(hidden_size, scale_embeddings)
        size = original_length if table_size is None else table_size
        if size is None:
            raise ValueError("'learned' needs original_length, or the option table_size")
        self.max_positions = at_least("table_size", size, 1)
        self.std = positive("std", std)
        self.table = nn.Parameter(torch.empty(self.max_positions, hidden_size))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.table.normal_(0.0, self.std, generator=generator)

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        return embedding(positions, self.table).to(dtype)
