"""All frequency transforms in one picture."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.rope import RoPE
from pe.results.quantities import label
from pictures.common import canvas, frequencies, picture

HEAD_DIM, LENGTH, FACTOR = 128, 4096, 8.0


def search_start() -> list[float]:
    """Example factors for LongRoPE, where its published search begins: YaRN's blend, of factors.

    YaRN blends frequencies, gamma + (1 - gamma)/s; this is gamma + (1 - gamma) s, to divide by.
    """
    yarn = frequencies("yarn", HEAD_DIM, original_length=LENGTH, factor=FACTOR)
    keep = (yarn / frequencies("rope", HEAD_DIM) - 1 / FACTOR) / (1 - 1 / FACTOR)
    factors: list[float] = (keep + (1 - keep) * FACTOR).tolist()
    return factors


def shown() -> dict[str, tuple[dict[str, Any], int | None]]:
    """Options of each transform, and the length of text in units of LENGTH where that matters."""
    return {
        "resonance": ({}, None),
        "pi": ({"factor": FACTOR}, None),
        "ntk": ({"factor": FACTOR}, None),
        "dynamic_ntk": ({"factor": 1.0}, 2),
        "yarn": ({"factor": FACTOR}, None),
        "llama3": ({"factor": FACTOR}, None),
        "longrope": ({"factor": FACTOR, "long_factor": search_start()}, int(FACTOR)),
    }


def ratios() -> dict[str, Tensor]:
    """New frequency over RoPE's, (P,) for each transform of `shown`."""
    rope, found = frequencies("rope", HEAD_DIM), {}
    for name, (options, multiple) in shown().items():
        enc = pe.encoding(name, head_dim=HEAD_DIM, num_heads=1, original_length=LENGTH, **options)
        assert isinstance(enc, RoPE)
        length = None if multiple is None else torch.tensor(multiple * LENGTH)
        found[name] = enc.frequencies(length).inv_freq / rope
    return found


@picture("frequencies-side-by-side")
def draw_frequencies_side_by_side() -> Figure:
    figure, axes = canvas(height=4.2)
    ax = axes[0, 0]
    turns = LENGTH * frequencies("rope", HEAD_DIM) / (2 * math.pi)
    first = int((turns < 1).nonzero()[0])
    ax.axvspan(first, HEAD_DIM // 2 - 1, color=figures.FAINT, alpha=0.15, lw=0)
    drawn = shown()
    for name, ratio in ratios().items():
        at = {"dynamic_ntk": f" at {drawn[name][1]} L₀", "longrope": ", example"}.get(name, "")
        ax.plot(
            ratio.numpy(),
            color=figures.colour(name),
            marker=figures.marker(name),
            markevery=(list(drawn).index(name), 7),
            markersize=5,
            lw=1.4,
            label=label(name) + at,
        )
    ax.set(yscale="log", xlabel="frequency i", ylabel="new frequency / old")
    ax.set_yticks([1, 1 / 2, 1 / 4, 1 / 8], ["1", "1/2", "1/4", "1/8"])
    ax.minorticks_off()
    ax.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 0.06))
    return figure
