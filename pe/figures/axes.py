"""Axes that several figures share: lengths, perplexities, tokens, and the legend above."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from pe.figures.style import FAINT

LENGTHS = "context, in multiples of the training length"
PERPLEXITY = "perplexity (log scale)"
WHOLE = FuncFormatter(lambda value, _: f"{value:,.0f}")
PLAIN = FuncFormatter(lambda value, _: f"{value:,.6g}")
TIMES = FuncFormatter(lambda value, _: f"{value:g}×")


def powers_of_two(axes: Axes, at: Sequence[float], form: FuncFormatter = TIMES) -> None:
    """Make the x axis logarithmic, with a tick at each of these values and nowhere else."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(at)))
    axes.xaxis.set_major_formatter(form)
    axes.xaxis.set_minor_locator(NullLocator())


def log_perplexity(axes: Axes, limit: int | None = None) -> None:
    """Make the y axis logarithmic with plain numbers, up to ``limit``, the vocabulary's size."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if limit and high > limit:  # above, a model is worse than guessing
        high = float(limit)
        axes.set_ylim(low, high)
    subs = (1.0,) if high / low > 1e3 else (1, 2, 5) if high / low > 4 else range(1, 10)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(PLAIN)
    axes.yaxis.set_minor_locator(NullLocator())


MARK: dict[str, Any] = {"color": FAINT, "linewidth": 1, "linestyle": (0, (2, 2)), "zorder": 1}


def mark(axes: Axes, x: float, text: str = "") -> None:
    """Draw a dotted vertical line with words at its top."""
    axes.axvline(x, **MARK)
    if text:
        axes.annotate(
            text, (x, 1), xycoords=("data", "axes fraction"), xytext=(4, -3),
            textcoords="offset points", va="top", color=FAINT, fontsize=8.5,
        )  # fmt: skip


BASELINE: dict[str, Any] = {"color": FAINT, "linewidth": 1.1, "zorder": 1.5}
"""The look of baselines, with which other lines are compared."""
CUT: dict[str, Any] = BASELINE | {"linestyle": (0, (3, 2)), "label": "cut to the training length"}
GUESS: dict[str, Any] = BASELINE | {"linestyle": (0, (1, 1.5)), "label": "uniform guessing"}


def legend(figure: Figure, handles: Sequence[Artist], columns: int = 3) -> None:
    """Put the legend above the axes, in fewer ``columns`` if it is too wide. None without lines."""
    if not handles:
        return
    for number in range(columns, 0, -1):
        box = figure.legend(
            handles=list(handles), loc="outside upper left", ncols=number, fontsize=9,
            handlelength=2.6, columnspacing=1.2,
        )  # fmt: skip
        if number == 1 or box.get_window_extent().width <= figure.bbox.width:
            return
        box.remove()


def labels(figure: Figure, x: str, y: str) -> None:
    """Write the titles of the axes of a whole figure."""
    figure.supxlabel(x, fontsize=10.5)
    figure.supylabel(y, fontsize=10.5)


def numbers(values: Iterable[float | None]) -> list[float]:
    """Return the values, with NaN, which leaves a gap in a line, where there is none."""
    return [float("nan") if value is None else value for value in values]
