"""Picture of NTK-aware scaling."""

from __future__ import annotations

import math

from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import canvas, frequencies, picture


def ntk_ratio(head_dim: int, factor: float) -> Tensor:
    """New frequency over RoPE's, (P,)."""
    return frequencies("ntk", head_dim, factor=factor) / frequencies("rope", head_dim)


def first_open_pair(head_dim: int, length: int) -> int:
    """The first pair that completes no rotation in ``length`` tokens."""
    return int((length * frequencies("rope", head_dim) < 2 * math.pi).nonzero()[0])


@picture("ntk-base")
def draw_ntk_base() -> Figure:
    head_dim, length, stretch = 128, 4096, 4.0
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    for factor, line in ((4.0, "-"), (8.0, "--"), (16.0, ":")):
        ratio = ntk_ratio(head_dim, factor).numpy()
        ink = figures.colour("ntk")
        left.plot(ratio, color=ink, ls=line, label=f"α = {factor:g}")
        right.plot(stretch * ratio, color=ink, ls=line, label=f"α = {factor:g}")
    left.set(yscale="log", xlabel="pair i", ylabel="new frequency / old")
    left.set_yticks([1, 1 / 2, 1 / 4, 1 / 8, 1 / 16], ["1", "1/2", "1/4", "1/8", "1/16"])
    left.minorticks_off()
    right.axhline(1, color=figures.INK, lw=0.8)
    right.axvspan(
        first_open_pair(head_dim, length),
        head_dim // 2 - 1,
        color=figures.colour("ntk"),
        alpha=0.12,
        lw=0,
    )
    right.set(xlabel="pair i", ylabel="angle at 4 L₀ / angle at L₀", ylim=(0, 4.1))
    for ax in (left, right):
        ax.legend(frameon=False, fontsize=8)
    return figure
