"""Frequencies and phases of the rotary family, in float64.

    w_i = theta^(-2i/d)        i = 0 .. d/2-1, radians a token          arXiv:2104.09864

A phase is position times frequency. At position 100,000 float32 has lost three of its seven digits
and bfloat16 all of them, so phases are built in float64 and only their cosine and sine are handed
on in float32.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor


class Frequencies(NamedTuple):
    """A spectrum, as frequency transforms pass it on."""

    inv_freq: Tensor
    """(d/2,) float64, radians a token."""
    theta: float
    dim: int
    """Rotated width d."""
    magnitude: float = 1.0
    """Multiplies cos and sin of queries and of keys, so it enters the logits squared."""


def base_frequencies(dim: int, theta: float) -> Frequencies:
    """RoPE's spectrum for an even rotated width ``dim``."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return Frequencies(theta**-exponent, theta, dim)


class FrequencyTransform:
    """Changes RoPE's frequencies: PI, NTK, YaRN ... Call it on `Frequencies` to get new ones."""

    length_dependent: ClassVar[bool] = False

    def __call__(self, frequencies: Frequencies) -> Frequencies:
        """Return the changed spectrum."""
        raise NotImplementedError


@torch.library.custom_op("pe::cos_sin", mutates_args=())
def cos_sin(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency: (..., T), (F,) float64 -> two (..., T, F).

    One opaque operator, so that torch.compile computes the small table once instead of fusing
    float64 trigonometry into every kernel that reads it.
    """
    phase = positions.to(torch.float64)[..., None] * inv_freq
    return phase.cos().to(dtype), phase.sin().to(dtype)


@cos_sin.register_fake
def _(positions: Tensor, inv_freq: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (*positions.shape, inv_freq.shape[-1])
    return (
        torch.empty(shape, dtype=dtype, device=positions.device),
        torch.empty(shape, dtype=dtype, device=positions.device),
    )


def phase_tables(positions: Tensor, inv_freq: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin, shaped (1 or B, 1, T, F) to broadcast over heads; float64 if ``like`` is."""
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    cos, sin = cos_sin(positions, inv_freq, dtype)
    if positions.dim() == 1:
        cos, sin = cos[None], sin[None]
    return cos[:, None], sin[:, None]
