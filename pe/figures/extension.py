"""Curves of a run extended without training, by length."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from pe.evaluation.factors import LENGTH
from pe.figures.axes import (
    CUT,
    LENGTHS,
    PERPLEXITY,
    labels,
    legend,
    log_perplexity,
    numbers,
    powers_of_two,
)
from pe.figures.style import INK, colour, marker, style
from pe.results.extensions import extended
from pe.results.quantities import label


def _look(method: str) -> dict[str, Any]:
    from pe.encodings.core.extending import extension_method  # brings torch
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
    """Left: each length read with the factor that equals it. Right: the largest factor, always.

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
