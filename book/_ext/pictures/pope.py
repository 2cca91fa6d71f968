"""Pictures of PoPE."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pictures.common import BASE, canvas, logits_by_distance, picture, randn, rotated


def plane_numbers(position: int = 3) -> dict[str, Tensor]:
    """Six key contents at one position, as points (6, 2): one RoPE pair, one PoPE channel."""
    d, frequency = 8, 1  # pair 1 of RoPE, channel 1 of PoPE
    contents = randn(6, d, seed=7)
    here = torch.full((6,), position)
    points = {}
    for name in ("rope", "pope"):
        encoding = pe.encoding(name, head_dim=d, num_heads=1, hidden_size=d)
        with torch.no_grad():
            _, k = encoding.rotate(contents[None, None], contents[None, None], here, here)
        half = k.shape[-1] // 2
        points[name] = k[0, 0][:, [frequency, frequency + half]].double()
    return points


@picture("pope-plane")
def draw_pope_plane() -> Figure:
    figure, axes = canvas(columns=2, height=3.1)
    titles = {"rope": "RoPE: one pair of the key", "pope": "PoPE: one channel of the key"}
    for ax, (name, points) in zip(axes[0], plane_numbers().items(), strict=True):
        reach = float(points.norm(dim=1).max()) * 1.1
        for x, y in points.tolist():
            ax.plot([0, x], [0, y], color=figures.colour(name), lw=1.3, alpha=0.5)
            ax.plot(x, y, "o", color=figures.colour(name), ms=5)
        ax.axhline(0, color=figures.GRID, lw=0.8)
        ax.axvline(0, color=figures.GRID, lw=0.8)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
        ax.grid(False)
        ax.set_title(titles[name], fontsize=9)
    return figure


def what_where_numbers(curves: int = 12, head_dim: int = 32, reach: int = 48) -> dict[str, Tensor]:
    """Logits (curves, 2 reach + 1) of random contents at signed distances, mean removed."""
    length = 2 * reach + 1
    result = {}
    for name in ("rope", "pope"):
        rows = []
        for seed in range(curves):
            q, k = randn(1, head_dim, seed=2 * seed), randn(1, head_dim, seed=2 * seed + 1)
            turned_q, turned_k = rotated(name, q.expand(length, -1), k.expand(length, -1))
            row = turned_k @ turned_q[reach] / math.sqrt(head_dim)  # key n at distance reach - n
            rows.append(row.flip(0) - row.mean())
        result[name] = torch.stack(rows)
    return result


@picture("pope-what-where")
def draw_pope_what_where() -> Figure:
    numbers = what_where_numbers()
    figure, axes = canvas(columns=2)
    for ax, (name, curves) in zip(axes[0], numbers.items(), strict=True):
        reach = curves.shape[1] // 2
        x = np.arange(-reach, reach + 1)
        for curve in curves.numpy():
            ax.plot(x, curve, color=figures.colour(name), alpha=0.35, lw=0.9)
            peak = int(curve.argmax())
            ax.plot(x[peak], curve[peak], "o", color=figures.colour(name), ms=4)
        ax.set_title({"rope": "RoPE", "pope": "PoPE"}[name] + ": same contents", fontsize=9)
        ax.set_xlabel("distance m − n")
    axes[0, 0].set_ylabel("logit − mean of the curve")
    return figure


def kernel_numbers(head_dim: int = 64, length: int = 513) -> dict[str, Tensor]:
    """Logit by distance (length,): PoPE for zero contents; RoPE for equal contents, same height.

    estimate: sqrt(d) (ln 2)^2 (1 - (ln distance + 0.577) / ln theta), from distance 1 on.
    """
    zeros = torch.zeros(1, head_dim, dtype=torch.float64)
    pope = logits_by_distance("pope", zeros, zeros, length)
    ones = torch.full((1, head_dim), math.log(2), dtype=torch.float64)
    log_distance = torch.arange(length, dtype=torch.float64).clamp_min(1).log()
    estimate = pope[0] * (1 - (log_distance + np.euler_gamma) / math.log(BASE))
    rope = logits_by_distance("rope", ones, ones, length)
    return {"pope": pope, "rope": rope, "estimate": estimate}


@picture("pope-kernel")
def draw_pope_kernel() -> Figure:
    figure, axes = canvas()
    ax = axes[0, 0]
    numbers = kernel_numbers()
    labels = {"pope": "PoPE, contents 0", "rope": "RoPE, every entry ln 2"}
    for name, label in labels.items():
        ax.plot(numbers[name].numpy(), color=figures.colour(name), lw=1.2, label=label)
    distance = np.arange(1, len(numbers["estimate"]))
    ax.plot(distance, numbers["estimate"][1:].numpy(), color=figures.INK, ls=":", label="estimate")
    ax.set(xlabel="distance", ylabel="logit", xscale="symlog", xlim=(0, 512))
    ax.legend(frameon=False, fontsize=8)
    return figure
