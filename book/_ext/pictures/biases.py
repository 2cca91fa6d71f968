"""Biases as functions of the distance, side by side."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.core.distance import DistanceBias
from pictures.common import canvas, picture, randn

HEADS, LENGTH = 8, 512
NAMES = ("nope", "alibi", "t5", "kerple_log", "kerple_power", "sandwich", "fire", "fox")


def distance_bias(name: str, distance: Tensor, heads: int = HEADS, **options: Any) -> Tensor:
    """(H, n) float64: what an encoding adds at each of n distances, as it is initialised."""
    encoding = pe.encoding(name, head_dim=32, num_heads=heads, **options)
    assert isinstance(encoding, DistanceBias)
    encoding.reset_parameters(torch.Generator().manual_seed(1))
    with torch.no_grad():
        return encoding.distance_bias(distance).double()


def last_row(name: str) -> Tensor:
    """(H, LENGTH): what the last of 512 queries gets added, by distance, before any training.

    Layer inputs are normal with variance 1, as they come out of a norm; queries and keys are 0.
    """
    encoding = pe.encoding(
        name, head_dim=32, num_heads=HEADS, hidden_size=256, original_length=LENGTH
    )
    encoding.reset_parameters(torch.Generator().manual_seed(1))
    positions = torch.arange(LENGTH)
    q, k = torch.zeros(1, HEADS, 1, 32), torch.zeros(1, HEADS, LENGTH, 32)
    with torch.no_grad():
        state = encoding.key_state(randn(1, LENGTH, 256, seed=2).float())
        bias = encoding.bias(q, k, positions[-1:], positions, state)
    return torch.zeros(HEADS, LENGTH) if bias is None else bias[0, :, 0].flip(-1)


@picture("bias-shapes")
def draw_bias_shapes() -> Figure:
    figure, axes = canvas(columns=4, rows=2, height=4.4)
    for ax, name in zip(axes.flat, NAMES, strict=True):
        for head, row in enumerate(last_row(name)):
            ax.plot(row.numpy(), color=figures.colour(name), alpha=1 - 0.09 * head, lw=1.2)
        ax.set_title(name, fontsize=9)
        ax.set_xscale("symlog", linthresh=1, linscale=0.4)
        ax.set(xlim=(0, LENGTH - 1), ylim=(-12, 1.5))
        ax.set_xticks([0, 1, 10, 100], ["0", "1", "10", "100"])
        ax.minorticks_off()
        ax.label_outer()
    figure.supxlabel("distance", fontsize=10)
    figure.supylabel("bias", fontsize=10)
    return figure
