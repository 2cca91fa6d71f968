"""Figures of runs: perplexity by length, loss by step, loss by position.

If runs of a study start from other runs, each encoding has a panel with the runs that were
converted from it, in its colour and with dashes and markers of their own. Runs from which no run
was converted are grey in every panel. In other studies all runs share a panel, or have one each if
they are many. Lines are the means that tables show, and bands are their intervals.

Thin grey lines are baselines: the first row of a panel, or RoPE, reading no more than the training
length; runs of the study that were trained on longer windows; and, if a curve gets that far, a
model that gives every token of the vocabulary the same probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from pe.figures.axes import (
    BASELINE,
    CUT,
    GUESS,
    LENGTHS,
    PERPLEXITY,
    PLAIN,
    WHOLE,
    labels,
    legend,
    log_perplexity,
    mark,
    numbers,
    powers_of_two,
)
from pe.figures.style import FAINT, INK, colour, marker, style
from pe.results.measure import cut, measure
from pe.results.quantities import RunLike, label, multiples, rescaled, trained_length, vocabulary
from pe.results.rows import Row, ceilings, grouped

_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_MARKERS = ("o", "v", "s", "D")
_PALE: dict[str, Any] = {"linestyle": (0, (3, 2)), "linewidth": 1.1, "alpha": 0.8, "markersize": 3}
Draw = Callable[[Axes, Row, dict[str, Any]], None]


MANY = 8
"""More rows than that have a panel each: more lines hide each other."""


def families(
    rows: Sequence[Row], highlight: str | None = None
) -> list[tuple[str, list[Row], list[Row]]]:
    """Return (title, rows in colour, rows in grey) of each panel."""
    parents = list(dict.fromkeys(row.origin for row in rows if row.converted))
    if not parents:
        each = len(rows) > MANY and highlight is None
        return [(row.title, [row], []) for row in rows] if each else [("", list(rows), [])]
    alone = [row for row in rows if row.origin not in parents]
    return [(label(p), [row for row in rows if row.origin == p], alone) for p in parents]


def _looks(rows: Sequence[Row], highlight: str | None) -> list[dict[str, Any]]:
    """Return looks for one panel: that of its encoding for each row, other dashes for several."""
    seen: dict[str, int] = {}
    looks = []
    for row in rows:
        number = seen[row.pe] = seen.get(row.pe, -1) + 1
        strong = highlight is None or highlight in (row.pe, *(run.name for run in row.runs))
        looks.append({
            "color": colour(row.pe) if strong else FAINT,
            "alpha": 1.0 if strong else 0.45,
            "linestyle": _DASHES[number % len(_DASHES)],
            "marker": marker(row.pe),
            "linewidth": 2.4 if strong and highlight else 1.7,
            "markersize": 5,
            "zorder": 3 if strong else 2,
        })  # fmt: skip
    return looks


def _look(place: int, row: Row, grey: bool) -> dict[str, Any]:
    """Return the look of a row in a family: first the row that was not converted, then others."""
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
    x: str,
    y: str,
    draw: Draw,
    same: dict[str, Any],
    baselines: Callable[[Axes, Row], list[Line2D]] = lambda axes, row: [],
    highlight: str | None = None,
) -> tuple[Figure, list[Axes]]:
    """Draw panels of lines.

    Args:
        baselines: draws the baselines of a panel, given the row that they are about; returns them.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError("there are no runs to draw; pe.runs.find() lists those that are recorded")
    found = families(rows, highlight)
    each = len(found) > MANY
    columns = 5 if each else min(2, len(found))
    lines = -(-len(found) // columns)
    height = 0.6 + 1.1 * lines if each else 3.7 if lines == 1 else 0.4 + 2.4 * lines
    figure = Figure(figsize=(6.4 if each else 5.6, height), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
    panels = list(grid.flat)
    names: dict[str, Line2D] = {}  # the same dashes in every panel, so they are named once
    held: dict[str, Line2D] = {}
    for axes, (title, strong, grey) in zip(panels, found, strict=False):
        looks = _looks(strong, highlight)
        if title and not each:
            looks = [_look(i, row, grey=False) | same for i, row in enumerate(strong)]
        for row, look, pale in [
            *((row, _look(0, row, grey=True) | same, True) for row in grey),
            *((row, look, False) for row, look in zip(strong, looks, strict=True)),
        ]:
            draw(axes, row, look)
            name = row.title if pale or not title else "trained throughout"
            name = row.title.rpartition(", ")[2] if row.converted and title else name
            shown = look | {"color": INK} if title and not pale else look
            if not each:  # a panel of one row has its name above
                names.setdefault(name, Line2D([], [], label=name, **shown))
        first = next((row for row in strong if row.label == "rope"), strong[0])
        held |= {str(line.get_label()): line for line in baselines(axes, first)}
        axes.set_title(title, fontsize=8 if each else 10.5)
        below = not each or panels.index(axes) + columns >= len(found)
        axes.tick_params(labelbottom=below, labelsize=7 if each else None)
    for axes in panels[len(found) :]:
        axes.remove()
    legend(figure, [*names.values(), *held.values()])
    labels(figure, x, y)
    return figure, panels[: len(found)]


def _by_length(
    rows: Sequence[Row], kind: str, y: str, tempered: bool, highlight: str | None = None
) -> tuple[Figure, list[Axes]]:
    """Draw lines of a quantity by length, and baselines."""
    longer = ceilings(rows)
    own = [row for row in rows if row not in longer]
    runs = [run for row in own for run in row.runs]
    names = multiples(runs)
    x = [float(name[:-1]) for name in names]

    def fitted(row: Row) -> list[float | None]:
        return [measure(row, f"tempered.{kind}@{name}").value for name in names]

    tempered = tempered and any(value is not None for row in own for value in fitted(row))

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        cells = [measure(row, f"{kind}@{name}") for name in names]
        axes.plot(x, numbers(cell.value for cell in cells), label=row.title, **look)
        ends = [cell.interval for cell in cells]
        if any(ends) and len(own) < MANY:  # more bands would hide each other
            axes.fill_between(
                x, numbers(e.low if e else None for e in ends),
                numbers(e.high if e else None for e in ends),
                color=look["color"], alpha=0.14, linewidth=0, zorder=look["zorder"],
            )  # fmt: skip
        if tempered:
            axes.plot(x, numbers(fitted(row)), **(look | _PALE))

    def baselines(axes: Axes, first: Row) -> list[Line2D]:
        lines = axes.plot(x, numbers(cut(first, f"{kind}@{name}") for name in names), **CUT)
        length = trained_length(runs)
        for row in longer:
            there = [rescaled(f"{kind}@{name}", row.runs[0], length) for name in names]
            values = numbers(measure(row, name).value for name in there)
            lines += axes.plot(x, values, **(BASELINE | {"label": row.title}))
        if kind == "ppl" and axes.dataLim.y1 > (limit := vocabulary(first.runs[0])):
            lines.append(axes.axhline(limit, **GUESS))
        if tempered:
            lines.append(Line2D([], [], label="with a fitted temperature", color=INK, **_PALE))
        return lines

    figure, panels = _panels(own, LENGTHS, y, draw, {"linestyle": "-"}, baselines, highlight)
    for axes in panels:
        if x:  # nothing evaluated yet: logarithmic axes need at least one value
            powers_of_two(axes, x)
            mark(axes, 1.0, "" if len(panels) > 1 else "trained up to here")
    return figure, panels if x else []


@style()
def perplexity(rows: Sequence[Row], tempered: bool = True, highlight: str | None = None) -> Figure:
    """Draw perplexity of the same targets by length; pale dashes: with a fitted temperature."""
    figure, panels = _by_length(rows, "ppl", PERPLEXITY, tempered, highlight)
    for axes in panels:
        log_perplexity(axes, vocabulary(rows[0].runs[0]))
    return figure


@style()
def answered(rows: Sequence[Row], task: str) -> Figure:
    """Draw the share of prompts of a retrieval task that are answered, by length."""
    figure, panels = _by_length(rows, task, "prompts answered", tempered=False)
    for axes in panels:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    return figure


@style()
def training(rows: Sequence[Row], highlight: str | None = None) -> Figure:
    """Draw loss by step: validation (marked) and training (thin, the mean of ten logged steps).

    A run that began with the weights of another begins where that one was, at the dotted line.
    """

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        for i, run in enumerate(row.runs):
            metrics = run.metrics()
            if metrics.empty:
                continue
            begun = (run.read().get("parent") or {"stream_step": 0})["stream_step"]
            thin = {key: look[key] for key in ("color", "linestyle")}
            if "loss" in metrics:
                lines = metrics.dropna(subset="loss")
                smooth = lines["loss"].rolling(10, min_periods=1).mean()
                axes.plot(
                    lines["step"] + begun, smooth, linewidth=0.7, alpha=0.6, zorder=1,
                    label=row.title if i == 0 else "_seed", **thin,
                )  # fmt: skip
            if "validation_loss" in metrics:
                points = metrics.dropna(subset="validation_loss")
                solid = look | {"markersize": 3, "linewidth": 1.2}
                axes.plot(
                    points["step"] + begun, points["validation_loss"], label="_validation", **solid
                )
            if begun:
                mark(axes, begun)

    figure, panels = _panels(
        rows, "optimizer step", "loss, nats per token (log scale)", draw, {"linestyle": "-"},
        highlight=highlight,
    )  # fmt: skip
    low, high = _ends(rows)
    for axes in panels:
        axes.set_yscale("log")
        axes.set_ylim(low * 0.98, high * 1.02)
        axes.yaxis.set_major_locator(FixedLocator(np.arange(1.0, 20.0, 0.5).tolist()))
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(WHOLE)
    return figure


def _ends(rows: Sequence[Row]) -> tuple[float, float]:
    """Return the ends of the axis of losses, without the first loss of an untrained model."""
    values: list[float] = []
    for row in rows:
        for run in row.runs:
            metrics = run.metrics()
            if "validation_loss" in metrics:
                losses = metrics["validation_loss"].dropna().tolist()
                values += losses if row.converted or len(losses) < 2 else losses[1:]
    return (min(values), max(values)) if values else (1.0, 10.0)


@style()
def by_position(rows: Sequence[Row], highlight: str | None = None) -> Figure:
    """Draw the mean loss of the token at each position of the longest windows, in bins."""

    def curve(row: Row) -> tuple[np.ndarray, np.ndarray]:
        """Return edges of the bins and mean losses over seeds.

        Both are empty if a seed has no record, or has one of another length than the others.
        """
        records = [(run.evaluation() or {}).get("loss_by_position") for run in row.runs]
        edges = [one["edges"] if one else [] for one in records]
        if edges.count(edges[0]) < len(edges) or not edges[0]:
            return np.zeros(0), np.zeros(0)
        losses = np.mean([numbers(one["nll"]) for one in records if one], axis=0)
        return np.asarray(edges[0], dtype=float), losses

    def draw(axes: Axes, row: Row, look: dict[str, Any]) -> None:
        edges, losses = curve(row)
        if len(losses):
            line = {key: look[key] for key in ("color", "linewidth", "zorder", "linestyle")}
            axes.stairs(losses, edges, baseline=None, label=row.title, **line)

    longer = ceilings(rows)
    length = trained_length(run for row in rows for run in row.runs)

    def baselines(axes: Axes, first: Row) -> list[Line2D]:
        for row in longer:
            draw(axes, row, BASELINE | {"linestyle": "-"})
        lines = [Line2D([], [], **(BASELINE | {"label": row.title})) for row in longer]
        edges, losses = curve(first)
        inside = losses[: int((edges[1:] <= length).sum())]
        if len(inside):  # the mean loss in the last bin within the training length
            lines += axes.plot([length, edges[-1]], [inside[-1]] * 2, **CUT)
        if axes.dataLim.y1 > (limit := math.log(vocabulary(first.runs[0]))):
            lines.append(axes.axhline(limit, **GUESS))
        return lines

    figure, panels = _panels(
        [row for row in rows if row not in longer], "position in the window, tokens",
        "loss, nats per token", draw, {"marker": None}, baselines, highlight=highlight,
    )  # fmt: skip
    for axes in panels:
        mark(axes, float(length), "" if len(panels) > 1 else "trained up to here")
        axes.xaxis.set_major_formatter(WHOLE)
        axes.xaxis.set_major_locator(MaxNLocator(4 if len(panels) <= MANY else 2))
    return figure


def perplexity_by_length(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Draw perplexity of the same target tokens against the length of the context before them.

    Args:
        runs: evaluated runs; several seeds of a configuration become a mean with its interval.
        highlight: an encoding or a run's name to draw strongly, with the others in the back.
    """
    return perplexity(grouped(runs), tempered=False, highlight=highlight)


def loss_curves(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Draw training loss by step as thin lines, validation loss as marked ones.

    A run that started from another begins where that one was.
    """
    return training(grouped(runs), highlight)


def loss_by_position(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Draw the mean loss of the token at each position of long windows, in bins, over seeds."""
    return by_position(grouped(runs), highlight)
