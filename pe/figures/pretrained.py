"""Curves of a model that somebody else trained, before and after another encoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from pe.figures.axes import CUT, WHOLE, labels, legend, mark, numbers, powers_of_two
from pe.figures.style import FAINT, INK, colour, marker, style
from pe.results.intervals import Interval
from pe.results.pretrained import cut, cut_found, found, nll, tasks, trained_length
from pe.results.quantities import label

TRAINED_TO = "trained up to here"
LOSS_ABOVE_CUT = 1.2
"""Nats above the cut line that the picture of several methods shows."""
WHISKERS = 5
"""A picture of more lines has no whiskers: they would hide each other."""


def looks(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the look of each variant's line, by variant on record."""
    pe, steps = record["settings"]["pe"], record["settings"]["steps"]
    from pe.encodings.core.spec import parse  # brings torch

    shade = colour(parse(pe)[0][0].name)
    every: dict[str, dict[str, Any]] = {
        "untouched": {"color": INK, "label": "untouched"},
        "adapted": {"color": shade, "label": label(pe), "linestyle": (0, (3, 1.5))},
        "trained": {"color": shade, "label": f"{label(pe)}, {steps:,} steps"},
    }
    if not steps:
        every["adapted"]["linestyle"] = "-"
    return {name: look for name, look in every.items() if name in record["outcomes"]}


def in_words(options: Mapping[str, Any]) -> list[str]:
    """Write options of an encoding for readers: ``factor 8``, ``dynamic``."""
    return [
        key if value is True
        else f"{key} {value:g}" if isinstance(value, float)
        else f"{key} {value}"
        for key, value in sorted(options.items())
    ]  # fmt: skip


def _values(shares: Sequence[Interval | None]) -> list[float]:
    """Return the shares without their intervals; NaN where there is none."""
    return numbers(share.value if share else None for share in shares)


def _apart(place: int, lines: int) -> float:
    """Return the factor that moves a line along x, so that the whiskers of lines do not overlap."""
    return float(1.06 ** (place - (lines - 1) / 2))


def _shares(
    axes: Axes,
    at: Sequence[int],
    shares: Sequence[Interval | None],
    look: Mapping[str, Any],
    moved: float | None = None,
) -> None:
    """Draw a line of shares. If it is ``moved`` by such a factor, their intervals are whiskers."""
    x = [n * (moved or 1.0) for n in at]
    axes.plot(x, _values(shares), **look)
    if moved is not None:
        there = [(n, share) for n, share in zip(x, shares, strict=True) if share]
        axes.vlines(
            [n for n, _ in there], [share.low for _, share in there],
            [share.high for _, share in there], color=look["color"], linewidth=1, alpha=0.55,
        )  # fmt: skip


@style()
def by_length(record: Mapping[str, Any]) -> Figure:
    """Draw loss of the same last tokens (left) and numbers found (right) by length."""
    lengths = record["settings"]["lengths"]
    asked = tasks(record)
    figure = Figure(figsize=(7.2 if asked else 5.0, 3.5), layout="constrained")
    panels = figure.subplots(1, 2 if asked else 1, squeeze=False)[0]
    drawn = looks(record)
    for place, (variant, look) in enumerate(drawn.items()):
        look |= {"marker": "o", "markersize": 3.5}
        panels[0].plot(lengths, nll(record, variant), **look)
        if asked:
            shares = found(record, variant, asked[-1])
            _shares(panels[1], lengths, shares, look, _apart(place, len(drawn)))
    if lengths[-1] > trained_length(record):
        panels[0].plot(lengths, cut(record), **CUT)
        if asked:
            panels[1].plot(lengths, _values(cut_found(record, asked[-1])), **CUT)
    _finish(figure, panels, record, lengths, columns=4, task=asked[-1] if asked else "")
    return figure


def _finish(
    figure: Figure,
    panels: Any,
    record: Mapping[str, Any],
    lengths: Sequence[int],
    columns: int,
    task: str,
) -> None:
    """Finish the axes of loss and of what is found: scales, training length and legend."""
    panels[0].set_ylabel("loss, nats per token")
    for axes in panels[1:]:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_ylabel(f"{task}: prompts answered")
    for axes in panels:
        powers_of_two(axes, lengths, WHOLE)
        axes.tick_params(axis="x", labelrotation=45)
        if lengths[0] <= trained_length(record) <= lengths[-1]:
            mark(axes, trained_length(record))
    labels(figure, "context, tokens", "")
    legend(figure, panels[0].get_legend_handles_labels()[0], columns=columns)


