"""p-RoPE: rotates by the highest frequencies of RoPE and sets the others to 0.

    w_i = theta^(-2i/d)  for i < floor(p d / 2),   otherwise w_i = 0

w_i is the frequency of pair i, theta the base and p the share of frequencies that is kept. The
exponent is over the full width d, so the low end of RoPE's frequencies is missing. Partial RoPE, in
contrast, keeps both ends. Barbero et al. 2024 (arXiv:2410.06205). p = 1 is RoPE.

p-RoPE learns nothing, costs the same as RoPE, and works at any position. Frequency transforms are
applied to all frequencies before the low end is set to 0.
"""

from collections.abc import Sequence

import torch

from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("p_rope", title="p-RoPE", paper="2410.06205", family="rotary")
class PRoPE(RoPE):
    """RoPE with its lowest frequencies set to 0; ``p`` is the share that is kept.

    Raises:
        ValueError: p is not in (0, 1], or keeps no frequency.
    """

    def __init__(
        self,
        head_dim: int,
        p: float = 0.75,
        theta: float = 10000.0,
        layout: str = "half",
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        if not 0 < p <= 1:
            raise ValueError(f"p: expected more than 0 and at most 1, got {p!r}")
        self.kept = int(p * head_dim / 2)  # the base class needs it
        if self.kept == 0:
            raise ValueError(
                f"head_dim {head_dim} with p {p} keeps no frequency; use a larger p, or nope"
            )
        super().__init__(head_dim, theta, layout, transforms=transforms)

    def select_frequencies(self, spectrum: Frequencies) -> Frequencies:
        inv_freq = spectrum.inv_freq
        index = torch.arange(inv_freq.shape[-1], device=inv_freq.device)
        return spectrum._replace(inv_freq=torch.where(index < self.kept, inv_freq, 0.0))
