"""Curves of a run extended without training: by factor, and by length."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe.figures.axes import (
    LENGTHS,
    PERPLEXITY,
    labels,
    legend,
    log_perplexity,
    numbers,
    powers_of_two,
)
from pe.figures.style import FAINT, INK, colour, marker, style
from pe.results.extensions import Extended, at_its_length, extended
from pe.results.quantities import label

Base = Mapping[float, float]


def _methods(cells: Sequence[Extended]) -> dict[str, list[Extended]]:
    return {pe: list(found) for pe, found in itertools.groupby(cells, key=lambda cell: cell.pe)}


def _look(pe: str) -> dict[str, Any]:
    dash = (0, (3, 1.5)) if "+" in pe else "-"
    name = pe.split("+")[0]
    return {
        "color": colour(name), "marker": marker(name), "linestyle": dash, "linewidth": 1.5,
        "markersize": 4.5 if dash == "-" else 3, "label": label(pe),
    }  # fmt: skip


def _finish(figure: Figure, axes: Axes, x: str) -> Figure:
    labels(figure, x, PERPLEXITY)
    legend(figure, axes.get_legend_handles_labels()[0], columns=4)
    return figure


@style()
def by_factor(record: Mapping[str, Any], context_length: int, base: Base) -> Figure:
    """A panel for each length beyond the training's: perplexity there by factor of the method."""
    cells = extended(record, context_length)
    lengths = [m for m in sorted(base) if m > 1]
    figure = Figure(figsize=(5.8, 5.6), layout="constrained")
    grid = figure.subplots(-(-len(lengths) // 2), 2, squeeze=False, sharex=True, sharey=True)
    for axes, length in zip(grid.flat, lengths, strict=False):
        for pe, members in _methods(cells).items():
            if len(members) > 1:  # one without a factor is a point on no axis
                values = [c.perplexity.get(length) for c in members]
                axes.plot([c.factor for c in members], numbers(values), **_look(pe))
        look = {"color": FAINT, "linewidth": 1.2}
        axes.axhline(base[length], label="as trained", **look)
        cut = "cut to the training length"
        axes.axhline(base[1.0], linestyle=(0, (2, 2)), label=cut, **look)
        axes.set_title(f"text of {length:g}× the training length", fontsize=10)
        axes.tick_params(labelbottom=True)
        powers_of_two(axes, sorted({c.factor for c in cells if c.factor and len(cells) > 1}))
        log_perplexity(axes)
    for axes in list(grid.flat)[len(lengths) :]:
        axes.remove()
    return _finish(figure, grid.flat[0], "factor")


@style()
def by_length(record: Mapping[str, Any], context_length: int, base: Base) -> Figure:
    """Left: each length read with the factor that equals it. Right: the largest factor, always."""
    cells = extended(record, context_length)
    lengths = sorted(base)
    largest = max((c.factor for c in cells if c.factor), default=None)
    figure = Figure(figsize=(5.8, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.plot(lengths, [base[m] for m in lengths], color=INK, linewidth=1.2, label="as trained")
    for pe, members in _methods(cells).items():
        chosen = {m: c for m in lengths for c in at_its_length(members, m)}
        values = [chosen[m].perplexity.get(m) if m in chosen else None for m in lengths]
        if members[0].factor is not None and 1.0 in base:
            values[lengths.index(1.0)] = base[1.0]  # a factor of 1 is the run itself
        left.plot(lengths, numbers(values), **_look(pe))
        for c in members:
            if c.factor in (None, largest):
                right.plot(lengths, numbers(c.perplexity.get(m) for m in lengths), **_look(pe))
    left.set_title("factor = length", fontsize=10)
    right.set_title(f"factor {largest:g}" if largest else "", fontsize=10)
    for axes in (left, right):
        powers_of_two(axes, lengths)
        log_perplexity(axes)
    return _finish(figure, left, LENGTHS)
