"""Picture of Llama 3's scaling."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import canvas, frequencies, picture

# Llama 3.1's sizes: head of 128 channels, base 500,000, 8,192 tokens, factor 8.
HEAD_DIM, THETA, LENGTH, FACTOR = 128, 5e5, 8192, 8.0


def ramp_numbers() -> dict[str, Tensor]:
    """turns: rotations of each pair in training. llama3, yarn: new frequency over RoPE's. (P,)."""
    omega = frequencies("rope", HEAD_DIM, theta=THETA)
    options = {"theta": THETA, "original_length": LENGTH, "factor": FACTOR}
    return {"turns": LENGTH * omega / (2 * math.pi)} | {
        name: frequencies(name, HEAD_DIM, **options) / omega for name in ("llama3", "yarn")
    }


@picture("llama3-ramp")
def draw_llama3_ramp() -> Figure:
    numbers = ramp_numbers()
    figure, axes = canvas(columns=2)
    looks = (("yarn", "YaRN"), ("llama3", "Llama 3"))
    for name, label in looks:
        look = {
            "color": figures.colour(name), "marker": figures.marker(name), "markersize": 3,
            "lw": 1.2, "label": label,
        }  # fmt: skip
        axes[0, 0].plot(numbers["turns"].numpy(), numbers[name].numpy(), **look)
        axes[0, 1].plot(numbers[name].numpy(), **look)
    for turns in (1, 4):
        axes[0, 0].axvline(turns, color=figures.INK, lw=0.8, ls=":")
    axes[0, 0].set(xscale="log", xlabel="rotations in training", ylabel="new frequency / old")
    axes[0, 1].set(xlabel="pair i", ylabel="new frequency / old")
    for ax in axes[0]:
        ax.set_ylim(0, 1.05)
        ax.legend(frameon=False, fontsize=8)
    return figure
