"""Dynamic NTK: applies NTK-aware scaling with a factor that grows with the sequence length.

    alpha(L) = s L / L0 - (s - 1)    for L > L0, else 1
    w_i <- w_i alpha(L)^(-2i/(d-2))

w_i are RoPE's frequencies, d is the rotated width, L0 the training length and L the number of
tokens in the row, which is its largest position plus one.

The method is from a forum post of 2023. YaRN's paper (arXiv:2309.00071, section 3.3) has
alpha = L / L0, which is s = 1, the default. The slope s is in the published code.

Dynamic NTK learns nothing and works at any position. Up to L0 tokens it is RoPE, for every s. alpha
is computed in each call from each row alone. All keys must be rotated again when the sequence
grows, so they are cached before rotation.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.ntk import slowed_by_base


@register("dynamic_ntk", title="Dynamic NTK", paper="2309.00071", family="frequencies")
class DynamicNTK(FrequencyTransform):
    """A base that depends on the length of each row.

    Args:
        original_length: L0 in tokens.
        factor: s, the slope of alpha beyond L0.
    """

    length_dependent = True

    def __init__(self, original_length: int, factor: float = 1.0) -> None:
        super().__init__()
        self.original_length = at_least("original_length", original_length, 1)
        self.factor = at_least("factor", factor, 1.0)

    def attach(self, frequencies: Frequencies) -> None:
        self(frequencies)  # raises ValueError for a width of one pair

    def alpha(self, length: Tensor) -> Tensor:
        """Return the factor by which the slowest frequency is divided at these lengths, float64."""
        excess = length.to(torch.float64) / self.original_length - 1
        return 1 + self.factor * excess.clamp(min=0)

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        if length is None:
            length = torch.tensor(self.original_length, device=frequencies.inv_freq.device)
        return slowed_by_base(frequencies, self.alpha(length))
