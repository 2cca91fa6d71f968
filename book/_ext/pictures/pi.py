"""Picture of position interpolation."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pictures.common import canvas, frequencies, picture


def turns_reached(head_dim: int, length: int, factor: float) -> dict[str, Tensor]:
    """Turns (P,) in training, and at ``factor`` times the length without and with PI."""
    rope = frequencies("rope", head_dim) / (2 * math.pi)
    slowed = frequencies("pi", head_dim, factor=factor) / (2 * math.pi)
    return {
        "trained": length * rope,
        "RoPE": factor * length * rope,
        "PI": factor * length * slowed,
    }


def kernel(name: str, head_dim: int, length: int, **options: float) -> Tensor:
    """Logit of a query with an equal key by distance, divided by its value at distance 0."""
    enc = pe.encoding(name, head_dim=head_dim, num_heads=1, **options)
    x, positions = torch.ones(1, 1, length, head_dim, dtype=torch.float64), torch.arange(length)
    q, k = enc.rotate(x, x, positions, positions)
    return (q[0, 0, :1] @ k[0, 0].T)[0] / head_dim


@picture("pi-angles")
def draw_pi_angles() -> Figure:
    head_dim, length, factor, reach = 64, 2048, 8.0, 65
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    turns = turns_reached(head_dim, length, factor)
    left.plot(
        turns["RoPE"].numpy(), color=figures.colour("rope"), ls="--", label="RoPE, 16,384 tokens"
    )
    left.plot(turns["trained"].numpy(), color=figures.colour("rope"), label="RoPE, 2,048 tokens")
    left.plot(
        turns["PI"].numpy(),
        color=figures.colour("pi"),
        ls="none",
        marker=figures.marker("pi"),
        markersize=3.5,
        label="PI, 16,384 tokens",
    )
    left.axhline(1, color=figures.INK, lw=0.8, ls=":")
    left.annotate("one full rotation", (0, 1.25), fontsize=8)
    left.set(yscale="log", xlabel="pair i", ylabel="rotations up to the last position")
    left.legend(frameon=False, fontsize=8)
    right.plot(kernel("rope", head_dim, reach).numpy(), color=figures.colour("rope"), label="RoPE")
    right.plot(
        kernel("pi", head_dim, reach, factor=factor).numpy(),
        color=figures.colour("pi"),
        label="PI, s = 8",
    )
    right.set(xlabel="distance", ylabel="logit of equal contents", ylim=(0, 1.05))
    right.legend(frameon=False, fontsize=8)
    return figure
