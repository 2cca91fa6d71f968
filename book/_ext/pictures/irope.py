"""Pictures of iRoPE."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from pe import figures
from pe.encodings import layer_encodings
from pictures.common import canvas, picture

LAYERS = 12


def schedule_numbers() -> list[bool]:
    """Whether each layer rotates."""
    q = torch.ones(1, 1, 2, 16)
    place = torch.arange(2)
    layers = layer_encodings("irope", LAYERS, head_dim=16, num_heads=1)
    return [not torch.equal(enc.rotate(q, q, place, place)[0], q) for enc in layers]


def temperature_numbers(longest: int = 131_072, step: int = 64) -> tuple[Tensor, Tensor]:
    """Positions and the factor on their logits in a layer that does not rotate."""
    enc = layer_encodings("irope", 4, head_dim=16, num_heads=1)[3]
    positions = torch.arange(step - 1, longest, step)
    scale = enc.logit_scale(positions)
    assert scale is not None
    return positions, scale[0]


@picture("irope-schedule")
def draw_irope_schedule() -> Figure:
    figure, axes = canvas(columns=2, height=2.7)
    left, right = axes[0]
    ink = figures.colour("irope")
    for layer, turns in enumerate(schedule_numbers()):
        fill = ink if turns else "none"
        left.add_patch(Rectangle((0, layer), 1, 0.84, facecolor=fill, edgecolor=ink, alpha=0.75))
        word = "RoPE, norm" if turns else "no position, temperature"
        left.annotate(word, (1.1, layer + 0.42), fontsize=8, va="center")
    left.set(xlim=(0, 4), ylim=(-0.1, LAYERS), ylabel="layer", xticks=[])
    left.set_yticks([n + 0.42 for n in range(LAYERS)], [str(n) for n in range(LAYERS)], fontsize=8)
    left.grid(visible=False)
    for side in ("top", "right", "bottom"):
        left.spines[side].set_visible(False)
    positions, scale = temperature_numbers()
    right.plot(positions.numpy(), scale.numpy(), color=ink, drawstyle="steps-post")
    right.set_xticks([0, 32_768, 65_536, 98_304, 131_072], ["0", "32k", "64k", "96k", "128k"])
    right.set(xlabel="position of the query", ylabel="factor on its logits")
    return figure
