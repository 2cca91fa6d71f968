"""Resonance RoPE: rounds RoPE's wavelengths to whole tokens, so that the angles repeat exactly.

    lambda_i = round(2 pi / w_i),    w_i <- 2 pi / lambda_i,    p is rotated as p mod lambda_i

w_i is the frequency of pair i, lambda_i its wavelength in tokens and p the position. Wang,
Kobyzev, Lu, Rezagholizadeh, Liu 2024 (arXiv:2403.00071). It is applied to RoPE, or to the
frequencies that another transform gives.

It learns nothing, costs one remainder per entry of the tables, and works at any position. A pair
whose wavelength is at most L0 shows the model all of its angles in training. A longer wavelength
changes by a share of less than 1 / (2 L0). Positions are reduced before anything is rounded, so the
tables repeat bit for bit.
"""

import math
from typing import ClassVar

from torch import Tensor

from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


@register("resonance", title="Resonance", paper="2403.00071", family="frequencies")
class Resonance(FrequencyTransform):
    """Rounds the wavelengths, half to even, in float64."""

    stretches: ClassVar[bool] = False
    put_on: ClassVar[str] = "yarn"

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        inv_freq = frequencies.inv_freq
        if inv_freq.requires_grad:
            raise ValueError(
                "resonance rounds wavelengths, which stops gradients, so it excludes a transform "
                "that learns frequencies; leave one of the two out"
            )
        moving = inv_freq > 0  # a frequency of 0 has no wavelength
        wavelength = (2 * math.pi / inv_freq.where(moving, 1.0)).round().clamp(min=1)
        period = wavelength.where(moving, 0.0)
        return frequencies._replace(
            inv_freq=(2 * math.pi / wavelength).where(moving, 0.0), period=period
        )
