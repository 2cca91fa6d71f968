"""Llama 3's scaling: slows the frequencies that complete few rotations in the training length.

    r_i = L0 w_i / (2 pi)                                rotations of pair i in L0 tokens
    sigma_i = clip((r_i - low) / (high - low), 0, 1)     low = 1, high = 4
    w_i <- sigma_i w_i + (1 - sigma_i) w_i / s

w_i are RoPE's frequencies, L0 the training length and s the factor. Frequencies of at least
``high`` rotations are kept, and those of at most ``low`` are divided by s.

It is from the released code of the Llama 3.1 models (their report is arXiv:2407.21783). It differs
from YaRN by a ramp that is linear in the rotations, and by having no temperature. With low = high,
as in Llama 4 Scout, the ramp is a step: frequencies of fewer rotations are divided by s.

It learns nothing, costs nothing at run time, and works at any position. s = 1 is RoPE.
"""

import math

from torch import Tensor

from pe.encodings.core.checks import at_least, positive
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


@register("llama3", title="Llama 3", paper="2407.21783", family="frequencies")
class Llama3(FrequencyTransform):
    """RoPE's frequencies for ``factor`` times ``original_length`` tokens.

    The options have the names of the published checkpoints.
    """

    def __init__(
        self,
        original_length: int,
        factor: float = 8.0,
        low_freq_factor: float = 1.0,
        high_freq_factor: float = 4.0,
    ) -> None:
        super().__init__()
        self.original_length = at_least("original_length", original_length, 1)
        self.factor = at_least("factor", factor, 1.0)
        self.low = positive("low_freq_factor", low_freq_factor)
        self.high = positive("high_freq_factor", high_freq_factor)
        if self.high < self.low:
            raise ValueError(
                f"high_freq_factor {high_freq_factor} is less than low_freq_factor "
                f"{low_freq_factor}; expected it to be at least as large"
            )

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        rotations = self.original_length * frequencies.inv_freq / (2 * math.pi)
        if self.high == self.low:
            keep = (rotations >= self.low).to(rotations.dtype)
        else:
            keep = ((rotations - self.low) / (self.high - self.low)).clamp(0, 1)
        # keep + (1 - keep) is exactly 1, so factor 1 is bit-identical to RoPE.
        slowed = frequencies.inv_freq * (keep + (1 - keep) / self.factor)
        return frequencies._replace(inv_freq=slowed)
