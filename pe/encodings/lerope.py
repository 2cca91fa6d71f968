"""LeRoPE: rotates queries and keys as RoPE does, with learned frequencies.

    w_i = theta^(-2i/d) e^(alpha_i),     alpha_i = 0 at first

w_i is the frequency of pair i and theta the base of RoPE (arXiv:2104.09864). Formula and name are
from transformers' code of Mistral Large 4. The initial model is RoPE, and every frequency stays
positive. With a transform such as YaRN, e^alpha_i multiplies the frequency that the transform
gives.

LeRoPE learns d/2 numbers, which all heads and layers share. It costs the same as RoPE, and in
training also the gradient of the tables. It works at any position.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("lerope", title="LeRoPE", family="rotary")
class LeRoPE(RoPE):
    """RoPE with one learned factor per frequency."""

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 1.0,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        for transform in transforms:
            if not transform.stretches:
                raise ValueError(
                    f"lerope+{transform.name}: {transform.name} rounds wavelengths, and lerope "
                    "learns them; leave one of the two out"
                )
        super().__init__(head_dim, theta, layout, rotary_fraction, transforms)
        self.alpha = nn.Parameter(torch.zeros(self.rotary_dim // 2))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        super().reset_parameters(generator)
        self.alpha.zero_()

    def spectrum(self, positions: Tensor, lengths: Tensor | None = None) -> Frequencies:
        spectrum = super().spectrum(positions, lengths)
        return spectrum._replace(inv_freq=spectrum.inv_freq * self.alpha.double().exp())
