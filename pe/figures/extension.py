"""Perplexity by length of runs that were extended: without training, and trained on."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from pe.evaluation.factors import LENGTH
from pe.figures.axes import (
    CUT,
    LENGTHS,
    MARK,
    PERPLEXITY,
    labels,
    legend,
    log_perplexity,
    mark,
    numbers,
    powers_of_two,
)
from pe.figures.style import FAINT, INK, colour, marker, style
from pe.results.extensions import extended
from pe.results.finetuned import CONTROL, FineTuned
from pe.results.quantities import label, trained_length

PALE = (0, (4, 1.6))
"""The dashes of models that were extended and not trained further."""


def _look(method: str) -> dict[str, Any]:
    from pe.encodings.core.extension import extension_method  # brings torch
    from pe.encodings.core.spec import is_sum, parse

    spec = extension_method(method).spec
    dash: Any = (0, (3, 1.5)) if is_sum(spec) else "-" if spec == method else ":"
    name = parse(spec)[0][0].name
    return {
        "color": colour(name), "marker": marker(name), "linestyle": dash, "linewidth": 1.5,
        "markersize": 4.5 if dash == "-" else 3, "label": label(method),
    }  # fmt: skip


@style()
def by_length(
    record: Mapping[str, Any], context_length: int, base: Mapping[float, float]
) -> Figure:
    """Draw perplexity, left with the factor that equals each length, right with the largest factor.

    Args:
        base: perplexities of the run itself, by multiples of the training length.
    """
    cells = extended(record, context_length)
    lengths = sorted(base)
    largest = max((c.factor for c in cells if isinstance(c.factor, float)), default=None)
    figure = Figure(figsize=(5.8, 3.7), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        axes.plot(lengths, [base[m] for m in lengths], color=INK, linewidth=1.2, label="as trained")
        axes.plot(lengths, [base.get(min(m, 1.0)) for m in lengths], **CUT)
    for method, group in itertools.groupby(cells, key=lambda cell: cell.method):
        members = list(group)
        chosen = {m: c for m in lengths for c in members if c.factor in (None, LENGTH, m)}
        values = [chosen[m].perplexity.get(m) if m in chosen else None for m in lengths]
        if members[0].factor is not None and 1.0 in base:
            values[lengths.index(1.0)] = base[1.0]  # a factor of 1 is the run itself
        left.plot(lengths, numbers(values), **_look(method))
        for c in members:
            if c.factor in (None, largest):
                right.plot(lengths, numbers(c.perplexity.get(m) for m in lengths), **_look(method))
    left.set_title("factor = length", fontsize=10)
    right.set_title(f"factor {largest:g}" if largest else "", fontsize=10)
    for axes in (left, right):
        powers_of_two(axes, lengths)
        log_perplexity(axes)
    labels(figure, LENGTHS, PERPLEXITY)
    legend(figure, left.get_legend_handles_labels()[0], columns=4)
    return figure


@style()
def trained_on(rows: Sequence[FineTuned]) -> Figure:
    """Draw three lines for each method: the run it began with, extended, and trained further.

    Every panel has two baselines: the control, which was trained further on longer windows with
    its frequencies unchanged, and the first run with texts cut to its training length.
    """
    from pe.encodings.core.spec import parse  # brings torch

    length = trained_length(rows[0].row.runs)
    control = next((row for row in rows if row.row.label == CONTROL), None)
    shown = [row for row in rows if row is not control] or list(rows)
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(6.4, 1.0 + 1.9 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, row in zip(grid.flat, shown, strict=False):
        name = parse(row.row.pe)[0][0].name
        _line(axes, row.before, color=FAINT, linewidth=1.2, label="the model as it was")
        if control is not None:
            _line(
                axes, control.trained, color=FAINT, linewidth=1.2, linestyle=(0, (6, 1.5, 1, 1.5)),
                label="not extended, trained further",
            )  # fmt: skip
        first = min(row.before)
        _line(axes, dict.fromkeys(row.before, row.before[first]),
              **(CUT | {"label": f"cut to {first:,} tokens"}))  # fmt: skip
        look = {"color": colour(name), "marker": marker(name), "markersize": 4}
        _line(
            axes, row.extended, linestyle=PALE, markerfacecolor="none", linewidth=1.3,
            label="extended", **look,
        )  # fmt: skip
        _line(axes, row.trained, label="extended, trained further", **look)
        axes.set_title(row.title, fontsize=9.5)
        form = FuncFormatter(lambda value, _: f"{value / 1024:g}k")
        powers_of_two(axes, list(row.trained), form)
        axes.set_yscale("log")
        mark(axes, length)
    log_perplexity(grid.flat[0])
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    for axes in list(grid.flat)[: len(shown)]:
        axes.tick_params(labelsize=8.5, labelbottom=True)
    labels(figure, "context in tokens (k = 1,024)", PERPLEXITY)
    handles = grid.flat[0].get_legend_handles_labels()[0]
    mark_of = Line2D([], [], **(MARK | {"label": f"trained on {length:,} tokens"}))
    legend(figure, [*handles, mark_of], columns=2)
    return figure


def _line(axes: Axes, values: Mapping[int, float | None], **look: object) -> None:
    axes.plot(list(values), numbers(values.values()), **look)  # type: ignore[arg-type]
