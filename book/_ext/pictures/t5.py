"""Pictures of T5's relative bias."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.t5 import T5
from pictures.biases import distance_bias
from pictures.common import canvas, picture

LONGEST = 512


def buckets(num_buckets: int = 32, max_distance: int = 128) -> Tensor:
    """(LONGEST,) bucket of each distance."""
    encoding = T5(1, 32, num_buckets=num_buckets, max_distance=max_distance)
    return encoding.buckets(torch.arange(LONGEST))


@picture("t5-buckets")
def draw_t5_buckets() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    distance = torch.arange(LONGEST).numpy()
    colour = figures.colour("t5")
    left.plot(distance, buckets().numpy(), color=colour, drawstyle="steps-post", lw=1.5)
    left.axvline(113, color=figures.INK, lw=0.8, ls=":")
    left.annotate("113", (113, 2), xytext=(4, 0), textcoords="offset points", fontsize=8)
    left.set(xlabel="distance", ylabel="bucket")
    bias = distance_bias("t5", torch.arange(LONGEST), heads=3, hidden_size=256)
    for head, row in enumerate(bias):
        look = {"alpha": 1 - 0.3 * head, "label": f"head {head + 1}"}
        right.plot(distance, row.numpy(), color=colour, drawstyle="steps-post", lw=1.3, **look)
    right.set(xscale="symlog", xlim=(0, LONGEST), xlabel="distance", ylabel="bias before training")
    right.set_xticks([0, 1, 4, 16, 113], ["0", "1", "4", "16", "113"])
    right.legend(fontsize=8)
    return figure
