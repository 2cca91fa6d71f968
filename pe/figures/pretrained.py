"""Curves of a model that somebody else trained, before and after another encoding."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from pe.data.needles import even_depth
from pe.figures.axes import CUT, WHOLE, labels, legend, mark, numbers, powers_of_two
from pe.figures.style import FAINT, INK, colour, marker, style
from pe.results.quantities import label

TRAINED_TO = "trained up to here"
LOSS_ABOVE_CUT = 1.2
"""Nats above the cut line that the picture of several methods shows."""


def looks(record: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The look of each variant's line, by variant on record."""
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
    """Options of an encoding as a reader wants them: ``factor 8``, ``dynamic``."""
    return [
        key if value is True
        else f"{key} {value:g}" if isinstance(value, float)
        else f"{key} {value}"
        for key, value in sorted(options.items())
    ]  # fmt: skip


def nll(record: Mapping[str, Any], variant: str) -> list[float]:
    """Loss of the targets at each length, nats per token; NaN where there is none."""
    cells = record["outcomes"][variant]["perplexity"]
    return numbers(cells[str(n)]["nll"] for n in record["settings"]["lengths"])


def cut(record: Mapping[str, Any]) -> list[float]:
    """The untouched model's loss where it reads no more than its training length."""
    lengths, untouched = record["settings"]["lengths"], nll(record, "untouched")
    inside = [x for n, x in zip(lengths, untouched, strict=True) if n <= _trained(record)]
    most = inside[-1] if inside else math.nan
    return [x if n <= _trained(record) else most for n, x in zip(lengths, untouched, strict=True)]


def cut_found(record: Mapping[str, Any], task: str) -> list[float]:
    """Share of prompts that the untouched model answers from the last training length of a text.

    It is the share at the longest length within the training length, times the share of prompts
    whose number lies in that last part. The tokens of question and answer are left out, which
    makes it a little too high.
    """
    lengths, shares = record["settings"]["lengths"], found(record, "untouched", task)
    inside = [x for n, x in zip(lengths, shares, strict=True) if n <= _trained(record)]
    count = record["settings"]["prompts"]
    depths = [even_depth(index, count) for index in range(count)]
    if not inside or not count:
        return [math.nan] * len(lengths)
    return [
        share if n <= _trained(record)
        else inside[-1] * sum(depth >= 1 - _trained(record) / n for depth in depths) / count
        for n, share in zip(lengths, shares, strict=True)
    ]  # fmt: skip


def _trained(record: Mapping[str, Any]) -> int:
    return int(record["host"]["training_length"])


@style()
def by_length(record: Mapping[str, Any]) -> Figure:
    """Left: loss of the same last tokens with longer contexts. Right: numbers found in the text."""
    lengths = record["settings"]["lengths"]
    tasks = _tasks(record)
    figure = Figure(figsize=(7.2 if tasks else 5.0, 3.5), layout="constrained")
    panels = figure.subplots(1, 2 if tasks else 1, squeeze=False)[0]
    for variant, look in looks(record).items():
        panels[0].plot(lengths, nll(record, variant), marker="o", markersize=3.5, **look)
        if tasks:
            panels[1].plot(
                lengths, found(record, variant, tasks[-1]), marker="o", markersize=3.5, **look
            )
    if lengths[-1] > _trained(record):
        panels[0].plot(lengths, cut(record), **CUT)
        if tasks:
            panels[1].plot(lengths, cut_found(record, tasks[-1]), **CUT)
    _finish(figure, panels, record, lengths, columns=4, task=tasks[-1] if tasks else "")
    return figure


def _finish(
    figure: Figure,
    panels: Any,
    record: Mapping[str, Any],
    lengths: Sequence[int],
    columns: int,
    task: str,
) -> None:
    """Axes, the training length, and the legend, of loss and of what is found."""
    panels[0].set_ylabel("loss, nats per token")
    for axes in panels[1:]:
        axes.set_ylim(-0.03, 1.03)
        axes.set_ylabel(f"{task}: prompts answered")
    for axes in panels:
        powers_of_two(axes, lengths, WHOLE)
        if lengths[0] <= _trained(record) <= lengths[-1]:
            mark(axes, _trained(record))
    labels(figure, "context, tokens", "")
    legend(figure, panels[0].get_legend_handles_labels()[0], columns=columns)


