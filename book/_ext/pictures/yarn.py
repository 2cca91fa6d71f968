"""Pictures of YaRN."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.yarn import YaRN
from pictures.common import BASE, canvas, frequencies, picture


def cutoffs(head_dim: int, original_length: int) -> tuple[int, int]:
    """(low, high), the pair indices where YaRN's ramp begins and ends."""
    low, high = YaRN(original_length).ramp_bounds(head_dim, BASE)
    return int(low), int(high)


def yarn_ratios(head_dim: int, original_length: int, factor: float) -> dict[str, Tensor]:
    """New frequency over RoPE's, (P,), for position interpolation, NTK-aware scaling and YaRN."""
    omega = frequencies("rope", head_dim)
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    yarn = frequencies("yarn", head_dim, original_length=original_length, factor=factor)
    return {
        "PI": torch.full_like(omega, 1 / factor),
        "NTK": factor ** (-2 * pair / (head_dim - 2)),
        "YaRN": yarn / omega,
    }


@picture("yarn-frequencies")
def draw_yarn_frequencies() -> Figure:
    head_dim, original, factor = 128, 4096, 16.0
    ratios = yarn_ratios(head_dim, original, factor)
    turns = (original * frequencies("rope", head_dim) / (2 * math.pi)).numpy()
    low, high = cutoffs(head_dim, original)
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    left.plot(turns, color=figures.colour("rope"))
    for value, name in ((32, "32 rotations"), (1, "1 rotation")):
        left.axhline(value, color=figures.INK, lw=0.8, ls=":")
        left.annotate(name, (0, value * 1.25), fontsize=8)
    left.set(yscale="log", xlabel="pair i", ylabel="rotations in the original length")
    looks = {
        "PI": (figures.INK, ":"),
        "NTK": (figures.FAINT, "--"),
        "YaRN": (figures.colour("yarn"), "-"),
    }
    for key, values in ratios.items():
        ink, line = looks[key]
        right.plot(values.numpy(), color=ink, ls=line, label=key, lw=1.5)
    for ax in (left, right):
        ax.axvspan(low, high, color=figures.colour("yarn"), alpha=0.12, lw=0)
    right.set(xlabel="pair i", ylabel="new frequency / old", ylim=(0, 1.05))
    right.legend(frameon=False, fontsize=8)
    return figure


@picture("yarn-small")
def draw_yarn_small() -> Figure:
    head_dim, factor = 32, 8.0
    figure, axes = canvas()
    ax = axes[0, 0]
    lengths = (4096, 1024, 256, 64, 6)
    for shade, length in enumerate(lengths):
        ratio = yarn_ratios(head_dim, length, factor)["YaRN"].numpy()
        low, high = cutoffs(head_dim, length)
        ax.plot(
            ratio,
            marker=".",
            color=figures.colour("yarn"),
            alpha=1 - 0.18 * shade,
            ls=("-", "--", "-.", ":", "-")[shade],
            label=f"{length:,}: low {low}, high {high}",
        )
    ax.axhline(1 / factor, color=figures.INK, lw=0.8, ls=":")
    ax.annotate("1/s: fully interpolated", (12.3, 1 / factor + 0.03), fontsize=8)
    ax.set(xlabel="pair i", ylabel="new frequency / old", ylim=(0, 1.08))
    ax.legend(frameon=False, fontsize=8, title="original length", title_fontsize=8)
    return figure
