"""Pictures of ALiBi."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.biases import HEADS, distance_bias
from pictures.common import canvas, picture


def reach_numbers(length: int = 2048) -> Tensor:
    """(H, length): share of a head's attention within each distance, all contents being equal."""
    bias = distance_bias("alibi", torch.arange(length))
    return bias.softmax(dim=-1).cumsum(dim=-1)


@picture("alibi-slopes")
def draw_alibi_slopes() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    distance = torch.arange(2048)
    bias, reach = distance_bias("alibi", distance), reach_numbers()
    for head in range(HEADS):
        look = {"color": figures.colour("alibi"), "alpha": 1 - 0.1 * head, "lw": 1.4}
        left.plot(distance[:65], bias[head, :65], **look)
        right.plot(distance + 1, reach[head], **look)
    for head in (0, 1, 2, 3, 5):
        at = min(int(8 / 2.0 ** -(head + 1)), 64)
        left.annotate(
            f"head {head + 1}", (at, float(bias[head, at])), fontsize=8, color=figures.INK
        )
    left.set(xlabel="distance", ylabel="bias", ylim=(-9, 0.3), xlim=(0, 78))
    right.axhline(0.5, color=figures.INK, lw=0.8, ls=":")
    right.set(xscale="log", xlabel="keys counted backwards", ylabel="share of attention")
    return figure


def coin_loss(seen: int) -> Tensor:
    """(seen + 1,) nats: expected loss of the best guess at a coin's next flip after c flips.

    The coin's bias is uniform. n flips with k heads have probability 1 / ((n + 1) C(n, k)).
    """
    n = torch.arange(seen + 2, dtype=torch.float64)
    total = torch.zeros(seen + 2, dtype=torch.float64)
    for flips in range(1, seen + 2):
        k = n[: flips + 1]
        ways = math.lgamma(flips + 1) - torch.lgamma(k + 1) - torch.lgamma(flips - k + 1)
        total[flips] = (math.log(flips + 1) + ways).mean()
    return total.diff()


def early_numbers(window: int = 32, longest: int = 2048) -> dict[str, Tensor]:
    """Mean loss (n,) by length of the evaluated text, for a predictor that sees 32 flips back.

    apart: cut into pieces of that length, everything scored. sliding: each flip is scored behind
    length - 1 others. all: like apart, for a predictor that sees everything.
    """
    full = coin_loss(longest - 1)
    short = full[torch.arange(longest).clamp(max=window)]
    length = 2 ** torch.arange(2, round(math.log2(longest)) + 1)
    count = torch.arange(1, longest + 1)
    return {
        "length": length,
        "apart": (short.cumsum(0) / count)[length - 1],
        "sliding": short[length - 1],
        "all": (full.cumsum(0) / count)[length - 1],
    }


@picture("alibi-early")
def draw_alibi_early() -> Figure:
    numbers = early_numbers()
    figure, axes = canvas()
    ax = axes[0, 0]
    length = numbers["length"].numpy()
    alibi = figures.colour("alibi")
    for key, label, look in (
        ("apart", "sees 32 back, text cut into pieces", {"color": alibi, "marker": "o"}),
        ("sliding", "sees 32 back, sliding by one", {"color": alibi, "marker": "o", "ls": "--"}),
        ("all", "sees everything, cut into pieces", {"color": figures.FAINT, "ls": ":"}),
    ):
        ax.plot(length, numbers[key].numpy(), label=label, lw=1.5, ms=4, **look)
    ax.axvline(32, color=figures.INK, lw=0.8, ls=":")
    ax.set(xscale="log", xlabel="length of the evaluated pieces", ylabel="mean loss (nats)")
    ax.set_xticks([4, 16, 64, 256, 1024], ["4", "16", "64", "256", "1,024"])
    ax.minorticks_off()
    ax.legend(fontsize=8)
    return figure
