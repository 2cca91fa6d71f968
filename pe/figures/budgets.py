"""One question at two budgets: perplexity by length, one colour an encoding. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from pe.figures import INK, colour, marker, style
from pe.figures.study import _log_perplexity, _mark, _multiples
from pe.results.budgets import each
from pe.results.rows import Row, measure
from pe.results.tables import multiples, whole

DASHES = ("-", (0, (4, 1.6)))
CEILING = 1000.0
"""Perplexity at which the panels end: a model far beyond it would press all others together."""


@style()
def perplexity(studies: Mapping[str, Sequence[Row]]) -> Figure:
    """Panels as trained and with a fitted temperature; a line a row and study, a dot a seed.

    Args:
        studies: rows of two studies by name, the larger budget first.
    """
    runs = [run for rows in studies.values() for row in rows for run in row.runs]
    names = multiples(runs)
    x = [float(name[:-1]) for name in names]
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    legend: dict[str, Line2D] = {}
    for axes, kind, title in zip(
        panels, ("ppl", "tempered.ppl"), ("as trained", "with a fitted temperature"), strict=True
    ):
        for rows, dashes in zip(studies.values(), DASHES, strict=False):
            for row in rows:
                ink, mark = colour(row.origin), marker(row.origin)
                axes.plot(x, _values(row, kind, names), color=ink, linestyle=dashes, linewidth=1.7)
                for one in each(row):
                    axes.plot(
                        x, _values(one, kind, names), linestyle="none", color=ink, marker=mark,
                        markersize=4, markerfacecolor=ink if dashes == "-" else "none",
                    )  # fmt: skip
                line = Line2D([], [], label=row.title, color=ink, marker=mark)
                legend.setdefault(row.title, line)
        axes.set_title(title, fontsize=10.5)
        _multiples(axes, x)
        axes.set_yscale("log")
        axes.set_ylim(top=min(axes.get_ylim()[1], CEILING))
        _log_perplexity(axes)
        _mark(axes, 1.0)
    for rows, dashes in zip(studies.values(), DASHES, strict=False):
        words = f"{whole(max(row.runs[0].read()['recipe']['steps'] for row in rows))} steps"
        legend[words] = Line2D([], [], label=words, color=INK, linestyle=dashes)
    figure.legend(
        handles=list(legend.values()), loc="outside upper left", ncols=3, fontsize=9,
        handlelength=2.8, columnspacing=1.2,
    )  # fmt: skip
    figure.supxlabel("context, in multiples of the training length", fontsize=10.5)
    figure.supylabel("perplexity (log scale)", fontsize=10.5)
    return figure


def _values(row: Row, kind: str, names: Sequence[str]) -> list[float]:
    cells = [measure(row, f"{kind}@{name}").value for name in names]
    return [float("nan") if value is None else value for value in cells]
