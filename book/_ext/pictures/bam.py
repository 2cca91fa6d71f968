"""Pictures of BAM."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.bam import BAM
from pictures.common import canvas, picture

SHAPES = ((0.5, "--"), (1.0, "-"), (2.0, ":"))


def bias_numbers(beta: float, alpha: float, length: int) -> Tensor:
    """(T,) one head's bias by distance."""
    with torch.no_grad():
        return BAM(1, alpha=alpha, beta=beta).double().distance_bias(torch.arange(length))[0]


@picture("bam-shapes")
def draw_bam_shapes() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("bam")
    distance = torch.arange(41)
    for beta, line in SHAPES:
        alpha = -beta * torch.tensor(20.0).log().item()  # all meet at -1 at distance 20
        left.plot(distance, bias_numbers(beta, alpha, 41), color=ink, ls=line,
                  label=f"$\\beta$ = {beta:g}")  # fmt: skip
    left.set(xlabel="distance", ylabel="bias")
    left.legend(fontsize=8)
    for beta, line in ((-0.5, "-"), (-1.0, "--"), (-2.0, ":")):
        alpha = 3.0
        share = bias_numbers(beta, alpha, 201).exp()
        right.plot(share, color=ink, ls=line, label=f"$\\beta$ = {beta:g}")
    right.set(xlabel="distance", ylabel="factor on the weight")
    right.legend(fontsize=8)
    return figure
