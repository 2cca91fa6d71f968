"""Pictures of Sandwich."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.biases import distance_bias
from pictures.common import BASE, canvas, picture

WIDTH = 128


def logarithm(distance: Tensor, head: int, heads: int = 8) -> Tensor:
    """What the sum of cosines comes to without its ripples, for distances from 1 on."""
    slope = heads / (8 * head) * WIDTH / 2 / math.log(BASE)
    return -slope * (distance.double().log() + np.euler_gamma)


@picture("sandwich-heads")
def draw_sandwich_heads() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    colour = figures.colour("sandwich")
    distance = torch.arange(2048)
    bias = distance_bias("sandwich", distance)
    for head in (1, 2, 4, 8):
        look = {"color": colour, "alpha": 1 - 0.08 * head, "lw": 1.4}
        left.plot(distance, bias[head - 1], **look)
        left.annotate(f"head {head}", (2090, float(bias[head - 1, -200:].mean()) - 1), fontsize=8)
    left.set(xlabel="distance", ylabel="bias", xlim=(-50, 2560), xticks=[0, 1000, 2000])
    near = torch.arange(1, 65)
    right.plot(near, bias[0, 1:65], color=colour, lw=1.4, label="head 1")
    right.plot(near, logarithm(near, 1), color=figures.INK, ls=":", lw=1.3, label="logarithm")
    right.set(xscale="log", xlabel="distance")
    right.set_xticks([1, 4, 16, 64], ["1", "4", "16", "64"])
    right.minorticks_off()
    right.legend(fontsize=8)
    return figure
