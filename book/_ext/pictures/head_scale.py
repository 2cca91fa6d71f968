"""Pictures of head scale."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.attention.dense import attention_weights
from pe.encodings.head_scale import HeadScale
from pictures.common import canvas, picture, randn

FACTORS = (1.0, 1.6, 3.0)
LINES = ("-", "--", ":")
DRAWS = 16


def entropy_numbers(lengths: list[int], factor: float) -> Tensor:
    """exp of the entropy of attention over so many keys with random logits: how many it is on.

    The entropy is the mean of `DRAWS` draws.
    """
    enc = HeadScale(1, start=factor).double()
    q, k = randn(DRAWS, 1, 1, 16, seed=0), randn(DRAWS, 1, lengths[-1], 16, seed=1)
    q = q * 2 * 4 / q.norm(dim=-1, keepdim=True)  # logits of standard deviation 2
    with torch.no_grad():
        scaled = q * enc.logit_scale(torch.zeros(1, dtype=torch.long))[..., None]
    weights = [attention_weights(scaled, k[:, :, :n], 0.25) for n in lengths]
    return torch.stack([(-(w * w.log()).sum(-1)).mean().exp() for w in weights])


@picture("head-scale-spread")
def draw_head_scale_spread() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("head_scale")
    lengths = [int(2**step) for step in torch.arange(4, 14.5, 0.5)]
    for factor, line in zip(FACTORS, LINES, strict=True):
        spread = entropy_numbers(lengths, factor)
        name = f"$\\lambda$ = {factor:g}"
        left.plot(lengths, spread, color=ink, ls=line, label=name)
        right.plot(lengths, spread / torch.tensor(lengths), color=ink, ls=line, label=name)
    left.set(xscale="log", yscale="log", xlabel="keys to choose from",
             ylabel="keys that attention is on")  # fmt: skip
    right.set(xscale="log", xlabel="keys to choose from", ylabel="share of the keys")
    left.legend(fontsize=8)
    return figure
