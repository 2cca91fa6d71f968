"""Pictures of extending a trained model without training."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.rope import RoPE
from pe.results.quantities import label
from pictures.common import canvas, picture

HEAD_DIM, TRAINED, FACTOR = 128, 4096, 4.0
SHOWN = ("rope", "pi", "ntk", "dynamic_ntk", "yarn", "llama3", "resonance")


def spectrum(name: str, length: int) -> Tensor:
    """Frequencies (P,) by which the tokens of a text of ``length`` tokens are rotated."""
    options = {"factor": FACTOR} if name not in ("rope", "resonance") else {}
    enc = pe.encoding(name, head_dim=HEAD_DIM, num_heads=1, original_length=TRAINED, **options)
    assert isinstance(enc, RoPE)
    return enc.frequencies(torch.tensor(length)).inv_freq


def turns_in_training() -> Tensor:
    """Rotations (P,) that RoPE's pairs make in `TRAINED` tokens."""
    return spectrum("rope", TRAINED) * TRAINED / (2 * math.pi)


def reach(name: str) -> Tensor:
    """(P,) largest angle at `FACTOR` x `TRAINED` tokens over the largest one of training."""
    return FACTOR * spectrum(name, int(FACTOR * TRAINED)) / spectrum("rope", TRAINED)


@picture("extension-reach")
def draw_reach() -> Figure:
    figure, axes = canvas(height=3.2)
    ax = axes[0, 0]
    for name in SHOWN:
        line = {"dynamic_ntk": "--", "llama3": "-.", "resonance": ":"}.get(name, "-")
        width = 3.5 if name == "rope" else 1.6  # it lies under others
        ax.plot(
            reach(name).numpy(), color=figures.colour(name), ls=line, lw=width, label=label(name)
        )
    first = int((turns_in_training() < 1).nonzero()[0])
    ax.axvspan(first, HEAD_DIM // 2 - 1, color=figures.FAINT, alpha=0.15, lw=0)
    ax.annotate("no full rotation in training", (first + 0.5, 0.15), fontsize=8)
    ax.set(
        xlabel="frequency i", ylabel="largest angle / in training", ylim=(0, 4.6),
        xlim=(0, HEAD_DIM // 2 - 1),
    )  # fmt: skip
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    return figure
