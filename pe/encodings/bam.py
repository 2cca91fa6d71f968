"""BAM: attention as a product of what contents say and of a prior over distances.

    w(i, j) ~ exp(q k / sqrt(d)) p_h(i - j),     p_h a generalised Gaussian:
    b_h(i, j) = -e^alpha (|i - j - mu| + 1e-5)^beta,     mu = e^theta - e^-theta

Bianchessi, Aguirre, Barros, Kupssinsku 2025 (arXiv:2505.22842). alpha and beta are learned for each
head and layer. beta = 0 is no position at all, 1 is ALiBi with a learned slope, 2 a Gaussian. Below
0 the term is low at distance 0 and rises to 0 far away, so that a head looks past what is near.
Heads begin at alpha = beta = 0, without any preference. theta is 0 unless ``learn_shift``, as in
the authors' code. Their best results are those of ``bam+ssmax``. Any position.

Their code has |i - j + mu|, their formula |i - j - mu|; the sign of theta makes the two the same.
"""

import torch
from torch import Tensor, nn

from pe.encodings.core.distance import DistanceBias, at_least_float32
from pe.encodings.core.registry import register

EPS = 1e-5


@register("bam", title="BAM", paper="2505.22842", family="bias")
class BAM(DistanceBias):
    """A generalised Gaussian prior of the distance; two numbers for each head and layer, or three.

    Options: ``alpha`` and ``beta``, where all heads begin; ``learn_shift``: theta is learned too.
    """

    per_layer = True

    def __init__(
        self, num_heads: int, alpha: float = 0.0, beta: float = 0.0, learn_shift: bool = False
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.start = {"alpha": alpha, "beta": beta, "theta": 0.0}
        self.alpha = nn.Parameter(torch.empty(num_heads))
        self.beta = nn.Parameter(torch.empty(num_heads))
        self.theta = nn.Parameter(torch.empty(num_heads)) if learn_shift else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for name, parameter in self.named_parameters():
            parameter.fill_(self.start[name])

    def distance_bias(self, distance: Tensor) -> Tensor:
        shape = -1, *[1] * distance.dim()
        alpha, beta = (at_least_float32(p).view(shape) for p in (self.alpha, self.beta))
        away = distance.to(alpha.dtype)
        if self.theta is not None:
            away = (away - 2 * at_least_float32(self.theta).view(shape).sinh()).abs()
        return -alpha.exp() * (away + EPS) ** beta
