"""Pictures of how one would invent positional encodings, and of the long-context chapters."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import NARROW, canvas, picture
from pictures.t5 import buckets

WORD = 64
TRAINED, FAR = 16, 40
CLIP = 16


def word_left(positions: Tensor) -> Tensor:
    """Size of a word's entries after normalisation, when its position was added to one of them."""
    return (WORD / (WORD + positions.double() ** 2)).sqrt()


def bits(count: int, width: int) -> Tensor:
    """(count, width): the bits of the first positions, most significant first."""
    return (torch.arange(count)[:, None] >> torch.arange(width).flip(0)) & 1


def added_logit(p: Tensor, distance: int = 1) -> Tensor:
    """The logit of two equal words (1, 0) to which the hand of a clock was added, by place."""
    r = p - distance
    return 1 + torch.cos(r) + torch.cos(p) + torch.cos(p - r)


@picture("invent-digits")
def draw_digits() -> Figure:
    figure, axes = canvas(rows=2, height=5.4, width=NARROW)
    top, bottom = axes[:, 0]
    positions = torch.arange(501)
    top.plot(positions, word_left(positions), color=figures.colour("sinusoidal"))
    top.set(xlabel="position", ylabel="size of the word's entries", yscale="log", ylim=(0.01, 1.3))
    top.annotate("0.016 at 500", (500, float(word_left(torch.tensor(500)))), xytext=(-6, 14),
                  textcoords="offset points", ha="right", fontsize=9)  # fmt: skip
    bottom.imshow(bits(16, 4).numpy(), aspect="auto", cmap=figures.SEQUENTIAL, vmin=0, vmax=1.6)
    for position, row in enumerate(bits(16, 4).tolist()):
        for column, bit in enumerate(row):
            bottom.text(column, position, str(bit), ha="center", va="center", fontsize=9)
    bottom.axhline(7.5, color=figures.INK, lw=1.4, ls="--")
    bottom.grid(visible=False)
    bottom.set(xlabel="a bit is worth", ylabel="position", yticks=[0, 3, 7, 8, 12, 15])
    bottom.set_xticks(range(4), ["8", "4", "2", "1"])
    return figure


@picture("invent-waves")
def draw_waves() -> Figure:
    figure, axes = canvas(rows=2, height=5.4, width=NARROW)
    top, bottom = axes[:, 0]
    fine = np.linspace(0, 16, 641)
    colour = figures.colour("sinusoidal")
    for place, bit in enumerate((0, 1, 2)):
        shift, period = 1.6 * place, 2 ** (bit + 1)
        square = (np.floor(fine).astype(int) >> bit) & 1
        top.plot(fine, square + shift, color=figures.FAINT, lw=1.2, drawstyle="steps-post")
        wave = 0.5 - 0.5 * np.sin(2 * math.pi * fine / period)
        top.plot(fine, wave + shift, color=colour, lw=1.4)
    top.set(xlabel="position", xlim=(0, 16))
    top.set_yticks([0.5, 2.1, 3.7], ["bit of 1", "bit of 2", "bit of 4"])
    top.grid(visible=False)
    places = torch.arange(1, 41, dtype=torch.float64)
    bottom.plot(places, added_logit(places), color=colour, marker=".", ms=4, lw=1, label="added")
    bottom.axhline(math.cos(1), color=figures.colour("rope"), lw=1.8, ls="--", label="rotated")
    bottom.set(xlabel="position of the query", ylabel="logit at distance 1", ylim=(-0.6, 4.6))
    bottom.legend(fontsize=9, loc="upper right", ncols=2)
    return figure


@picture("invent-beyond")
def draw_beyond() -> Figure:
    figure, axes = canvas(rows=2, height=5.4, width=NARROW)
    top, bottom = axes[:, 0]
    circle = np.linspace(0, 2 * math.pi, 200)
    colour = figures.colour("rope")
    top.plot(np.cos(circle), np.sin(circle), color=figures.GRID, lw=1)
    seen = np.linspace(0, 0.1 * (TRAINED - 1), 50)
    top.plot(np.cos(seen), np.sin(seen), color=colour, lw=5, alpha=0.7)
    for angle, text in ((0.1 * (TRAINED - 1), f"{TRAINED - 1}"), (0.1 * FAR, f"distance {FAR}")):
        x, y = math.cos(angle), math.sin(angle)
        top.plot([0, x], [0, y], color=figures.INK, lw=1.3)
        top.plot([x], [y], "o", color=figures.INK, ms=4)
        top.annotate(text, (x, y), xytext=(10 * x - 4, 10 * y + (4 if y > 0 else -6)),
                      textcoords="offset points", fontsize=9,
                      ha="left" if y > 0 else "right")  # fmt: skip
    top.annotate("seen in training", (0.72, 0.70), xytext=(10, 0), textcoords="offset points",
                  fontsize=9)  # fmt: skip
    top.set(xlim=(-1.7, 2.2), ylim=(-1.3, 1.4), aspect="equal")
    top.axis("off")
    distance = torch.arange(1, 400)
    bottom.plot(distance, buckets()[distance], color=figures.colour("t5"), drawstyle="steps-post",
               lw=1.6, label="T5")  # fmt: skip
    bottom.plot(distance, distance.clamp(max=CLIP), color=figures.colour("relative_content"),
               ls="--", lw=1.6, label=f"Shaw, clipped at {CLIP}")  # fmt: skip
    bottom.set(xscale="log", xlabel="distance", ylabel="number of the entry")
    bottom.set_xticks([1, 16, 113, 400], ["1", "16", "113", "400"])
    bottom.minorticks_off()
    bottom.legend(fontsize=9, loc="upper left")
    return figure
