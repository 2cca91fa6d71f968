"""Multiscale RoPE: rotates queries and keys with another base in every head.

    theta_h = theta_min^(1-h/(K-1)) theta_max^(h/(K-1)),  h = 0 .. K-1;   one head: sqrt(min max)
    w_hi = theta_h^(-2i/d) / max(scaling_factor, 1)

w_hi is the frequency of pair i in key head h. K counts key heads, and the query heads of a group
have the base of their key. The method is RoPE (arXiv:2104.09864) with bases evenly spaced on a log
scale, both ends included. It is from the code of kvnyu24/Nexus; there is no paper. The layout is
half, as there, or interleaved.

It learns nothing, needs tables K times as large as RoPE's, and works at any position.
"""

import torch
from torch import Tensor

from pe.encodings.core.checks import at_least, positive
from pe.encodings.core.frequencies import Frequencies, cos_sin
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("multiscale_rope", title="Multiscale RoPE", paper="2104.09864", family="rotary")
class MultiscaleRoPE(RoPE):
    """Head 0 has the base ``theta_min`` and the last head ``theta_max``."""

    num_kv_heads: int

    def __init__(
        self,
        head_dim: int,
        num_kv_heads: int,
        theta_min: float = 1e3,
        theta_max: float = 1e5,
        scaling_factor: float = 1.0,
        layout: str = "half",
    ) -> None:
        positive("theta_min", theta_min)
        at_least("theta_max", theta_max, theta_min)
        self.scaling_factor = at_least("scaling_factor", scaling_factor, 1.0)
        self.ends, self.num_kv_heads = (theta_min, theta_max), num_kv_heads
        super().__init__(head_dim, theta=(theta_min * theta_max) ** 0.5, layout=layout)

    def bases(self) -> Tensor:
        """Return the base theta_h of each key head, (K,) float64."""
        low, high = torch.tensor(self.ends, dtype=torch.float64, device="cpu").log()
        steps = max(self.num_kv_heads - 1, 1)
        share = torch.arange(self.num_kv_heads, dtype=torch.float64, device="cpu") / steps
        share = share if self.num_kv_heads > 1 else share + 0.5
        bases: Tensor = (low + share * (high - low)).exp()
        return bases

    def frequencies(self, length: Tensor | None = None) -> Frequencies:
        exponent = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64, device="cpu")
        inv_freq = self.bases()[:, None] ** -(exponent / self.rotary_dim) / self.scaling_factor
        return Frequencies(inv_freq, self.theta, self.rotary_dim)

    def _tables(
        self, positions: Tensor, spectrum: Frequencies, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return cos and sin, (1 or B, K, T, d/2)."""
        rows = positions if positions.dim() == 2 else positions[None]
        dtype = torch.float64 if dtype == torch.float64 else torch.float32
        cos, sin = cos_sin(rows[:, None], spectrum.inv_freq, dtype)
        return cos, sin
