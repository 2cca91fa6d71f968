"""Sine only: adds sines of the position to the token embeddings.

    P(p)_j = sin p w_j,      w_j = theta^(-j/d),   j = 0 .. d-1

P(p) is the vector of position p, w_j the frequency of column j, theta the base and d the width of
the embeddings. It has d frequencies, twice as many as the sinusoidal encoding. Position 0 is the
zero vector. It is from the code of h3nock/pe-explorer, which has no published results. Tokens are
multiplied by sqrt(d) first, as in Vaswani et al. 2017 (arXiv:1706.03762).

It learns nothing, costs one addition per number of an embedding, and works at any position.
"""

import torch
from torch import Tensor

from pe.encodings.core.additive import Additive
from pe.encodings.core.checks import positive
from pe.encodings.core.frequencies import cos_sin
from pe.encodings.core.registry import register


@register("sinonly", title="Sine only", paper="1706.03762", family="embeddings")
class SinOnly(Additive):
    """Sines of d frequencies; ``theta`` is the base."""

    frequencies: Tensor

    def __init__(
        self, hidden_size: int, theta: float = 10000.0, scale_embeddings: bool = True
    ) -> None:
        super().__init__(hidden_size, scale_embeddings)
        self.theta = positive("theta", theta)
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        column = torch.arange(self.hidden_size, dtype=torch.float64, device="cpu")
        return {"frequencies": self.theta ** (-column / self.hidden_size)}

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        _, sin = cos_sin(positions, self.frequencies, dtype)
        return sin  # type: ignore[no-any-return]
