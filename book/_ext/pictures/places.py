"""The three places where a positional encoding can act."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from pe import figures
from pe.figures.schedule import draw_layers, layer_rows
from pictures.common import canvas, picture


@picture("places")
def draw_places() -> Figure:
    """A diagram, not data: where a decoder layer can be told about order."""
    figure, axes = canvas(height=3.3)
    ax: Axes = axes[0, 0]
    ax.set(xlim=(0, 10.3), ylim=(0, 4.6))
    ax.axis("off")

    def box(x: float, y: float, w: float, h: float, text: str, colour: str | None = None) -> None:
        edge = colour or figures.INK
        style = "round,pad=0.02,rounding_size=0.12"
        fill = {"facecolor": colour, "alpha": 0.18} if colour else {"facecolor": "none"}
        ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, edgecolor="none", **fill))
        ax.add_patch(
            FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor="none", edgecolor=edge, lw=1.1)
        )
        ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=8.5)

    def arrow(x0: float, y0: float, x1: float, y1: float) -> None:
        ax.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=9, color=figures.INK, lw=1
            )
        )

    one, two, three = figures.colour("yarn"), figures.colour("rope"), figures.colour("pope")
    box(0.05, 1.5, 1.15, 0.8, "token\nembeddings")
    box(1.65, 1.5, 1.15, 0.8, "1  embed", one)
    box(3.35, 2.5, 1.0, 0.65, "queries")
    box(3.35, 1.55, 1.0, 0.65, "keys")
    box(3.35, 0.6, 1.0, 0.65, "values")
    box(4.85, 1.55, 1.1, 1.6, "2  rotate", two)
    box(6.4, 2.0, 0.95, 0.7, "q · k")
    box(6.15, 3.45, 1.45, 0.62, "logit scale", three)
    box(7.75, 2.0, 0.95, 0.7, "3  bias", three)
    box(9.0, 2.0, 0.95, 0.7, "softmax")
    box(9.0, 0.6, 0.95, 0.65, "mix")
    arrow(1.2, 1.9, 1.63, 1.9)
    for y in (2.82, 1.87, 0.92):
        arrow(2.82, 1.9, 3.33, y)
    arrow(4.37, 2.82, 4.83, 2.82)
    arrow(4.37, 1.87, 4.83, 1.87)
    arrow(5.97, 2.82, 6.38, 2.45)
    arrow(5.97, 1.87, 6.38, 2.25)
    arrow(6.87, 3.43, 6.87, 2.72)
    arrow(7.37, 2.35, 7.73, 2.35)
    arrow(8.72, 2.35, 8.98, 2.35)
    arrow(9.47, 1.98, 9.47, 1.27)
    arrow(4.37, 0.92, 8.98, 0.92)
    ax.plot([3.1, 3.1, 10.2, 10.2, 3.1], [0.35, 4.3, 4.3, 0.35, 0.35], color=figures.GRID, lw=1)
    ax.text(10.2, 0.05, "in every layer", fontsize=8, ha="right")
    ax.text(2.22, 1.2, "once", fontsize=8, ha="center")
    return figure


SHOWN = {"command_a": "Command A", "gemma3": "Gemma 3 1B", "llama4": "Llama 4"}


@picture("schedules")
def draw_schedules() -> Figure:
    """What the layers of three released models see, each in a text four windows long."""
    drawn = [(title, *layer_rows(name)) for name, title in SHOWN.items()]
    heights = [len(rows) + 2.5 for _, rows, _ in drawn]
    with figures.style():
        figure = Figure(figsize=(6.4, 0.21 * sum(heights)), layout="constrained")
        panels = figure.subplots(len(drawn), 1, gridspec_kw={"height_ratios": heights})
        for axes, (title, rows, length) in zip(panels, drawn, strict=True):
            draw_layers(axes, rows, length)
            axes.set_ylabel("layer")
            axes.set_title(title, loc="left", fontsize=10.5)
    return figure
