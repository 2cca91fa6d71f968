"""Pictures of KERPLE."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.kerple import Kerple
from pictures.common import canvas, picture

LOG = ((0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (2.0, 0.05))  # (p, a)
POWER = ((0.3, 1.0), (0.7, 0.2), (1.0, 0.05), (1.4, 0.01))


def shapes(name: str, parameters: tuple[tuple[float, float], ...], longest: int = 256) -> Tensor:
    """(n, longest) bias by distance of n heads with the given p and a."""
    encoding = pe.encoding(name, head_dim=8, num_heads=len(parameters))
    assert isinstance(encoding, Kerple)
    with torch.no_grad():
        p, a = torch.tensor(parameters).T
        encoding.p.copy_(p)
        encoding.a.copy_(a)
        return encoding.distance_bias(torch.arange(longest))


@picture("kerple-shapes")
def draw_kerple_shapes() -> Figure:
    figure, axes = canvas(columns=2)
    lines = ("-", "--", "-.", ":")
    for ax, name, parameters in (
        (axes[0, 0], "kerple_log", LOG),
        (axes[0, 1], "kerple_power", POWER),
    ):
        rows = shapes(name, parameters).numpy()
        for row, line, (p, a) in zip(rows, lines, parameters, strict=True):
            look = {"color": figures.colour(name), "ls": line, "lw": 1.5}
            ax.plot(row, label=f"p = {p:g}, a = {a:g}", **look)
        ax.set_title(name, fontsize=9)
        ax.set(xlabel="distance", ylim=(-20, 0.5))
        ax.legend(fontsize=8, loc="lower left" if name == "kerple_power" else "lower right")
    axes[0, 0].set_ylabel("bias")
    return figure
