"""Pictures of CLEX."""

from __future__ import annotations

import functools

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.clex import CLEX, stretched
from pe.encodings.core.frequencies import base_frequencies
from pictures.common import BASE, canvas, picture

HEAD_DIM, TRAINED, LARGEST = 64, 256, 8


def transform(steps: int = 10, learned: bool = False) -> CLEX:
    """As it begins, or with made-up weights for what it may learn."""
    made = CLEX(TRAINED, max_factor=LARGEST, steps=steps)
    made.attach(base_frequencies(HEAD_DIM, BASE))
    generator = torch.Generator().manual_seed(4)
    made.reset_parameters(generator)
    if learned:
        with torch.no_grad():
            made.down.normal_(0, 0.012, generator=generator)
    return made.eval()


@torch.no_grad()
@functools.cache
def flow(learned: bool, steps: int = 10) -> Tensor:
    """(LARGEST, P): frequencies over RoPE's at t = 1, 2 .. LARGEST."""
    base = base_frequencies(HEAD_DIM, BASE)
    table = transform(steps, learned).table(base, torch.tensor(LARGEST))
    return table.exp() / base.inv_freq


def phase_error(learned: bool, steps: int) -> float:
    """Largest error of an angle (radians) at the last position of the longest text."""
    off = flow(learned, steps)[-1] - flow(learned, 160)[-1]
    far = TRAINED * LARGEST - 1
    return float((off * base_frequencies(HEAD_DIM, BASE).inv_freq * far).abs().max())


def places(t: int, tokens: int) -> Tensor:
    """Where the tokens of one training text stand."""
    order = torch.randperm(tokens * LARGEST**2, generator=torch.Generator().manual_seed(t))
    found = stretched(order, torch.tensor(tokens), torch.tensor(t), tokens, tokens * LARGEST)
    return found[:tokens]


@picture("clex-flow")
def draw_clex_flow() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink, t = figures.colour("clex"), torch.arange(1, LARGEST + 1)
    begins, moved = flow(False), flow(True)
    for number, pair in enumerate((4, 16, 31)):
        shade = (0.45, 0.7, 1.0)[number]
        left.plot(t, begins[:, pair], color=figures.FAINT, ls="--", alpha=shade)
        left.plot(t, moved[:, pair], color=ink, alpha=shade, marker=".")
        left.annotate(f"{pair}", (LARGEST + 0.15, float(moved[-1, pair]) * 0.95), fontsize=8)
    left.plot([], [], color=figures.FAINT, ls="--", label="D = 0")
    left.plot([], [], color=ink, marker=".", label="some other D")
    left.set(yscale="log", xlabel="t = length / L₀", ylabel="frequency / RoPE's", xlim=(0.7, 8.9))
    left.legend(frameon=False, fontsize=8, loc="lower left")
    tokens = 16
    for row, t_drawn in enumerate((1, 2, 4, 8)):
        x = places(t_drawn, tokens).numpy()
        right.plot(x, [row] * tokens, ls="", marker="o", ms=4, color=ink)
        right.annotate(f"t = {t_drawn}", (tokens * LARGEST + 3, row - 0.1), fontsize=8)
    right.set(xlabel="position", yticks=[], ylim=(-0.6, 3.6), xlim=(-3, tokens * LARGEST + 25))
    return figure
