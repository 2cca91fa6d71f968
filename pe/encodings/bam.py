"""BAM: multiplies the attention weights by a learned prior over distances.

    w(m, n) ~ exp(q k / sqrt(d)) p_h(m - n),     p_h a generalised Gaussian:
    b_h(m, n) = -e^alpha (|m - n - mu| + 1e-5)^beta,     mu = e^theta - e^-theta

w is the weight of key n for query m. b_h, the logarithm of p_h up to a constant, is added to their
logit in head h. e^alpha is the strength, beta the shape and mu the centre of the prior. With
beta = 0 the head sees no position, with 1 it is ALiBi with a learned slope, and with 2 a Gaussian.
With beta < 0 the bias is low at distance 0 and rises to 0 far away, so that the head looks past
near keys.

Bianchessi, Aguirre, Barros, Kupssinsku 2025 (arXiv:2505.22842). As in the authors' code, theta is
fixed at 0 unless ``learn_shift`` is set. Their code has |m - n + mu| and their formula
|m - n - mu|, which differ in the sign of theta only. They report their best results for
``bam+ssmax``.

BAM learns alpha and beta (and theta) for each head and layer. By default they begin at 0, where the
bias is the same at all distances. It costs one power per distance and head, and works at any
position.
"""

import torch
from torch import Tensor, nn

from pe.encodings.core.distance import DistanceBias, at_least_float32
from pe.encodings.core.registry import register

EPS = 1e-5


@register("bam", title="BAM", paper="2505.22842", family="bias")
class BAM(DistanceBias):
    """A generalised Gaussian prior over distances.

    Args:
        alpha, beta: the initial values in all heads.
        learn_shift: whether theta is learned as well.
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
