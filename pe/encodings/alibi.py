"""ALiBi: subtracts a penalty from the logits that grows linearly with the distance.

    b_h(m, n) = -mu_h (m - n),      mu_h = 2^(-8h/H),  h = 1 .. H,  if H is a power of two

b_h is added to the logit of query m and key n in head h, after the division by sqrt(d). H is the
number of heads and mu_h the slope of head h. If H is no power of two, the first P slopes are those
of P heads, where P is the largest power of two below H. The others are every second slope of 2P
heads, beginning with the first. As in published checkpoints, the slopes are not sorted.

Press, Smith, Lewis 2021 (arXiv:2108.12409). ALiBi learns nothing, costs one product per query, key
and head, and works at any position. Keys ahead of a query get 0, so an encoder gets the penalty on
one side only.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import DistanceBias
from pe.encodings.core.forms import Form, by_key
from pe.encodings.core.registry import register


def alibi_slopes(num_heads: int) -> Tensor:
    """Return the slope mu_h of each head, (H,) float64."""
    power = 1 << (num_heads.bit_length() - 1)
    head = torch.arange(1, power + 1, dtype=torch.float64, device="cpu")
    slopes = 2 ** (-8 * head / power)
    if power == num_heads:
        return slopes
    between = alibi_slopes(2 * power)[::2]
    return torch.cat((slopes, between[: num_heads - power]))


@register("alibi", title="ALiBi", paper="2108.12409", family="bias")
class ALiBi(DistanceBias):
    """Attention with linear biases for ``num_heads`` query heads."""

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
        """Return the spec by key, because a kernel reads numbers by key faster than by distance."""
        return by_key(self.slopes[None, :, None] * torch.arange(length, device=device))
