"""Figures of a study whose runs start from one another: a panel for each encoding and its heirs.

A panel shows a baseline and the runs that began with its weights, in the baseline's colour and with
dashes of their own; runs that neither began elsewhere nor have heirs are grey in every panel, for
comparison. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FixedLocator,
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    NullLocator,
)

from pe.figures import FAINT, INK, colour, marker, style
from pe.results.rows import Row, measure
from pe.results.tables import label, multiples

_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_MARKERS = ("o", "v", "s", "D")
_PALE: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.1, "alpha": 0.8, "markersize": 3}
Draw = Callable[[Axes, Row, dict[str, Any]], None]


def families(rows: Sequence[Row]) -> list[tuple[str, list[Row], list[Row]]]:
    """(title, rows in colour, rows in grey) of each panel; one panel if no run has heirs."""
    parents = list(dict.fromkeys(row.origin for row in rows if row.converted))
    if not parents:
        return [("", list(rows), [])]
    alone = [row for row in rows if row.origin not in parents]
    return [(label(p), [row for row in rows if row.origin == p], alone) for p in parents]


def _look(place: int, row: Row, grey: bool) -> dict[str, Any]:
    return {
        "color": FAINT if grey else colour(row.origin),
        "linestyle": "-" if grey else _DASHES[place % len(_DASHES)],
        "marker": marker(row.origin) if grey else _MARKERS[place % len(_MARKERS)],
        "markerfacecolor": "none" if row.converted else None,
        "linewidth": 1.2 if grey else 1.7,
        "markersize": 3.5 if grey else 5,
        "zorder": 2 if grey else 3,
    }


def _panels(
    rows: Sequence[Row],
    xlabel: str,
    ylabel: str,
    draw: Draw,
    same: dict[str, Any],
    more: Sequence[Line2D] = (),
) -> tuple[Figure, list[Axes]]:
    found = families(rows)
    columns = 1 if len(found) == 1 else 2
    lines = -(-len(found) // columns)
    figure = Figure(figsize=(5.6, 3.7 if lines == 1 else 0.4 + 2.4 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    legend: dict[str, Line2D] = {}  # the same dashes in every panel, so they are named once
    for axes, (title, strong, grey) in zip(panels, found, strict=False):
        alone = len({row.origin for row in strong}) > 1
        for row, place, pale in [
            *((row, 0, True) for row in grey),
            *((row, 0 if alone else i, False) for i, row in enumerate(strong)),
        ]:
            look = _look(place, row, pale) | same
            draw(axes, row, look)
            name = row.title if pale or alone else "trained throughout"
            name = row.title.rpartition(", ")[2] if row.converted else name
            shown = look if pale or alone else look | {"color": INK}
            legend.setdefault(name, Line2D([], [], label=name, **shown))
        axes.set_title(title, fontsize=10.5)
        axes.tick_params(labelbottom=True)
    for axes in panels[len(found) :]:
        axes.remove()
    figure.legend(
        handles=[*legend.values(), *more], loc="outside upper left", ncols=3, fontsize=9,
        handlelength=2.8, columnspacing=1.2,
    )  # fmt: skip
    figure.supxlabel(xlabel, fontsize=10.5)
    figure.supylabel(ylabel, fontsize=10.5)
    return figure, panels[: len(found)]


def _mark(axes: Axes, x: float) -> None:
    axes.axvline(x, color=FAINT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)


def _plain(value: float, _: int) -> str:
    return f"{value:,.6g}"


def _multiples(axes: Axes, x: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(list(x)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())


def _log_perplexity(axes: Axes) -> None:
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    subs = (1.0,) if high / low > 1e3 else (1, 2, 5) if high / low > 4 else range(1, 10)
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_formatter(NullFormatter())


@style()
def perplexity(rows: Sequence[Row], tempered: bool = True) -> Figure:
    """Perplexity of the same targets by context length; pale dashes: with a fitted temperature."""
    names = multiples([run for row in rows for run in row.runs])
    x = [float(name[:-1]) for name in names]

    def values(row: Row, kind: str) -> list[float]:
        cells = [measure(row, f"{kind}@{name}").value for name in names]
        return [float("nan") if value is None else value for value in cells]

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        axes.plot(x, values(row, "ppl"), **look)
        if tempered:
            axes.plot(x, values(row, "tempered.ppl"), **(look | _PALE))

    more = [Line2D([], [], label="with a fitted temperature", color=INK, **_PALE)]
    figure, panels = _panels(
        rows, "context, in multiples of the training length", "perplexity (log scale)", draw,
        {"linestyle": "-"}, more if tempered else (),
    )  # fmt: skip
    for axes in panels:
        if x:
            _multiples(axes, x)
            _log_perplexity(axes)
            _mark(axes, 1.0)
    return figure


@style()
def training(rows: Sequence[Row]) -> Figure:
    """Loss by step, log scale: validation (marked) and training (thin, mean of ten logged steps).

    A run that began with the weights of another begins where that one was, at the dotted line.
    """

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        for run in row.runs:
            metrics = run.metrics()
            if metrics.empty:
                continue
            begun = (run.read().get("parent") or {"stream_step": 0})["stream_step"]
            lines = metrics.dropna(subset="loss")
            smooth = lines["loss"].rolling(10).mean()
            thin = {"color": look["color"], "linewidth": 0.7, "alpha": 0.6, "zorder": 1}
            axes.plot(lines["step"] + begun, smooth, **thin)
            points = metrics.dropna(subset="validation_loss")
            solid = look | {"markersize": 3, "linewidth": 1.2}
            axes.plot(points["step"] + begun, points["validation_loss"], **solid)
            if row.converted:
                _mark(axes, begun)

    figure, panels = _panels(
        rows, "optimizer step", "loss, nats per token (log scale)", draw, {"linestyle": "-"}
    )
    low, high = _ends(rows)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylim(low * 0.98, high * 1.02)
        axes.yaxis.set_major_locator(FixedLocator(np.arange(1.0, 20.0, 0.5).tolist()))
        axes.yaxis.set_major_formatter(FuncFormatter(_plain))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return figure


def _ends(rows: Sequence[Row]) -> tuple[float, float]:
    """Where the axis of losses begins and ends: without the first of a model that knew nothing."""
    values = []
    for row in rows:
        for run in row.runs:
            metrics = run.metrics()
            losses = metrics["validation_loss"].dropna().tolist()
            values += losses if row.converted else losses[1:]
    return (min(values), max(values)) if values else (1.0, 10.0)


@style()
def by_position(rows: Sequence[Row]) -> Figure:
    """Mean loss of the token at each position of the longest windows, in bins."""
    trained: set[int] = set()

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        curves = [(run.evaluation() or {}).get("loss_by_position") for run in row.runs]
        found = [curve for curve in curves if curve]
        if not found:
            return
        trained.update(run.read()["recipe"]["context_length"] for run in row.runs)
        edges = np.asarray(found[0]["edges"], dtype=float)
        each = [[np.nan if v is None else v for v in curve["nll"]] for curve in found]
        line = {key: look[key] for key in ("color", "linewidth", "zorder", "linestyle")}
        axes.stairs(np.mean(each, axis=0), edges, baseline=None, **line)

    figure, panels = _panels(
        rows, "position in the window, tokens", "loss, nats per token", draw, {"marker": None}
    )
    for axes in panels:
        for length in trained:
            _mark(axes, float(length))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(4))
    return figure
