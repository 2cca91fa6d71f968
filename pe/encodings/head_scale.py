"""Head scale: multiplies the logits of each head by one learned factor.

    softmax_j(lambda_h z_j),   z = q k / sqrt(d),   lambda_h >= 1

lambda_h is the factor of head h. It sees no positions, so alone it is NoPE with a temperature per
head. A model without encoding fails beyond its training length when its attention spreads over too
many keys; the factors sharpen it again.

Wang et al. 2024 (arXiv:2404.12224). The authors take a trained NoPE model and train the factors
alone for 200 steps at the new length: `pe.convert(model, "head_scale")`, with ``tune: encoding`` in
a recipe. Their code begins at the one factor that is best for all heads together (1.6 at four times
the training length), and raises factors below 1 to 1 after each step. Here the factors begin at 1,
where the model is unchanged. A parameter below ``least`` acts as ``least``, and its gradient is
stopped only if a step would lead further down.

It learns one number per head and layer, costs one multiplication per query channel, and works at
any position.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.clamping import clamped
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.registry import register


@register("head_scale", title="Head scale", paper="2404.12224", family="scale")
class HeadScale(Encoding):
    """A learned factor on the logits of each head.

    Args:
        start: the initial factor of all heads.
        least: the smallest factor.
    """

    per_layer = True

    def __init__(self, num_heads: int, start: float = 1.0, least: float = 1.0) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.least = at_least("least", least, 0.0)
        self.start = at_least("start", start, self.least)
        self.scale = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.scale.fill_(self.start)

    def logit_scale(self, q_positions: Tensor) -> Tensor:
        """Return lambda_h, (H, 1), the same at all positions."""
        scale: Tensor = clamped(at_least_float32(self.scale), self.least, math.inf)
        return scale[:, None]
