"""PoPE: takes a channel's magnitude from the content and its angle from the position alone.

    logit(t, s) = sum_c softplus(q_tc) softplus(k_sc) cos((s - t) w_c + delta_c) / sqrt(d)
    w_c = theta^(-c/d),  c = 0 .. d-1,     delta_c in [-2 pi, 0] learned

t and s are the positions of query and key, w_c and delta_c the frequency and phase of channel c,
and theta is the base. PoPE has one frequency per channel, RoPE one per pair of channels.

Gopalakrishnan et al. 2025 (arXiv:2509.10534). delta begins at 0, on its bound. With a plain clamp,
an entry that steps over the bound never gets a gradient again. Here a gradient that points back
inside always passes.

PoPE learns d phases per key head and layer. Queries and keys become 2d wide and values do not; the
logits are still divided by sqrt(d), with d the original width of a head. It works at any position.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import choice, positive, rotary_width
from pe.encodings.core.clamping import clamped
from pe.encodings.core.frequencies import cos_sin, phase_tables
from pe.encodings.core.registry import register
from pe.encodings.core.rotation import polar, polar_form, shifted, takes_operator


@register("pope", title="PoPE", paper="2509.10534", family="rotary")
class PoPE(Encoding):
    """Polar coordinate position embedding, with phases per key head and layer.

    Args:
        theta: the base.
        rotary_fraction: share of the channels that PoPE acts on; the others are left unchanged.
        delta_init: initial phases, ``zero`` or ``uniform`` in [-2 pi, 0].
    """

    rotates = True
    inv_freq: Tensor
    per_layer = True

    def __init__(
        self,
        head_dim: int,
        num_kv_heads: int,
        theta: float = 10000.0,
        rotary_fraction: float = 1.0,
        delta_init: str = "zero",
    ) -> None:
        super().__init__()
        self.head_dim, self.num_kv_heads = head_dim, num_kv_heads
        self.theta = positive("theta", theta)
        self.polar_dim = rotary_width(head_dim, rotary_fraction, even=False)
        self.delta_init = choice("delta_init", delta_init, ("zero", "uniform"))
        # Per key head, so that rotated keys can be cached with grouped queries.
        self.delta = nn.Parameter(torch.zeros(num_kv_heads, self.polar_dim))
        self.register_exact_buffers()
        self.reset_parameters()

    def exact_buffers(self) -> dict[str, Tensor]:
        channel = torch.arange(self.polar_dim, dtype=torch.float64, device="cpu")
        return {"inv_freq": self.theta ** -(channel / self.polar_dim)}

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        if self.delta_init == "zero":
            self.delta.zero_()
        else:
            self.delta.uniform_(-2 * math.pi, 0.0, generator=generator)

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, tables: Any = None
    ) -> tuple[Tensor, Tensor]:
        self.refuse_misfit(q, k, q_positions, k_positions)
        q_tables = phase_tables(q_positions, self.inv_freq, q.dtype)
        k_tables = q_tables
        if k_positions is not q_positions:
            k_tables = phase_tables(k_positions, self.inv_freq, k.dtype)
        bounded = clamped(self.delta.double(), -2 * math.pi, 0.0)
        once = bounded.new_ones(1, dtype=torch.long)  # position 1, so that the phase is delta
        shift = cos_sin(once, bounded, q_tables[0].dtype)  # cosine and sine, (K, 1, d) each
        delta = [t[:, 0] for t in shift]
        if q.shape[-1] == self.polar_dim and takes_operator(q, *q_tables):
            return polar(q, *q_tables, []), polar(k, *k_tables, delta)
        return self._expand(q, *q_tables), self._expand(k, *shifted(*k_tables, delta))

    def _expand(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        rotated, rest = polar_form(x[..., : self.polar_dim], cos, sin), x[..., self.polar_dim :]
        return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)
