"""Sandwich: adds the inner product of two sinusoidal encodings to the logits as a bias.

    b_h(m, n) = (sum_r cos((m - n) w_r) - W/2) H / (8h),    w_r = 10000^(-2r/W),  r = 1 .. W/2

b_h is added to the logit of query m and key n in head h = 1 .. H. W is the width of the sinusoidal
encodings, which is independent of the model's. The bias falls roughly like a logarithm of the
distance, with ripples, and fastest in the first head.

Chi, Fan, Rudnicky, Ramadge 2022 (arXiv:2212.10356). ``centred=False`` is the plain inner product,
with r = 0 .. W/2 - 1 and nothing subtracted.

Sandwich learns nothing, costs W/2 cosines per distance, and works at any position.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import DistanceBias
from pe.encodings.core.registry import register


@register("sandwich", title="Sandwich", paper="2212.10356", family="bias")
class Sandwich(DistanceBias):
    """The inner product of sinusoidal encodings as a bias of the distance.

    Args:
        width: W, an even number.
        centred: whether the sum begins at r = 1 and W/2 is subtracted.
    """

    num_heads: int
    inv_freq: Tensor
    head_scale: Tensor

    def __init__(self, num_heads: int, width: int = 128, centred: bool = True) -> None:
        super().__init__()
        if at_least("width", width, 2) % 2:
            raise ValueError(
                f"width: expected an even number, one cosine per two channels; got {width!r}"
            )
        self.num_heads, self.width, self.centred = num_heads, width, centred
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        pair = torch.arange(self.width // 2, dtype=torch.float64, device="cpu") + self.centred
        head = torch.arange(1, self.num_heads + 1, dtype=torch.float64, device="cpu")
        return {
            "inv_freq": 10_000 ** (-2 * pair / self.width),
            "head_scale": self.num_heads / (8 * head),
        }

    def distance_bias(self, distance: Tensor) -> Tensor:
        total = torch.full_like(
            distance, -self.width / 2 if self.centred else 0, dtype=torch.float64
        )
        for frequency in self.inv_freq:  # one at a time, because together they need W/2 matrices
            total = total + (distance * frequency).cos()
        return self.head_scale.view(-1, *[1] * distance.dim()) * total
