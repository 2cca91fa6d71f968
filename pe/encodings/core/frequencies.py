"""Frequencies and phases of rotary encodings, in float64.

    w_i = theta^(-2i/d)        i = 0 .. d/2-1, radians per token        arXiv:2104.09864

w_i is the frequency of pair i, theta the base and d the rotated width. A phase is position times
frequency. At position 100,000 cosines of float32 phases are wrong by up to 0.005, and those of
bfloat16 phases are meaningless. Phases are therefore float64, and only their cosines and sines are
float32.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn


class Frequencies(NamedTuple):
    """The frequencies of F = d/2 pairs, which frequency transforms take and return."""

    inv_freq: Tensor
    """Radians per token, float64: (F,), or (B, F) if they depend on the length of each row, or
    (B, T, F) if they depend on the length of each token's document."""
    theta: float
    dim: int
    """Rotated width d in channels."""
    magnitude: float | Tensor = 1.0
    """Factor of cos and sin of queries and keys, so the logits get its square. It is (B, 1) or
    (B, T, 1) if it depends on the length of each row or document."""
    period: Tensor | None = None
    """Shaped like ``inv_freq``: positions are first reduced modulo this, unless it is 0."""
    exempt: int = 0
    """Positions below this are rotated by RoPE without any transform."""
    warp: Tensor | None = None
    """(n,) float64, for transforms that move tokens: position p is rotated as ``warp[p]``."""


def base_frequencies(dim: int, theta: float) -> Frequencies:
    """Return RoPE's frequencies for an even rotated width ``dim``, on the CPU."""
    exponent = torch.arange(0, dim, 2, dtype=torch.float64, device="cpu") / dim
    return Frequencies(theta**-exponent, theta, dim)


class FrequencyTransform(nn.Module):
    """Base class of changes of RoPE's frequencies, such as PI, NTK and YaRN.

    Traits:
        name: the registered name, or "".
        stretches: it makes room for longer sequences. Two such transforms cannot be combined, and
            the others are applied after them.
        length_dependent: `forward` depends on ``length``, draws random numbers or learns, so its
            result is computed in each forward pass and never stored.
        learns: it has parameters, which get gradients through the frequencies.
        put_on: for a transform that does not stretch, the one with which its authors use it.
        max_positions: the number of positions, which are 0 to max_positions - 1; None is no limit.
    """

    name: ClassVar[str] = ""
    stretches: ClassVar[bool] = True
    learns: ClassVar[bool] = False
    put_on: ClassVar[str | None] = None
    length_dependent: bool = False
    max_positions: int | None = None

    def attach(self, frequencies: Frequencies) -> None:
        """Called once by the encoding that uses the transform, with that encoding's frequencies.

        Override it to raise ValueError if they do not fit, and to create parameters of their width.
        """

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        """Return the changed frequencies.

        ``length`` is the number of tokens in each row, () or (B, 1), or in the document of each
        token, (B, T, 1). It holds integers on the device of the result. None is the training
        length.
        """
        raise NotImplementedError

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the learned parameters again. The base class has none."""


@torch.library.custom_op("pe::cos_sin", mutates_args=())
def cos_sin(
    positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, period: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of position x frequency: (..., T), (F,) float64 -> two (..., T, F).

    ``inv_freq`` and ``period`` may be (B, F) with positions of (B, T) or (T,). The operator is
    differentiable in ``inv_freq``. It is opaque, so that torch.compile computes the small table
    once instead of fusing float64 trigonometry into every kernel that reads it.
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
    """Return positions modulo the period, float64: (..., T, 1), or (..., T, F) with a period."""
    p = positions.to(torch.float64)[..., None]
    if period is None:
        return p
    cycle = period.unsqueeze(-2)
    return torch.where(cycle > 0, p.remainder(cycle.clamp(min=1)), p)


def phases(positions: Tensor, inv_freq: Tensor, period: Tensor | None = None) -> Tensor:
    """Return position x frequency in float64, (..., T, F); shapes are those of `cos_sin`."""
    return counted(positions, period) * inv_freq.unsqueeze(-2)


def phase_tables(
    positions: Tensor, inv_freq: Tensor, dtype: torch.dtype, period: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin, (1 or B, 1, T, F), which broadcast over the heads.

    They are float64 if ``dtype`` (of the queries) is, otherwise float32, also under autocast.
    ``inv_freq`` may be (B, T, F), with frequencies per token.
    """
    dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if inv_freq.dim() == 3:
        cos, sin = cos_sin(positions[..., None], inv_freq, dtype, period)
        return cos.transpose(-3, -2), sin.transpose(-3, -2)
    cos, sin = cos_sin(positions, inv_freq, dtype, period)
    if cos.dim() == 2:
        cos, sin = cos[None], sin[None]
    return cos[:, None], sin[:, None]
