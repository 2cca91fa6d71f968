"""Pictures of NoPE."""

from __future__ import annotations

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import canvas, picture


def counting_numbers(length: int = 2048) -> dict[str, Tensor]:
    """Signal 1/t of the first-token head at t = 1..length, and t read back from it.

    The head is a real softmax over equal logits, in float64; the signal is then stored as named
    and t is the integer nearest to its inverse.
    """
    first = torch.zeros(length, dtype=torch.float64)
    first[0] = 1.0  # the value vector of the first token; all others hold 0
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    zeros = torch.zeros(length, length, dtype=torch.float64)
    signal = zeros.masked_fill(~visible, -torch.inf).softmax(-1) @ first
    stored = {"float32": signal.float().double(), "bfloat16": signal.bfloat16().double()}
    return {"signal": signal} | {key: (1 / value).round() for key, value in stored.items()}


def first_confusion(length: int = 2048) -> int:
    """The first t whose bfloat16 signal is the same number as that of t + 1."""
    stored = counting_numbers(length)["signal"].bfloat16()
    return int((stored[1:] == stored[:-1]).nonzero()[0]) + 1


@picture("nope-counting")
def draw_counting() -> Figure:
    numbers = counting_numbers()
    t = np.arange(1, len(numbers["signal"]) + 1)
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    left.plot(t, numbers["signal"].numpy(), color=figures.colour("nope"))
    left.axvline(256, color=figures.INK, lw=0.8, ls=":")
    left.annotate("training length\nof the demo", (275, 0.2), fontsize=8)
    left.set(xscale="log", yscale="log", xlabel="position t", ylabel="first token's share, 1/t")
    for key, ink in (("bfloat16", figures.colour("nope")), ("float32", figures.INK)):
        right.plot(t, numbers[key].numpy() - t, color=ink, lw=1, label=key)
    right.set(xlabel="position t", ylabel="position read back − t")
    right.legend(frameon=False, fontsize=8)
    return figure
