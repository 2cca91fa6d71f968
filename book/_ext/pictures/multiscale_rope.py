"""Pictures of multiscale RoPE."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.multiscale_rope import MultiscaleRoPE
from pictures.common import canvas, picture

WIDTH, HEADS = 64, 4


def encoding() -> MultiscaleRoPE:
    enc = pe.encoding("multiscale_rope", head_dim=WIDTH, num_heads=HEADS)
    assert isinstance(enc, MultiscaleRoPE)
    return enc


def wavelength_numbers() -> Tensor:
    """(HEADS, pairs) wavelengths in tokens."""
    return 2 * math.pi / encoding().frequencies().inv_freq


def logit_numbers(longest: int = 400) -> Tensor:
    """(HEADS, longest) logit by distance of equal contents, all channels 1."""
    ones = torch.ones(1, HEADS, longest, WIDTH, dtype=torch.float64)
    positions = torch.arange(longest)
    q, k = encoding().rotate(ones, ones, positions, positions)
    return (q[0] * k[0, :, :1]).sum(-1) / math.sqrt(WIDTH)


@picture("multiscale-rope-heads")
def draw_multiscale_rope() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    lines = ("-", "--", "-.", ":")
    bases = encoding().bases().tolist()
    for head, (waves, logits) in enumerate(zip(wavelength_numbers(), logit_numbers(), strict=True)):
        look = {"color": figures.colour("multiscale_rope"), "ls": lines[head], "lw": 1.5}
        left.plot(waves.numpy(), label=f"head {head}: base {bases[head]:,.0f}", **look)
        right.plot(logits.numpy(), **look)
    left.set(yscale="log", xlabel="pair i", ylabel="wavelength, tokens")
    left.legend(frameon=False, fontsize=8)
    right.set(xlabel="distance", ylabel="logit of equal contents")
    return figure
