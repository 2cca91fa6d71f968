"""Pictures of relative logits from content."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.relative_content import RelativeContent
from pictures.common import canvas, picture

REACH, LENGTH = 64, 96


def encoding() -> RelativeContent:
    """Two profiles: one that falls with the distance, and one with a bump at a distance of 30."""
    enc = RelativeContent(1, 2, d_rel=2, reach=REACH).double()
    distance = torch.arange(REACH, dtype=torch.float64)
    with torch.no_grad():
        enc.profiles[0] = -distance / 8
        enc.profiles[1] = 6 * (-((distance - 30) ** 2) / 18).exp()
        enc.weight.copy_(torch.eye(2))
    return enc


def bias_numbers(mixture: tuple[float, float]) -> Tensor:
    """(T,) bias by distance of a query whose content gives these weights to the profiles."""
    enc, places = encoding(), torch.arange(LENGTH)
    q = torch.zeros(1, 1, LENGTH, 1, dtype=torch.float64)
    x = torch.tensor(mixture, dtype=torch.float64).expand(1, LENGTH, 2)
    with torch.no_grad():
        return enc.bias(q[:, :, -1:], q, places[-1:], places, enc.key_state(x))[0, 0, 0].flip(0)


@picture("relative-mixtures")
def draw_relative_mixtures() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("relative_content")
    looks = (((1.0, 0.0), "--"), ((0.0, 1.0), ":"), ((1.0, 1.0), "-"))
    for mixture, line in looks:
        name = f"r = ({mixture[0]:g}, {mixture[1]:g})"
        bias = bias_numbers(mixture)
        left.plot(bias, color=ink, ls=line, label=name)
        right.plot(bias.softmax(0), color=ink, ls=line, label=name)
    left.axvline(REACH, color=figures.INK, lw=0.8, ls=":")
    right.axvline(REACH, color=figures.INK, lw=0.8, ls=":")
    left.set(xlabel="distance", ylabel="bias")
    right.set(xlabel="distance", ylabel="share of attention")
    right.legend(fontsize=8)
    return figure