@style()
def several(records: Sequence[Mapping[str, Any]]) -> Figure:
    """Loss, and numbers found, by length, of trials of one model on one text.

    Models that were trained on have filled markers. Further lines of a colour are dashed. The axis
    of the loss ends `LOSS_ABOVE_CUT` above the cut line, so the curves of methods that fail leave
    it. The right panel has the task that the untouched model answers best.
    """
    from pe.encodings.core.spec import parse  # brings torch

    first, tasks = records[0], _tasks(records[0])
    tasks = sorted(tasks, key=lambda task: -np.nanmax(found(first, "untouched", task)))[:1]
    lengths = first["settings"]["lengths"]
    figure = Figure(figsize=(7.2 if tasks else 5.0, 4.4), layout="constrained")
    panels = figure.subplots(1, 2 if tasks else 1, squeeze=False)[0]
    lines: list[tuple[Mapping[str, Any], str, dict[str, Any]]] = [
        (first, "untouched", {"color": INK, "label": "untouched", "linewidth": 2.2})
    ]
    used: dict[tuple[str, bool], int] = {}
    for record in records:
        s = record["settings"]
        name = parse(s["pe"])[0][0].name
        for variant in [v for v in record["outcomes"] if v != "untouched"]:
            trained = variant == "trained"
            words = [label(s["pe"]), *in_words(s["options"])]
            words += [f"trained at {s['learning_rate']:g}"] if trained else []
            if variant == "adapted" and s["pe"] == "rope":
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
    for record, variant, look in lines:
        at = record["settings"]["lengths"]
        panels[0].plot(at, nll(record, variant), markersize=4.5, **look)
        if tasks:
            panels[1].plot(at, found(record, variant, tasks[0]), markersize=4.5, **look)
    panels[0].plot(lengths, cut(first), **CUT)
    shown = cut(first)
    if not all(math.isnan(x) for x in shown):
        lowest, highest = min(np.nanmin(nll(r, v)) for r, v, _ in lines), np.nanmax(shown)
        panels[0].set_ylim(lowest - 0.05, highest + LOSS_ABOVE_CUT)
    if tasks:
        panels[1].plot(lengths, cut_found(first, tasks[0]), **CUT)
    _finish(figure, panels, first, lengths, columns=3, task=tasks[0] if tasks else "")
    for axes in panels:
        axes.tick_params(axis="x", labelrotation=45)
    return figure


@style()
def by_position(record: Mapping[str, Any]) -> Figure:
    """Mean loss of the token at each position of the longest windows, in bins."""
    figure = Figure(figsize=(6.2, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for variant, look in looks(record).items():
        one = record["outcomes"][variant]["loss_by_position"]
        if one["nll"]:
            axes.stairs(one["nll"], one["edges"], baseline=None, **look)
    if record["settings"]["lengths"][-1] > _trained(record):
        mark(axes, _trained(record), TRAINED_TO)
    axes.xaxis.set_major_formatter(WHOLE)
    labels(figure, "position in the window, tokens", "loss, nats per token")
    legend(figure, axes.get_legend_handles_labels()[0], columns=4)
    return figure


@style()
def training(record: Mapping[str, Any]) -> Figure:
    """Loss of the training under the new encoding, by step."""
    figure = Figure(figsize=(6.2, 2.8), layout="constrained")
    axes = figure.add_subplot()
    lines = record["training"]
    axes.plot([x["step"] for x in lines], [x["loss"] for x in lines], color=FAINT)
    axes.xaxis.set_major_formatter(WHOLE)
    labels(figure, "optimizer steps", "loss, nats per token")
    return figure


def found(record: Mapping[str, Any], variant: str, task: str) -> list[float]:
    """Share of prompts answered at each length; NaN where there is none."""
    needles = record["outcomes"][variant].get("needles")
    if needles is None:
        return [math.nan] * len(record["settings"]["lengths"])
    cells = [
        needles["tasks"][task].get(str(n), {"prompts": None})["prompts"]
        for n in record["settings"]["lengths"]
    ]
    return numbers(c.count("1") / len(c) if c else None for c in cells)


def _tasks(record: Mapping[str, Any]) -> list[str]:
    """Tasks of retrieval that the untouched model was asked."""
    return list((record["outcomes"]["untouched"].get("needles") or {"tasks": {}})["tasks"])
