"""SSMax: multiplies the logits by a learned multiple of the logarithm of the number of keys.

    softmax_j(s ln(n) z_j),   z = q k / sqrt(d),   n = keys that the query sees = position + 1

s is a learned number. A key whose logit is larger by 1/s than another gets n times its weight, and
so keeps its weight as n grows. Alone SSMax is NoPE: it does not see the order of keys.

Nakanishi 2025 (arXiv:2501.19399). s begins where the mean of s ln(n) over a training sequence of L0
tokens is 1, as in plain softmax. ``with_bias`` learns s ln(n) + b.

SSMax learns one number per query head and layer, two with the bias. It costs one multiplication per
query channel and works at any position.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.registry import register


@register("ssmax", title="SSMax", paper="2501.19399", family="scale")
class SSMax(Encoding):
    """Scalable softmax, added to an encoding as in ``rope+ssmax``.

    Args:
        original_length: L0 in tokens.
        s_init: the initial s; by default the mean of s ln(n) is 1.
        with_bias: whether b is learned.
    """

    relative = False
    per_layer = True

    def __init__(
        self,
        num_heads: int,
        original_length: int,
        s_init: float | None = None,
        with_bias: bool = False,
    ) -> None:
        super().__init__()
        if s_init is None:
            length = at_least("original_length", original_length, 2)
            s_init = length / math.lgamma(length + 1)  # 1 / mean of ln 1 .. ln L0
        self.s_init = s_init
        self.s = nn.Parameter(torch.empty(num_heads))
        self.b = nn.Parameter(torch.empty(num_heads)) if with_bias else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.s.fill_(self.s_init)
        if self.b is not None:
            self.b.zero_()

    def logit_scale(self, q_positions: Tensor) -> Tensor:
        """Return s ln(n) + b, (B, H, Tq) or (H, Tq)."""
        s = at_least_float32(self.s)
        log_n = (q_positions + 1).to(torch.float64).log().to(s.dtype)
        scale = s[:, None] * log_n[..., None, :]
        return scale if self.b is None else scale + at_least_float32(self.b)[:, None]
