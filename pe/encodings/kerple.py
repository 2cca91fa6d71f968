"""KERPLE: subtracts a penalty that grows with the distance, with a learned shape per head.

    kerple_log:    b(m, n) = -p ln(1 + a (m - n))       p, a > 0
    kerple_power:  b(m, n) = -a (m - n)^p               a > 0, 0 < p <= 2

b is added to the logit of query m and key n; p and a are learned.

Chi, Fan, Ramadge, Rudnicky 2022 (arXiv:2205.09921). As in the authors' code, p is drawn from
U(0, 2) and a from U(0, 1). Both act as at least 0.01, and p of kerple_power as at most 2. The
authors' code overwrites parameters outside these bounds. Here they are clamped when the formula
reads them, and their gradient is stopped only if a step would lead further out.

KERPLE learns two numbers per head and layer, costs a logarithm or power per distance and head, and
works at any position.
"""

from math import inf

import torch
from torch import Tensor, nn

from pe.encodings.core.clamping import clamped
from pe.encodings.core.distance import DistanceBias, at_least_float32
from pe.encodings.core.forms import Form, by_logarithm, by_power
from pe.encodings.core.registry import register

LEAST = 0.01


class Kerple(DistanceBias):
    """Base class of both kernels, with their parameters p and a, (H,) each."""

    per_layer = True

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.p = nn.Parameter(torch.zeros(num_heads))
        self.a = nn.Parameter(torch.zeros(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.p.uniform_(0.0, 2.0, generator=generator)
        self.a.uniform_(0.0, 1.0, generator=generator)

    def bounded(self, dims: int = 0, most_p: float = inf) -> tuple[Tensor, Tensor]:
        """Return p and a inside their bounds, (H, 1, ...) with ``dims`` dimensions of size 1."""
        shape = -1, *[1] * dims
        p = clamped(at_least_float32(self.p), LEAST, most_p)
        a = clamped(at_least_float32(self.a), LEAST, inf)
        return p.view(shape), a.view(shape)


@register("kerple_log", title="KERPLE (log)", paper="2205.09921", family="bias", encoding_rate=10)
class KerpleLog(Kerple):
    """The logarithmic kernel."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        p, a = self.bounded(distance.dim())
        return -p * torch.log1p(a * distance)

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        return by_logarithm(*self.bounded())


@register("kerple_power", title="KERPLE (power)", paper="2205.09921", family="bias")
class KerplePower(Kerple):
    """The power kernel."""

    def distance_bias(self, distance: Tensor) -> Tensor:
        p, a = self.bounded(distance.dim(), most_p=2.0)
        return -a * distance.to(p.dtype) ** p

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        p, a = self.bounded(most_p=2.0)
        return by_power(a, p)
