"""RoPE: rotate each pair of channels by position times its frequency.

    (x_a, x_b) -> (x_a cos p w_i - x_b sin p w_i,  x_b cos p w_i + x_a sin p w_i)
    w_i = theta^(-2i/d)

so that logits depend on positions through their difference only.
Su et al. 2021 (arXiv:2104.09864). Learns nothing; any position; two multiply-adds a channel.

Pairing: ``half`` pairs channel i with i + d/2 (Llama, GPT-NeoX), ``interleaved`` pairs 2i with
2i + 1 (RoFormer, GPT-J). The two give the same model up to a permutation of the rows of the query
and key projections, and a wrong one with the same weights, silently.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pe.encodings.base import Encoding
from pe.encodings.checks import choice, positive, rotary_width
from pe.encodings.frequencies import (
    Frequencies,
    FrequencyTransform,
    base_frequencies,
    phase_tables,
)
from pe.encodings.registry import register

LAYOUTS = ("half", "interleaved")


@register("rope")
class RoPE(Encoding):
    """Rotary position embedding, with the frequency transforms that follow it in order."""

    rotates = True
    inv_freq: Tensor

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 1.0,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        super().__init__()
        self.theta = positive("theta", theta)
        self.layout = choice("layout", layout, LAYOUTS)
        self.rotary_dim = rotary_width(head_dim, rotary_fraction)
        self.transforms = tuple(transforms)
        self.register_exact_buffers()

    def frequencies(self) -> Frequencies:
        """The spectrum after all transforms, float64 on the CPU."""
        frequencies = base_frequencies(self.rotary_dim, self.theta)
        for transform in self.transforms:
            frequencies = transform(frequencies)
        return frequencies

    def exact_buffers(self) -> dict[str, Tensor]:
        frequencies = self.frequencies()
        self.magnitude = frequencies.magnitude
        return {"inv_freq": frequencies.inv_freq}

    def rotate(
        self, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor
    ) -> tuple[Tensor, Tensor]:
        q_tables = self._tables(q_positions, q)
        # In training both are the same tensor, and one pair of tables serves both.
        k_tables = q_tables if k_positions is q_positions else self._tables(k_positions, k)
        return self._turn(q, *q_tables), self._turn(k, *k_tables)

    def _tables(self, positions: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = phase_tables(positions, self.inv_freq, like)  # (1 or B, 1, T, d/2)
        m = self.magnitude
        return (cos, sin) if m == 1.0 else (cos * m, sin * m)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        turned, rest = x[..., : self.rotary_dim].to(cos.dtype), x[..., self.rotary_dim :]
        if self.layout == "half":
            a, b = turned.chunk(2, dim=-1)
        else:
            a, b = turned[..., 0::2], turned[..., 1::2]
        first = torch.addcmul(a * cos, b, sin, value=-1)
        second = torch.addcmul(b * cos, a, sin)
        if self.layout == "half":
            turned = torch.cat((first, second), dim=-1)
        else:
            turned = torch.stack((first, second), dim=-1).flatten(-2)
        turned = turned.to(x.dtype)
        return turned if rest.shape[-1] == 0 else torch.cat((turned, rest), dim=-1)
