"""Frequencies and phases of the rotary family, in float64.

    w_i = theta^(-2i/d)        i = 0 .. d/2-1, radians per token        arXiv:2104.09864

A phase is position times frequency. At position 100,000 float32 has lost three of its seven digits
and bfloat16 all of them, so phases are built in float64 and only their cosine and sine are handed
on in float32.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class Frequencies(NamedTuple):
    """A spectrum, as frequency transforms pass it on. F = d/2 pairs."""

    inv_freq: Tensor
    """(F,) float64, radians per token; (B, F) where it depends on the length of each row, (B, T, F)
    where on that of each token's document."""
    theta: float
    dim: int
    """Rotated width d."""
    magnitude: float | Tensor = 1.0
    """Multiplies cos and sin of queries and of keys, so it enters the logits squared; (B, 1) or
    (B, T, 1) where it depends on the length of each row or document."""
    period: Tensor | None = None
    """Like ``inv_freq``: positions are first reduced modulo this, where it is not 0."""
    exempt: int = 0
    """Positions below this are rotated as by RoPE without any transform."""
    warp: Tensor | None = None
    """(n,) float64: position p is rotated as ``warp[p]``; for transforms that move tokens."""


def base_frequencies(dim: int, theta: float) -> Frequencies:
    """RoPE's spectrum for an even rotated width ``dim``."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return Frequencies(theta**-exponent, theta, dim)


class FrequencyTransform(nn.Module):
    """Changes RoPE's frequencies: PI, NTK, YaRN ... Call it on `Frequencies` to get new ones.

    Traits:
        name: what it is registered as; "" where it is not.
        stretches: it makes room for longer sequences; two such transforms cannot be combined. Those
            that do not are applied after those that do.
        length_dependent: `forward` looks at ``length``, or draws something, or learns: its result
            is computed in each forward pass and never stored.
        learns: it has parameters, which get their gradients through the spectrum.
        put_on: the transform under which its authors use one that does not stretch.
        max_positions: how many positions there are, 0 to max_positions - 1; None: no limit.
    """

    name: ClassVar[str] = ""
    stretches: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    put_on: ClassVar[str | None] = None
    length_dependent: bool = False
    max_positions: int | None = None

    def attach(self, frequencies: Frequencies) -> None:
        """Called once, by the encoding that it becomes a part of, with that one's own spectrum.

        The place to refuse what does not fit it, and to make parameters of its width.
        """

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        """Return the changed spectrum.

        ``length`` is the number of tokens in each row, () or (B, 1), or in the document of each
        token, (B, T, 1): integers on the device where the result is wanted. None: as many as in
        training.
        """
        raise NotImplementedError

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the learned parameters again (none here)."""


@torch.library.custom_op("pe::cos_sin", mutates_args=())
def cos_sin(
    positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, period: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of position x frequency: (..., T), (F,) float64 -> two (..., T, F).

    ``inv_freq`` and ``period`` may be (B, F) beside positions of (B, T) or (T,). Differentiable in
    ``inv_freq``. One opaque operator, so that torch.compile computes the small table once instead
    of fusing float64 trigonometry into every kernel that reads it.
    """
    phase = phases(positions, inv_freq, period)
    return phase.cos().to(dtype), phase.sin().to(dtype)


@cos_sin.register_fake
def _(
    positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, period: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    rows = torch.broadcast_shapes(positions.shape[:-1], inv_freq.shape[:-1])
    shape = (*rows, positions.shape[-1], inv_freq.shape[-1])
    return (
        torch.empty(shape, dtype=dtype, device=positions.device),
        torch.empty(shape, dtype=dtype, device=positions.device),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    positions, inv_freq, _, period = inputs
    ctx.save_for_backward(positions, inv_freq, period, *output)


def _backward(ctx: Any, to_cos: Tensor, to_sin: Tensor) -> tuple[Any, ...]:
    positions, inv_freq, period, cos, sin = ctx.saved_tensors
    to_phase = to_sin.double() * cos - to_cos.double() * sin
    gradient = (to_phase * counted(positions, period)).sum(-2).sum_to_size(inv_freq.shape)
    return None, gradient.to(inv_freq.dtype), None, None


cos_sin.register_autograd(_backward, setup_context=_save)


def counted(positions: Tensor, period: Tensor | None = None) -> Tensor:
    """What frequencies are multiplied by, float64, (..., T, 1); (..., T, F) with a period."""
    p = positions.to(torch.float64)[..., None]
    if period is None:
        return p
    cycle = period.unsqueeze(-2)
    return torch.where(cycle > 0, p.remainder(cycle.clamp(min=1)), p)


def phases(positions: Tensor, inv_freq: Tensor, period: Tensor | None = None) -> Tensor:
    """Position x frequency in float64, (..., T, F); shapes as in `cos_sin`."""
    return counted(positions, period) * inv_freq.unsqueeze(-2)


def phase_tables(
    positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, period: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin, shaped (1 or B, 1, T, F) to broadcast over heads.

    float64 where queries are (``dtype``), otherwise float32, also under autocast. ``inv_freq`` may
    be (B, T, F): each token's own.
    """
    dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if inv_freq.dim() == 3:
        cos, sin = cos_sin(positions[..., None], inv_freq, dtype, period)
        return cos.transpose(-3, -2), sin.transpose(-3, -2)
    cos, sin = cos_sin(positions, inv_freq, dtype, period)
    if cos.dim() == 2:
        cos, sin = cos[None], sin[None]
    return cos[:, None], sin[:, None]
