"""Perplexity and hidden numbers found, by the window of most layers and the encoding of the others.

The models have schedules of layers: the first ones see a window, the last one sees all keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator, PercentFormatter

from pe.figures.axes import BASELINE, CUT, labels, legend, log_perplexity
from pe.figures.style import colour, marker, style
from pe.results.measure import cut, measure
from pe.results.quantities import label
from pe.results.rows import Row, common_seeds

MULTIPLES = (1, 4, 16)
"""The lengths of text that have a panel, in multiples of the training length."""
TASK = "multikey"
"""The hidden numbers whose shares are shown."""
ROOM = 1.8
"""The end of the axis of perplexities, in multiples of the lowest one."""


class Schedule(NamedTuple):
    """The parts of a row's schedule of layers that the figure shows."""

    window: int | None
    """The smallest window of a layer; None without one."""
    last: str
    """The encoding of the last layer."""


def schedule_of(row: Row) -> Schedule:
    """Parse a schedule with windows: 256 and ``nope`` for ``3*(rope+window:256), nope``."""
    from pe.encodings.core.spec import parse  # brings torch

    layers = parse(row.pe)
    sizes = [part.argument for layer in layers for part in layer if part.name == "window"]
    return Schedule(min((size for size in sizes if size), default=None), layers[-1][0].name)


@style()
def by_window(rows: Sequence[Row], cut_row: Row | None = None, best: Row | None = None) -> Figure:
    """Draw perplexities above and shares of prompts below, a column of panels per length of text.

    Lines join values on the seeds that all rows have in common, a line per encoding of the last
    layer. Other seeds are small open marks, and perplexities above the panel are triangles at its
    top. Rows without a window stand on the right.

    Args:
        cut_row: the row whose texts are cut, for a dashed line. best: a row for a solid line.
    """
    common = common_seeds([*rows, *(row for row in (cut_row, best) if row)])
    schedules = [schedule_of(row) for row in rows]
    sizes = sorted({one.window for one in schedules if one.window})
    places: dict[int | None, int] = {size: place for place, size in enumerate(sizes)}
    places[None] = len(sizes)
    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    grid = figure.subplots(2, len(MULTIPLES), sharex=True, sharey="row")
    lowest = _lowest([*rows, *([best] if best else [])])
    handles: dict[str, Line2D] = {}
    for kind, panels in zip(("ppl", TASK), grid, strict=True):
        for multiple, axes in zip(MULTIPLES, panels, strict=True):
            name = f"{kind}@{multiple}x"
            for turn, last in enumerate(dict.fromkeys(one.last for one in schedules)):
                line = f"{label(last)} in the layers that see everything"
                look: dict[str, Any] = {
                    "color": colour(last),
                    "marker": marker(last),
                    "markersize": 5,
                }
                handles.setdefault(line, Line2D([], [], label=line, **look))
                own = [
                    (places[one.window], row)
                    for row, one in zip(rows, schedules, strict=True) if one.last == last
                ]  # fmt: skip
                top = ROOM * lowest if kind == "ppl" else 1.0
                aside = 0.2 * (turn - 0.5)  # so that two triangles at the top do not overlap
                own.sort(key=lambda item: item[0])
                _line(axes, own, name, common, look, top, aside)
            for title, value, line_look in _baselines(cut_row, best, common, name):
                handles.setdefault(title, axes.axhline(value, **(line_look | {"label": title})))
            axes.set_xlim(-0.4, len(sizes) + 0.4)
            axes.xaxis.set_major_locator(FixedLocator(range(len(sizes) + 1)))
            axes.xaxis.set_major_formatter(FixedFormatter([*map("{:,}".format, sizes), "none"]))
            axes.tick_params(axis="x", labelsize=8, labelrotation=60)
            if kind == "ppl":
                axes.set_title(f"{multiple}× the training length", fontsize=9.5)
                axes.set_ylim(0.95 * lowest, ROOM * lowest)
                log_perplexity(axes)
            else:
                axes.set_ylim(-0.05, 1.05)
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))
                axes.yaxis.set_minor_locator(NullLocator())
    grid[0][0].set_ylabel("perplexity (log scale)")
    grid[1][0].set_ylabel(f"{TASK} prompts answered")
    legend(figure, list(handles.values()), columns=2)
    labels(figure, "window of the other layers, tokens", "")
    return figure


def _lowest(rows: Sequence[Row]) -> float:
    """Return the lowest perplexity of a run in any panel."""
    names = [f"ppl@{multiple}x" for multiple in MULTIPLES]
    cells = [measure(one, name).value for row in rows for one in row.each() for name in names]
    return min(value for value in cells if value is not None)


def _line(
    axes: Axes,
    rows: Sequence[tuple[int, Row]],
    name: str,
    common: Sequence[int],
    look: dict[str, Any],
    top: float,
    aside: float,
) -> None:
    """Draw values: those of common seeds joined, others alone, a triangle for one above ``top``."""
    joined = []
    for place, row in rows:
        alone = [one for one in row.each() if not set(one.seeds) <= set(common)]
        for one in [*([row.of(common)] if common else []), *alone]:
            value = measure(one, name).value
            if value is None:
                continue
            if value > top:
                axes.plot(
                    place + aside, 0.96, "^", color=look["color"], markersize=4, clip_on=False,
                    transform=axes.get_xaxis_transform(),
                )  # fmt: skip
            elif one in alone:
                axes.plot(place, value, **(look | {"markersize": 3.5, "markerfacecolor": "none"}))
            else:
                joined.append((place, value))
    if joined:
        axes.plot(*zip(*joined, strict=True), **look)


def _baselines(
    cut_row: Row | None, best: Row | None, common: Sequence[int], name: str
) -> list[tuple[str, float, dict[str, Any]]]:
    """Return (name, value, look) of the horizontal lines."""
    lines = []
    if common and cut_row:
        lines.append((f"{cut_row.title}, {CUT['label']}", cut(cut_row.of(common), name), CUT))
    if common and best:
        lines.append((best.title, measure(best.of(common), name).value, BASELINE))
    return [(title, value, look) for title, value, look in lines if value is not None]
