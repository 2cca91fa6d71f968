"""Pictures of PaTH."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.path import PaTH
from pictures.common import canvas, picture, randn

BETAS = (0.0, 0.5, 1.0, 1.5, 2.0)


def logit_numbers(w: Tensor, beta: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """(B, T) logits of B last queries with one key content each at every distance, unscaled.

    ``w`` (B, T, D) of length 1 and ``beta`` (B, T) are what tokens reflect by; ``q`` and ``k``
    are (B, D).
    """
    length, width = w.shape[1:]
    keys, places = k[:, None, None].expand(-1, 1, length, width), torch.arange(length)
    state = torch.cat((w, beta[..., None]), -1)[:, None]
    bias = PaTH(width, 1, 1, width).bias(q[:, None, None], keys, places[-1:], places, state)
    return ((q * k).sum(-1, keepdim=True) + bias[:, 0, 0] * math.sqrt(width)).flip(-1)


def flip_numbers() -> Tensor:
    """(T,) a switch: three tokens at distances 10, 25 and 40 flip the sign, others do nothing."""
    length = 56
    w = torch.zeros(1, length, 2, dtype=torch.float64)
    w[..., 0] = 1
    beta = torch.zeros(1, length, dtype=torch.float64)
    beta[:, [length - 1 - back for back in (10, 25, 40)]] = 2
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    return logit_numbers(w, beta, one, one)[0]


def decay_numbers(beta: float, length: int = 56, width: int = 16) -> Tensor:
    """(T,) mean squared logit by distance under random reflections, as a share of that at 0."""
    seeds = range(240)
    w = torch.stack([randn(length, width, seed=seed) for seed in seeds])
    w = w / w.norm(dim=-1, keepdim=True)
    q, k = torch.stack([randn(2, width, seed=1000 + seed) for seed in seeds]).unbind(1)
    strength = torch.full((len(seeds), length), beta, dtype=torch.float64)
    mean = logit_numbers(w, strength, q, k).square().mean(0)
    return mean / mean[0]


def kept(beta: float, width: int) -> float:
    """By which factor a random reflection multiplies the mean square of a logit."""
    return 1 - beta * (2 - beta) / width


@picture("path-reflections")
def draw_path_reflections() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("path")
    left.step(torch.arange(56), flip_numbers(), where="mid", color=ink, lw=1.5)
    left.axhline(0, color=figures.INK, lw=0.8, ls=":")
    left.set(xlabel="distance", ylabel="logit of equal keys")
    for beta, line in zip((0.0, 0.5, 1.0), ("-", "--", ":"), strict=True):
        right.plot(decay_numbers(beta), color=ink, ls=line, lw=1.5, label=f"$\\beta$ = {beta:g}")
    distance = torch.arange(56)
    right.plot(distance, kept(1.0, 16) ** distance, color=figures.INK, lw=0.8)
    right.set(xlabel="distance", ylabel="mean square of the logit", ylim=(0, 1.6))
    right.legend(fontsize=8)
    return figure
