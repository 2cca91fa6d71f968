"""The share of prompts whose hidden numbers are found, by depth and length: a heat map per run.

Blue means all prompts, transparent none, and a dash that there is no value. The framed column is
the training length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import PercentFormatter

from pe.figures.axes import CUT, LENGTHS, labels, legend, mark, numbers, powers_of_two
from pe.figures.style import COLOURS, FAINT, INK, MARKERS, SEQUENTIAL, style
from pe.results.intervals import Interval
from pe.results.measure import cut, measure
from pe.results.quantities import answers, multiples
from pe.results.rows import Row


def shares(row: Row, task: str, names: Sequence[str]) -> tuple[list[float], np.ndarray]:
    """Return depths, and exact matches as shares (depths, lengths), NaN where there is none."""
    answered = [[answers(run, f"{task}@{name}") for name in names] for run in row.runs]
    first = next((cell for cells in answered for cell in cells if cell), None)
    if first is None:
        return [], np.zeros((0, 0))
    none = [np.nan] * len(first.depths)
    right = [[(cell and cell.right) or none for cell in cells] for cells in answered if any(cells)]
    return list(first.depths), np.asarray(np.mean(right, axis=0).T / first.samples)


@style()
def retrieval(rows: Sequence[Row], task: str) -> Figure:
    """Draw a heat map of exact matches for each row that has answers to this task."""
    names = multiples([run for row in rows for run in row.runs])
    panels = [(row, *shares(row, task, names)) for row in rows]
    asked = [(row, depths, share) for row, depths, share in panels if depths]
    across = min(4, max(1, len(asked)))
    down = max(1, -(-len(asked) // across))
    figure = Figure(figsize=(6.2, 0.7 + 2.0 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, (row, depths, share) in zip(grid.flat, asked, strict=False):
        axes.grid(visible=False)
        shown = np.ma.masked_less_equal(np.nan_to_num(share), 0)  # cells of 0 stay empty
        axes.pcolormesh(
            range(len(names)), range(len(depths)), shown, cmap=SEQUENTIAL, vmin=0, vmax=1
        )
        for place in np.flatnonzero(np.isnan(share).all(axis=0)):
            axes.text(place, len(depths) / 2, "–", ha="center", color=FAINT, fontsize=8)
        axes.set_ylim(len(depths) - 0.5, -0.5)  # the beginning of the text is at the top
        axes.set_xticks(range(len(names)), [name.replace("x", "×") for name in names], fontsize=7)
        last = len(depths) - 1
        marks = sorted({0, last // 2, last})
        axes.set_yticks(marks, [f"{depths[i]:.0%}" for i in marks], fontsize=7.5)
        axes.tick_params(length=2)
        if "1x" in names:
            at = names.index("1x") - 0.5
            axes.add_patch(
                Rectangle((at, -0.5), 1, len(depths), fill=False, edgecolor=INK, linewidth=1)
            )
        axes.set_title(row.title.replace(", ", ",\n"), fontsize=8.5)
    for axes in list(grid.flat)[len(asked) :]:
        axes.remove()
    if asked:
        colours = ScalarMappable(Normalize(0, 1), SEQUENTIAL.resampled(11))
        maps = list(grid.flat)[: len(asked)]
        bar = figure.colorbar(colours, ax=maps, fraction=0.03, pad=0.01, aspect=40)
        bar.set_ticks([0, 0.5, 1], labels=["0%", "50%", "100%"], fontsize=8.5)
        bar.outline.set_visible(False)
    labels(figure, LENGTHS, "depth of the number: 0% is the beginning")
    return figure


@style()
def by_length(row: Row, tasks: Sequence[str]) -> Figure:
    """Draw the share of prompts that are wholly right against the length: a line for each task.

    Dashes are the shares that the row would have if it read no more than the training length.
    """
    names = multiples(row.runs)
    x = [float(name[:-1]) for name in names]
    figure = Figure(figsize=(6.2, 3.4), layout="constrained")
    axes = figure.add_subplot()
    for place, task in enumerate(tasks, 1):  # the first colour is grey
        look: dict[str, Any] = {
            "color": COLOURS[place % len(COLOURS)],
            "marker": MARKERS[place % len(MARKERS)],
        }
        cells = [measure(row, f"{task}@{name}") for name in names]
        y = np.array(numbers(cell.value for cell in cells))
        ends = [cell.interval or Interval(np.nan, np.nan, np.nan, 0) for cell in cells]
        beside = [y - [end.low for end in ends], [end.high for end in ends] - y]
        axes.errorbar(x, y, np.abs(beside), label=task, capsize=2, **look)
        short = numbers(cut(row, f"{task}@{name}") for name in names)
        axes.plot(x, short, **(CUT | {"color": look["color"], "label": "_cut"}))
    powers_of_two(axes, x)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    mark(axes, 1.0)
    handles = axes.get_legend_handles_labels()[0]
    legend(figure, [*handles, Line2D([], [], **CUT)] if handles else [])
    labels(figure, LENGTHS, "prompts answered")
    return figure
