"""Pictures of SSMax."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pictures.common import canvas, picture

GAP, LENGTH = 8.0, 1024
LOOKS = ((0.1, ":"), (0.125, "--"), (0.168, "-"), (0.25, "-."))


def factor(n: Tensor, s: float | None = None) -> Tensor:
    """s ln N, as the encoding gives it; s: the encoding's default if None."""
    options = {} if s is None else {"s_init": s}
    enc = pe.encoding("ssmax", head_dim=8, num_heads=1, original_length=LENGTH, **options).double()
    scale = enc.logit_scale(n - 1)
    assert scale is not None
    return scale[0].detach()


def weight_numbers(n: Tensor, s: float | None) -> Tensor:
    """Weight of one key whose logit is GAP above that of the n - 1 others; s None: softmax."""
    scale = torch.ones(len(n), dtype=torch.float64) if s is None else factor(n, s)
    return 1 / (1 + (n - 1) * (-GAP * scale).exp())


@picture("ssmax-fading")
def draw_ssmax_fading() -> Figure:
    n = torch.logspace(0.35, 6, 160).long()
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("ssmax")
    left.plot(n.numpy(), weight_numbers(n, None).numpy(), color=figures.colour("nope"),
              label="softmax")  # fmt: skip
    for s, line in LOOKS:
        left.plot(n.numpy(), weight_numbers(n, s).numpy(), color=ink, ls=line, label=f"s = {s:g}")
    left.set(xscale="log", xlabel="keys to choose from, N", ylabel="weight of the best key")
    left.legend(frameon=False, fontsize=8, loc="center right", bbox_to_anchor=(1, 0.7))
    right.plot(n.numpy(), factor(n).numpy(), color=ink)
    right.axhline(1, color=figures.INK, lw=0.8, ls=":")
    right.axvline(LENGTH, color=figures.INK, lw=0.8, ls=":")
    right.set(xscale="log", xlabel="keys to choose from, N", ylabel="s ln N at the start")
    return figure


def start(length: int) -> float:
    """1 / mean of ln 1 .. ln length."""
    return length / math.lgamma(length + 1)
