"""A picture of what relative encodings keep of the four products of word and place."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from pe import figures
from pictures.common import NARROW, canvas, picture

TERMS = ("word,\nword", "word,\ndistance", "distance,\nword", "distance\nalone")
KEPT = {
    "Shaw": (1, 1, 0, 0),
    "Transformer-XL": (1, 1, 0, 1),
    "DeBERTa": (1, 1, 1, 0),
    "T5, ALiBi": (1, 0, 0, 1),
    "relative content": (1, 1, 0, 0),
}


@picture("relative-terms")
def draw_terms() -> Figure:
    figure, axes = canvas(height=2.4, width=NARROW + 0.3)
    ax = axes[0, 0]
    colour = figures.colour("relative_content")
    for row, kept in enumerate(KEPT.values()):
        for column, has in enumerate(kept):
            ax.add_patch(
                FancyBboxPatch(
                    (column + 0.08, row + 0.12), 0.84, 0.76,
                    boxstyle="round,pad=0,rounding_size=0.08",
                    facecolor=colour if has else "none", alpha=0.55 if has else 1,
                    edgecolor=figures.GRID, lw=1,
                )
            )  # fmt: skip
    ax.text(2.5, 1.5, "word\nalone", ha="center", va="center", fontsize=9)
    ax.set(xlim=(0, 4), ylim=(5, 0))
    ax.set_xticks([0.5, 1.5, 2.5, 3.5], TERMS)
    ax.set_yticks([0.5 + row for row in range(len(KEPT))], list(KEPT))
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=9)
    ax.grid(visible=False)
    for side in ax.spines.values():
        side.set_visible(False)
    return figure
