"""One question at two budgets: perplexity by length, one colour an encoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe.figures.axes import (
    LENGTHS,
    PERPLEXITY,
    labels,
    legend,
    log_perplexity,
    mark,
    numbers,
    powers_of_two,
)
from pe.figures.style import INK, colour, marker, style
from pe.results.quantities import multiples, whole
from pe.results.rows import Row, measure

DASHES = ("-", (0, (4, 1.6)))
CEILING = 1000
"""Perplexity at which the panels end: a model far beyond it would press all others together."""


@style()
def perplexity(studies: Mapping[str, Sequence[Row]]) -> Figure:
    """Panels as trained and with a fitted temperature; a line per row and study, a dot per seed.

    Args:
        studies: rows of two studies by name, the larger budget first.
    """
    names = multiples([run for rows in studies.values() for row in rows for run in row.runs])
    x = [float(name[:-1]) for name in names]
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    found: dict[str, Line2D] = {}
    for axes, kind in zip(panels, ("ppl", "tempered.ppl"), strict=True):
        for rows, dashes in zip(studies.values(), DASHES, strict=False):
            for row in rows:
                ink, sign = colour(row.origin), marker(row.origin)
                for one, look in (
                    (row, {"linestyle": dashes, "linewidth": 1.7}),
                    *((seed, {"linestyle": "none", "marker": sign, "markersize": 4,
                              "markerfacecolor": ink if dashes == "-" else "none"})
                      for seed in row.each()),
                ):  # fmt: skip
                    values = [measure(one, f"{kind}@{name}").value for name in names]
                    axes.plot(x, numbers(values), color=ink, **look)
                line = Line2D([], [], label=row.title, color=ink, marker=sign)
                found.setdefault(row.title, line)
        axes.set_title("as trained" if kind == "ppl" else "with a fitted temperature", fontsize=10)
        powers_of_two(axes, x)
        log_perplexity(axes, CEILING)
        mark(axes, 1.0)
    for rows, dashes in zip(studies.values(), DASHES, strict=False):
        words = f"{whole(max(row.runs[0].read()['recipe']['steps'] for row in rows))} steps"
        found[words] = Line2D([], [], label=words, color=INK, linestyle=dashes)
    legend(figure, list(found.values()))
    labels(figure, LENGTHS, PERPLEXITY)
    return figure
