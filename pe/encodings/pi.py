"""Position interpolation: divides all of RoPE's frequencies by the same factor.

    w_i <- w_i / s            which is RoPE at the positions p / s

w_i is the frequency of pair i, p a position and s the factor. Chen, Wong, Chen, Tian 2023
(arXiv:2306.15595). PI learns nothing, costs nothing at run time, and works at any position.
Neighbouring tokens differ by an angle s times smaller in every pair. s = 1 is RoPE.
"""

from torch import Tensor

from pe.encodings.core.checks import at_least
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


@register("pi", title="PI", paper="2306.15595", family="frequencies")
class PI(FrequencyTransform):
    """Divides every frequency by ``factor``, s."""

    def __init__(self, factor: float = 4.0) -> None:
        super().__init__()
        self.factor = at_least("factor", factor, 1.0)

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        return frequencies._replace(inv_freq=frequencies.inv_freq / self.factor)