def _lines(
    records: Sequence[Mapping[str, Any]],
) -> list[tuple[Mapping[str, Any], str, dict[str, Any]]]:
    """Return (record, variant, look) of each line: the untouched model once, and each outcome."""
    from pe.encodings.core.spec import parse  # brings torch

    lines: list[tuple[Mapping[str, Any], str, dict[str, Any]]] = [
        (records[0], "untouched", {"color": INK, "label": "untouched", "linewidth": 2.2})
    ]
    used: dict[tuple[str, bool], int] = {}
    for record in records:
        s = record["settings"]
        name = parse(s["pe"])[0][0].name
        for variant in [v for v in record["outcomes"] if v != "untouched"]:
            trained = variant == "trained"
            words = [label(s["pe"]), *in_words(s["options"])]
            if s["steps"]:
                words.append(f"trained at {s['learning_rate']:g}" if trained else "before training")
            if variant == "adapted" and s["pe"] == "rope" and not s["options"]:
                continue  # the untouched model
            text = ", ".join(words)
            if any(look["label"] == text for _, _, look in lines):
                continue
            turn = used.get((name, trained), 0)
            used[name, trained] = turn + 1
            dashes = ["-", (0, (4, 1.5)), (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5))][turn % 4]
            look: dict[str, Any] = {"color": colour(name), "marker": marker(name), "label": text}
            look |= {"linestyle": dashes, "markerfacecolor": None if trained else "none"}
            lines.append((record, variant, look))
    return lines


def whiskers(records: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether `several` draws the intervals of shares: of up to `WHISKERS` lines."""
    return bool(tasks(records[0])) and len(_lines(records)) <= WHISKERS


@style()
def several(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw loss and numbers found by length, for trials of one model on one text.

    Models that were trained further have filled markers. Of lines in one colour all but the first
    are dashed. The axis of the loss ends `LOSS_ABOVE_CUT` above the cut line, so the curves of
    methods that fail leave it. The right panel has the task that the untouched model answers best.
    Shares have intervals if there are few lines (`whiskers`).
    """
    first, lines, intervals = records[0], _lines(records), whiskers(records)
    task = max(
        tasks(first), default="", key=lambda one: np.nanmax(_values(found(first, "untouched", one)))
    )
    lengths = first["settings"]["lengths"]
    figure = Figure(figsize=(7.2 if task else 5.0, 4.4), layout="constrained")
    panels = figure.subplots(1, 2 if task else 1, squeeze=False)[0]
    for place, (record, variant, look) in enumerate(lines):
        at = record["settings"]["lengths"]
        look["markersize"] = 4.5
        panels[0].plot(at, nll(record, variant), **look)
        if task:
            moved = _apart(place, len(lines)) if intervals else None
            _shares(panels[1], at, found(record, variant, task), look, moved)
    panels[0].plot(lengths, cut(first), **CUT)
    shown = cut(first)
    if not all(math.isnan(x) for x in shown):
        lowest, highest = min(np.nanmin(nll(r, v)) for r, v, _ in lines), np.nanmax(shown)
        panels[0].set_ylim(lowest - 0.05, highest + LOSS_ABOVE_CUT)
    if task:
        panels[1].plot(lengths, _values(cut_found(first, task)), **CUT)
    _finish(figure, panels, first, lengths, columns=3, task=task)
    return figure


@style()
def by_position(record: Mapping[str, Any]) -> Figure:
    """Draw the mean loss of the token at each position of the longest windows, in bins."""
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for variant, look in looks(record).items():
        one = record["outcomes"][variant]["loss_by_position"]
        if one["nll"]:
            axes.stairs(one["nll"], one["edges"], baseline=None, **look)
    if record["settings"]["lengths"][-1] > trained_length(record):
        mark(axes, trained_length(record), TRAINED_TO)
    axes.xaxis.set_major_formatter(WHOLE)
    labels(figure, "position in the window, tokens", "loss, nats per token")
    legend(figure, axes.get_legend_handles_labels()[0], columns=4)
    return figure


@style()
def training(record: Mapping[str, Any]) -> Figure:
    """Draw the loss of the training under the new encoding, by step."""
    figure = Figure(figsize=(6.2, 2.8), layout="constrained")
    axes = figure.add_subplot()
    lines = record["training"]
    axes.plot([x["step"] for x in lines], [x["loss"] for x in lines], color=FAINT)
    axes.xaxis.set_major_formatter(WHOLE)
    labels(figure, "optimizer steps", "loss, nats per token")
    return figure
