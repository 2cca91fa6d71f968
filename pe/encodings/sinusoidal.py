"""Sinusoidal: adds sines and cosines of the position to the token embeddings.

    P(p)_2r = sin p w_r,   P(p)_2r+1 = cos p w_r,      w_r = theta^(-2r/d),   r = 0 .. d/2-1

P(p) is the vector of position p, w_r a frequency, theta the base and d the width of the embeddings.
Vaswani et al. 2017 (arXiv:1706.03762), section 3.5. Tokens are multiplied by sqrt(d) first.

The authors' code, tensor2tensor, differs in two ways. It puts all sines before all cosines (layout
``concat``), and its frequencies are theta^(-r/(d/2-1)) (grid ``tensor2tensor``), so that the last
is exactly 1/theta. x-transformers multiplies P by a learned number that begins at 1/sqrt(d) and
does not scale the tokens (``learned_scale=True``, ``scale_embeddings=False``).

The encoding learns nothing, costs one addition per number of an embedding, and works at any
position.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pe.encodings.core.additive import Additive
from pe.encodings.core.checks import at_least, choice, positive
from pe.encodings.core.frequencies import cos_sin
from pe.encodings.core.registry import register

LAYOUTS = ("interleaved", "concat")
GRIDS = ("paper", "tensor2tensor")


@register("sinusoidal", title="Sinusoidal", paper="1706.03762", family="embeddings")
class Sinusoidal(Additive):
    """The encoding of the original Transformer. With an odd width the last column is 0."""

    frequencies: Tensor

    def __init__(
        self,
        hidden_size: int,
        theta: float = 10000.0,
        layout: str = "interleaved",
        grid: str = "paper",
        scale_embeddings: bool = True,
        learned_scale: bool = False,
    ) -> None:
        super().__init__(at_least("hidden_size", hidden_size, 2), scale_embeddings)
        self.theta = positive("theta", theta)
        self.layout = choice("layout", layout, LAYOUTS)
        self.grid = choice("grid", grid, GRIDS)
        self.scale = nn.Parameter(torch.empty(())) if learned_scale else None
        self.register_exact_buffers()
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        if self.scale is not None:
            self.scale.fill_(self.hidden_size**-0.5)

    def exact_buffers(self) -> dict[str, Tensor]:
        pairs = self.hidden_size // 2
        r = torch.arange(pairs, dtype=torch.float64, device="cpu")
        steps = self.hidden_size / 2 if self.grid == "paper" else max(pairs - 1, 1)
        return {"frequencies": self.theta ** (-r / steps)}

    def rows(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        cos, sin = cos_sin(positions, self.frequencies, dtype)
        if self.layout == "interleaved":
            table = torch.stack((sin, cos), dim=-1).flatten(-2)
        else:
            table = torch.cat((sin, cos), dim=-1)
        table = pad(table, (0, self.hidden_size % 2))
        return table if self.scale is None else table * self.scale.to(dtype)
