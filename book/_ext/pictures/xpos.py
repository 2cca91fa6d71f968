"""Pictures of xPos."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.xpos import XPos
from pictures.common import canvas, logits_by_distance, picture

WIDTH, PAIRS = 64, (0, 8, 16, 24, 31)


def encoding() -> XPos:
    enc = pe.encoding("xpos", head_dim=WIDTH, num_heads=1)
    assert isinstance(enc, XPos)
    return enc


def weight_numbers(longest: int = 2048) -> Tensor:
    """(len(PAIRS), longest) what a pair's part of the logit is multiplied by, by distance."""
    rate = encoding().exact_buffers()["rate"][list(PAIRS)]
    return (rate[:, None] * torch.arange(longest)).exp()


def logit_numbers(longest: int = 2048) -> dict[str, Tensor]:
    """(longest,) logit by distance of equal contents, all channels 1."""
    ones = torch.ones(1, WIDTH, dtype=torch.float64)
    return {name: logits_by_distance(name, ones, ones, longest) for name in ("rope", "xpos")}


def factor_numbers(length: int = 60_000, step: int = 100) -> tuple[Tensor, Tensor, Tensor]:
    """Positions, and the size that a float32 query and key of size 1 gets in each stretch.

    (n,), (stretches, n), (stretches, n): of pair 0, whose factors are the largest.
    """
    enc, positions = encoding(), torch.arange(0, length, step)
    q_tables, k_tables = enc.prepare(positions, positions, torch.float32).tables
    sizes = [[c.double().hypot(s.double())[0, 0, :, 0] for c, s in t] for t in (q_tables, k_tables)]
    return positions, torch.stack(sizes[0]), torch.stack(sizes[1])


@picture("xpos-decay")
def draw_xpos_decay() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("xpos")
    for index, (pair, weight) in enumerate(zip(PAIRS, weight_numbers(), strict=True)):
        left.plot(weight.numpy(), color=ink, alpha=1 - 0.17 * index, label=f"pair {pair}")
    left.set(xlabel="distance", ylabel="factor on the pair's logit", ylim=(0, 1.05))
    left.legend(frameon=False, fontsize=8)
    for name, logits in logit_numbers().items():
        right.plot(logits.numpy(), color=figures.colour(name), lw=1, label=name)
    right.set(xlabel="distance", ylabel="logit of equal contents")
    right.legend(frameon=False, fontsize=8)
    return figure


@picture("xpos-stretches")
def draw_xpos_stretches() -> Figure:
    figure, axes = canvas(columns=2, height=2.6)
    positions, q, k = factor_numbers()
    for ax, sizes, what in ((axes[0, 0], q, "query"), (axes[0, 1], k, "key")):
        for index, row in enumerate(sizes):
            shown = torch.where(row > 0, row, torch.nan).numpy()
            ax.plot(positions.numpy(), shown, ls=("-", "--", ":")[index],
                    color=figures.colour("xpos"), label=f"chunk {index}")  # fmt: skip
        ax.set(yscale="log", xlabel="position", ylabel=f"factor on a {what}", ylim=(1e-40, 1e40))
    axes[0, 1].legend(frameon=False, fontsize=8)
    return figure


def half_life(pair: int) -> float:
    """Tokens after which the pair's part is halved."""
    return math.log(0.5) / float(encoding().exact_buffers()["rate"][pair])
