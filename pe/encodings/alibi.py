"""ALiBi: a penalty that grows in a straight line with the distance, steeper in some heads.

    b_h(i, j) = -m_h (i - j),      m_h = 2^(-8h/H),  h = 1 .. H,  if H is a power of two

Otherwise the slopes of the largest power of two P below H come first, then every second slope of
2P heads, from the first on, until there are H. They are not sorted, as in published checkpoints.
Press, Smith, Lewis 2021 (arXiv:2108.12409). Added after the division by sqrt(d). Learns nothing;
costs one product for each query, key and head. Any position. Keys ahead of a query get 0, so in an
encoder the penalty is one-sided.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import DistanceBias
from pe.encodings.core.forms import Form, by_key
from pe.encodings.core.registry import register


def alibi_slopes(num_heads: int) -> Tensor:
    """m_h of each head, (H,) float64."""
    power = 1 << (num_heads.bit_length() - 1)
    head = torch.arange(1, power + 1, dtype=torch.float64, device="cpu")
    slopes = 2 ** (-8 * head / power)
    if power == num_heads:
        return slopes
    between = alibi_slopes(2 * power)[::2]
    return torch.cat((slopes, between[: num_heads - power]))


@register("alibi", title="ALiBi", paper="2108.12409", family="bias")
class ALiBi(DistanceBias):
    """Attention with linear biases."""

    num_heads: int
    slopes: Tensor

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = at_least("num_heads", num_heads, 1)
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        return {"slopes": alibi_slopes(self.num_heads)}

    def distance_bias(self, distance: Tensor) -> Tensor:
        slopes = self.slopes.view(-1, *[1] * distance.dim())
        return -slopes * distance

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        """m_h j less m_h i: one number per key, cheaper in a kernel than one per distance."""
        return by_key(self.slopes[None, :, None] * torch.arange(length, device=device))
