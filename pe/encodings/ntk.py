"""NTK-aware scaling: raises RoPE's base, so that the last frequency slows and the first stays.

    b <- b alpha^(d/(d-2))    hence    w_i <- w_i alpha^(-2i/(d-2)),     i = 0 .. d/2-1

b is the base, w_i the frequency of pair i and d the rotated width, which may be less than that of
the head. The last frequency is divided by alpha. The method is from a forum post of 2023,
which YaRN's paper describes (arXiv:2309.00071, section 3.1).

It learns nothing, costs nothing at run time, and works at any position. All frequencies but the
last are slowed by less than alpha, so a sequence alpha times as long still brings some of them to
new angles. alpha = 1 is RoPE.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


def slowed_by_base(frequencies: Frequencies, alpha: Tensor) -> Frequencies:
    """Return the frequencies under the base that slows the last of them by ``alpha``.

    ``alpha`` is (), (1,), (B, 1) or (B, T, 1), float64.

    Raises:
        ValueError: the rotated width is one pair.
    """
    inv_freq, dim = frequencies.inv_freq, frequencies.dim
    if dim < 4:
        raise ValueError(
            f"rotated width {dim}: NTK-aware scaling keeps the first frequency and slows the "
            "last, so it needs two; use a larger head_dim or rotary_fraction"
        )
    pair = torch.arange(dim // 2, dtype=torch.float64, device=inv_freq.device)
    return frequencies._replace(inv_freq=inv_freq * alpha ** (-2 * pair / (dim - 2)))


@register("ntk", title="NTK", paper="2309.00071", family="frequencies")
class NTK(FrequencyTransform):
    """One base for all lengths; ``factor`` is alpha, which slows the last frequency."""

    def __init__(self, factor: float = 4.0) -> None:
        super().__init__()
        self.factor = at_least("factor", factor, 1.0)

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        alpha = torch.full_like(frequencies.inv_freq[..., :1], self.factor)
        return slowed_by_base(frequencies, alpha)
