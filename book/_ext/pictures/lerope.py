"""Pictures of LeRoPE."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.lerope import LeRoPE
from pictures.common import canvas, picture

WIDTH, LENGTH = 64, 1024


def wavelengths(alpha: Tensor | None = None) -> Tensor:
    """(d/2,) wavelengths in tokens with these multiples."""
    enc = pe.encoding("lerope", head_dim=WIDTH, num_heads=1)
    assert isinstance(enc, LeRoPE)
    with torch.no_grad():
        if alpha is not None:
            enc.alpha.copy_(alpha)
        return 2 * math.pi / enc.spectrum(torch.arange(2)).inv_freq


def slope_numbers(distance: int) -> Tensor:
    """(d/2,) derivative of each pair's cosine at this distance by its alpha: -r w sin(r w)."""
    enc = pe.encoding("lerope", head_dim=WIDTH, num_heads=1).double()
    assert isinstance(enc, LeRoPE)
    (cos, _), _ = enc.prepare(*[torch.tensor([distance])] * 2, torch.float64).tables
    (slope,) = torch.autograd.grad(cos.sum(), [enc.alpha])
    return slope


@picture("lerope-slopes")
def draw_lerope_slopes() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("lerope")
    pairs = torch.arange(WIDTH // 2)
    left.plot(pairs, wavelengths(), color=figures.colour("rope"), ls="--", label="RoPE")
    moved = 0.3 * torch.sin(pairs * 0.9) + 0.02 * pairs
    left.plot(pairs, wavelengths(moved), color=ink, label="moved by exp(α)")
    left.axhline(LENGTH, color=figures.INK, lw=0.8, ls=":")
    left.set(yscale="log", xlabel="pair", ylabel="wavelength in tokens")
    left.legend(fontsize=8)
    for distance, line in ((8, "-"), (64, "--"), (512, ":")):
        right.plot(pairs, slope_numbers(distance).abs() + 1e-6, color=ink, ls=line,
                   label=f"distance {distance}")  # fmt: skip
    right.set(yscale="log", ylim=(1e-5, 1e3), xlabel="pair", ylabel="slope by $\\alpha_i$")
    right.legend(fontsize=8)
    return figure
