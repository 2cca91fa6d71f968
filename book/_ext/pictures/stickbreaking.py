"""Pictures of stick-breaking."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.attention.dense import attention_weights
from pe.encodings.stickbreaking import StickBreaking
from pictures.common import canvas, picture

MATCHES, LENGTH = (20, 70), 100


def weight_numbers(logits: Tensor, kind: str) -> Tensor:
    """(T,) weights of the last query by distance to keys with these logits by distance."""
    q = torch.full((1, 1, 1, 1), 1.0, dtype=torch.float64)
    k = logits.flip(0)[None, None, :, None]
    if kind == "softmax":
        return attention_weights(q, k, 1.0)[0, 0, 0].flip(0)
    enc, places = StickBreaking(1), torch.arange(len(logits))
    bias = enc.bias(q, k, places[-1:], places)
    return attention_weights(q, k, 1.0, bias, None, enc.sink_logit())[0, 0, 0].flip(0)


def search_numbers() -> Tensor:
    """(T,) logits by distance: two keys that match, and others that do not."""
    logits = torch.full((LENGTH,), -5.0, dtype=torch.float64)
    logits[list(MATCHES)] = 2.0
    return logits


@picture("stick-search")
def draw_stick_search() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink, grey = figures.colour("stickbreaking"), figures.colour("nope")
    logits = search_numbers()
    left.plot(weight_numbers(logits, "softmax"), color=grey, ls="--", lw=1.5, label="softmax")
    left.plot(weight_numbers(logits, "stick"), color=ink, lw=1.5, label="stick-breaking")
    left.set(xlabel="distance", ylabel="weight")
    left.legend(fontsize=8)
    distance = torch.arange(LENGTH)
    for logit, line in ((-1.0, "-"), (-3.0, "--"), (-5.0, ":")):
        same = torch.full((LENGTH,), logit, dtype=torch.float64)
        share = weight_numbers(same, "stick").cumsum(0)
        right.plot(distance, share, color=ink, ls=line, lw=1.5, label=f"z = {logit:g}")
    right.axhline(0.5, color=figures.INK, lw=0.8, ls=":")
    right.set(xlabel="distance", ylabel="broken off so far")
    right.legend(fontsize=8)
    return figure


def half_life(logit: float) -> float:
    """After how many keys of this logit half of the stick is left."""
    return math.log(2) / math.log1p(math.exp(logit))
