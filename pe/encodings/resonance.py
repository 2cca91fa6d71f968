"""Resonance RoPE: round every wavelength to whole tokens, so that its angles repeat.

    lambda_i = round(2 pi / w_i),    w_i <- 2 pi / lambda_i,    p is rotated as p mod lambda_i

Wang, Kobyzev, Lu, Rezagholizadeh, Liu 2024 (arXiv:2403.00071). Works on RoPE alone and after any
transform that stretches it: those choose the frequencies, this rounds what they chose. Learns
nothing; one remainder an entry of the tables. A pair whose wavelength is at most L0 has shown the
model all its angles in training; one of a longer wavelength is changed by less than 1 in 2 L0.

Tables repeat bit by bit, at any position, since positions are reduced before anything is rounded.
"""

import math
from typing import ClassVar

from torch import Tensor

from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


@register("resonance", title="Resonance", paper="2403.00071", family="frequencies")
class Resonance(FrequencyTransform):
    """Wavelengths rounded, half to even, in float64."""

    stretches: ClassVar[bool] = False
    put_on: ClassVar[str] = "yarn"

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        inv_freq = frequencies.inv_freq
        if inv_freq.requires_grad:
            raise ValueError(
                "resonance rounds wavelengths, and no gradient passes a rounding: a transform that "
                "learns frequencies cannot be trained under it; leave one of the two out"
            )
        moving = inv_freq > 0  # a frequency of 0 has no wavelength to round
        wavelength = (2 * math.pi / inv_freq.where(moving, 1.0)).round().clamp(min=1)
        period = wavelength.where(moving, 0.0)
        return frequencies._replace(
            inv_freq=(2 * math.pi / wavelength).where(moving, 0.0), period=period
        )
