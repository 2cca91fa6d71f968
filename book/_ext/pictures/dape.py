"""Pictures of DAPE."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.dape import DAPE
from pictures.common import canvas, picture

LOGITS = (-2.0, -1.0, 2.0)
LINES = ("--", "-", ":")
LENGTH = 64


def gated() -> DAPE:
    """One head with two hidden units that lift the penalty b from keys that match.

    f = relu(-b + z/10) - relu(z/10), which is -b where z > 0 and 0 where z/10 < b.
    """
    enc = DAPE(1, prior="alibi", mlp_width=2).double()
    with torch.no_grad():
        enc.hidden_weight.copy_(torch.tensor([[0.1, -1.0], [0.1, 0.0]]))
        enc.hidden_bias.zero_()
        enc.head_weight.copy_(torch.tensor([[1.0, -1.0]]))
        enc.head_bias.zero_()
    return enc


def bias_numbers(enc: DAPE, logit: float) -> Tensor:
    """(T,) the first head's bias by distance, of keys that all have this logit in all heads."""
    heads = enc.num_heads or 1
    q = torch.full((1, heads, 1, 1), logit, dtype=torch.float64)
    places = torch.arange(LENGTH)
    with torch.no_grad():
        bias = enc.bias(q, torch.ones(1, heads, LENGTH, 1).double(), places[-1:], places)
    return bias[0, 0, 0].flip(0)


def started() -> DAPE:
    """Eight heads before training."""
    enc = DAPE(8)
    enc.reset_parameters(torch.Generator().manual_seed(0))
    return enc.double()


@picture("dape-lifting")
def draw_dape_lifting() -> Figure:
    figure, axes = canvas(columns=2)
    ink = figures.colour("dape")
    names = ("what one head can learn", "before training")
    for axis, enc, name in zip(axes[0], (gated(), started()), names, strict=True):
        for logit, line in zip(LOGITS, LINES, strict=True):
            axis.plot(bias_numbers(enc, logit), color=ink, ls=line, label=f"z = {logit:g}")
        axis.set(xlabel="distance", title=name)
        axis.title.set_size(9)
    axes[0][0].set(ylabel="bias")
    axes[0][0].legend(fontsize=8)
    return figure
