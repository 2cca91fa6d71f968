"""Curves of a run extended without training: by factor, and by length. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from pe.figures import FAINT, INK, colour, marker, style
from pe.results.extensions import Extended, at_its_length, extended
from pe.results.tables import label

Base = Mapping[float, float]


def _methods(cells: Sequence[Extended]) -> dict[str, list[Extended]]:
    found: dict[str, list[Extended]] = {}
    for cell in cells:
        found.setdefault(cell.pe, []).append(cell)
    return found


def _look(pe: str) -> dict[str, Any]:
    dash = (0, (3, 1.5)) if "+" in pe else "-"
    name = pe.split("+")[0]
    return {
        "color": colour(name), "marker": marker(name), "linestyle": dash, "linewidth": 1.5,
        "markersize": 4.5 if dash == "-" else 3, "label": label(pe),
    }  # fmt: skip


def _scales(axes: Axes, x: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(x)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, axes: Axes) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside upper left", ncols=4, fontsize=9,
        handlelength=2.0, columnspacing=1.2,
    )  # fmt: skip


@style()
def by_factor(record: Mapping[str, Any], context_length: int, base: Base) -> Figure:
    """A panel for each length beyond the training's: perplexity there by factor of the method."""
    cells = extended(record, context_length)
    methods = {
        pe: members for pe, members in _methods(cells).items() if len(members) > 1
    }  # one without a factor is a point on no axis
    lengths = [m for m in sorted(base) if m > 1]
    figure = Figure(figsize=(5.8, 5.6), layout="constrained")
    grid = figure.subplots(-(-len(lengths) // 2), 2, squeeze=False, sharex=True, sharey=True)
    for axes, length in zip(grid.flat, lengths, strict=False):
        for pe, members in methods.items():
            x = [c.factor for c in members]
            axes.plot(x, [c.perplexity.get(length) for c in members], **_look(pe))
        axes.axhline(base[length], color=FAINT, linewidth=1.2, label="as trained")
        axes.axhline(
            base[1.0], color=FAINT, linewidth=1.2, linestyle=(0, (2, 2)),
            label="as trained, training length",
        )  # fmt: skip
        axes.set_title(f"text of {length:g}× the training length", fontsize=10)
        axes.tick_params(labelbottom=True)
        _scales(axes, sorted({c.factor for c in cells if c.factor and len(cells) > 1}))
    for axes in list(grid.flat)[len(lengths) :]:
        axes.remove()
    figure.supxlabel("factor", fontsize=10.5)
    figure.supylabel("perplexity (log scale)", fontsize=10.5)
    _legend(figure, grid.flat[0])
    return figure


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
        left.plot(lengths, [float("nan") if v is None else v for v in values], **_look(pe))
        at_most = [c for c in members if c.factor in (None, largest)]
        for c in at_most:
            right.plot(lengths, [c.perplexity.get(m) for m in lengths], **_look(pe))
    left.set_title("factor = length", fontsize=10)
    right.set_title(f"factor {largest:g}" if largest else "", fontsize=10)
    for axes in (left, right):
        _scales(axes, lengths)
    figure.supxlabel("context, in multiples of the training length", fontsize=10.5)
    figure.supylabel("perplexity (log scale)", fontsize=10.5)
    _legend(figure, left)
    return figure
