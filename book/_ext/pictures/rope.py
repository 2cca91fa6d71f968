"""Pictures of RoPE."""

from __future__ import annotations

import math

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import SIGNED, canvas, frequencies, logits_by_distance, picture, randn, rotated


@picture("rope-turns")
def draw_rope_turns() -> Figure:
    head_dim, steps, pairs = 32, 13, (0, 2, 5, 10)
    omega = frequencies("rope", head_dim)
    figure, axes = canvas(columns=4, height=2.2)
    for ax, pair in zip(axes[0], pairs, strict=True):
        content = torch.zeros(steps, head_dim, dtype=torch.float64)
        content[:, pair] = 1.0  # first half of the pair (i, i + d/2)
        turned, _ = rotated("rope", content, content)
        xy = turned[:, [pair, pair + head_dim // 2]].numpy()
        circle = np.linspace(0, 2 * np.pi, 100)
        ax.plot(np.cos(circle), np.sin(circle), color=figures.GRID, lw=0.8)
        for step, (x, y) in enumerate(xy):
            strength = 0.25 + 0.75 * step / (steps - 1)
            ax.plot([0, x], [0, y], color=figures.colour("rope"), alpha=strength, lw=1.4)
        ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
        ax.axis("off")
        turn = 2 * math.pi / float(omega[pair])
        shown = f"{turn:,.0f}" if turn > 100 else f"{turn:.3g}"
        ax.set_title(f"pair {pair}: one rotation in\n{shown} positions", fontsize=8.5)
    return figure


@picture("rope-distance")
def draw_rope_distance() -> Figure:
    head_dim, length = 32, 24
    q, k = randn(1, head_dim, seed=1), randn(1, head_dim, seed=2)
    turned_q, turned_k = rotated("rope", q.expand(length, -1), k.expand(length, -1))
    logits = (turned_q @ turned_k.T / math.sqrt(head_dim)).numpy()
    figure, axes = canvas(columns=2)
    top = np.abs(logits).max()
    axes[0, 0].imshow(logits, cmap=SIGNED, vmin=-top, vmax=top)
    axes[0, 0].grid(False)
    axes[0, 0].set(xlabel="key position n", ylabel="query position m")
    axes[0, 0].set_title("one query content, one key content", fontsize=9)
    for seed in (1, 5, 9):
        curve = logits_by_distance(
            "rope", randn(1, head_dim, seed=seed), randn(1, head_dim, seed=seed + 1), 65
        )
        axes[0, 1].plot(curve.numpy(), color=figures.colour("rope"), alpha=0.35 + seed / 15, lw=1.2)
    axes[0, 1].set(xlabel="distance m − n", ylabel="logit")
    axes[0, 1].set_title("three pairs of contents", fontsize=9)
    return figure


def unturned_pairs(head_dim: int = 32, length: int = 256) -> int:
    """Pairs that complete no full rotation within `length` positions."""
    return int((2 * math.pi / frequencies("rope", head_dim) > length).sum())


@picture("rope-wavelengths")
def draw_rope_wavelengths() -> Figure:
    figure, axes = canvas()
    ax = axes[0, 0]
    head_dim, trained, tested = 32, 256, 2048
    wavelength = (2 * math.pi / frequencies("rope", head_dim)).numpy()
    pairs = np.arange(len(wavelength))
    full = wavelength <= trained
    colour = figures.colour("rope")
    ax.scatter(pairs[full], wavelength[full], color=colour, zorder=3, label="full rotations seen")
    ax.scatter(
        pairs[~full],
        wavelength[~full],
        facecolors="none",
        edgecolors=colour,
        zorder=3,
        label="only an arc seen",
    )
    for value, text in ((trained, "training length 256"), (tested, "tested length 2,048")):
        ax.axhline(value, color=figures.INK, lw=0.8, ls=":")
        ax.annotate(text, (0, value * 1.15), fontsize=8)
    ax.set(yscale="log", xlabel="pair i", ylabel="wavelength λ (positions)")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def decay_numbers(
    head_dim: int = 64, length: int = 1025, favourite: int = 300
) -> dict[str, Tensor]:
    """Everything divided by its value at distance 0 of the equal-content kernel, (length,) each.

    bound: mean over pairs of |S_j|, the sum that bounds the logit. equal: q = k = ones.
    chosen: unit pairs whose content phases cancel the rotation at distance `favourite`.
    """
    pairs = head_dim // 2
    omega = frequencies("rope", head_dim)
    distance = torch.arange(length, dtype=torch.float64)
    turning = torch.polar(torch.ones(length, pairs).double(), distance[:, None] * omega)
    ones = torch.ones(1, head_dim, dtype=torch.float64) / math.sqrt(2)
    phase = favourite * omega  # key content rotated forward by what the distance rotates back
    chosen = torch.cat([phase.cos(), phase.sin()])[None]
    unit = torch.cat([torch.ones(pairs), torch.zeros(pairs)])[None].double()
    scale = math.sqrt(head_dim) / pairs
    return {
        "bound": turning.cumsum(1).abs().mean(1) / ((pairs + 1) / 2),
        "equal": logits_by_distance("rope", ones, ones, length) * scale,
        "chosen": logits_by_distance("rope", unit, chosen, length) * scale,
    }


@picture("rope-decay")
def draw_rope_decay() -> Figure:
    numbers = decay_numbers()
    figure, axes = canvas()
    ax = axes[0, 0]
    labels = {
        "bound": "mean of |S_j|, scaled",
        "equal": "equal contents",
        "chosen": "contents chosen for distance 300",
    }
    colours = {
        "bound": figures.INK,
        "equal": figures.colour("rope"),
        "chosen": figures.colour("yarn"),
    }
    for key, values in numbers.items():
        ax.plot(values.numpy(), color=colours[key], lw=1.2, label=labels[key])
    ax.set(xlabel="distance", ylabel="logit, largest possible = 1", ylim=(-0.6, 1.25))
    ax.legend(frameon=False, fontsize=8, ncol=3, loc="upper center")
    return figure
