"""Figures of a speed record: tokens/s and memory of a training step against the length.

There is a line for each encoding whose cost differs from those before it, and one for transformers'
Llama. Every step has the same number of tokens, so a level line means a cost that grows linearly
with the length of the text. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pe.figures.axes import numbers, powers_of_two
from pe.figures.style import FAINT, colour, marker, style
from pe.speed.names import library, title
from pe.speed.record import Result, Speed
from pe.speed.tables import rate

LLAMA = "transformers/rope"
DISTINCT = 0.15
"""Encodings are drawn apart where their tokens/s differ by more at some length."""
LABEL_GAP = 0.052
"""Between two names, as a share of the panel's height."""
LEAST_RANGE = 8.0
"""The least ratio of the top of an axis to its bottom."""


@style()
def training(speed: Speed) -> Figure:
    """Draw tokens/s and, where it was recorded, peak memory of a training step, by length."""
    panels: list[tuple[str, Callable[[Result], float | None]]] = [
        ("tokens/s (log scale)", lambda result: result.tokens_per_second)
    ]
    if any(row["peak_memory_gib"] for row in speed.record["cells"]):
        panels.append(("peak memory, GiB (log scale)", lambda result: result["peak_memory_gib"]))
    figure = Figure(figsize=(4.4 * len(panels), 3.9), layout="constrained")
    lengths = speed.lengths("train")
    for place, (label, value) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for system, look in _lines(speed, lengths):
            y = [value(speed.result(system, "train", n)) for n in lengths]
            axes.plot(lengths, numbers(y), **look)
        _axes(axes, lengths, label, plain=place > 0)
        _names(axes, apart_only=place > 0)
    figure.supxlabel(
        "tokens in a window (1k = 1,024); every step has the same number of tokens", fontsize=10.5
    )
    return figure


def _lines(speed: Speed, lengths: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """Return system and look of each line: NoPE, RoPE, and systems whose cost differs from them."""
    drawn: dict[str, list[float | None]] = {}
    for system in dict.fromkeys(
        ("nope", "rope", *(row["system"] for row in speed.record["cells"]))
    ):
        costs = [speed.ratio(system, "train", n) for n in lengths]
        if library(system) or not any(costs):
            continue
        if system == "rope" or all(_apart(costs, others) for others in drawn.values()):
            drawn[system] = costs
    looks: list[tuple[str, dict[str, Any]]] = [
        (system, {"color": colour(system), "marker": marker(system), "label": title(system)})
        for system in drawn
    ]
    if any(speed.result(LLAMA, "train", n).tokens_per_second for n in lengths):
        look = {"color": FAINT, "linestyle": (0, (4, 2)), "marker": ".", "label": title(LLAMA)}
        looks.append((LLAMA, look))
    return looks


def _names(axes: Axes, apart_only: bool) -> None:
    """Write the name of each line beside its end, or only of lines well above the lowest one.

    Colours repeat, so a legend would leave readers to tell lines apart by their markers.
    """
    ends = []
    for line in axes.get_lines():
        measured = [float(y) for y in np.asarray(line.get_ydata()) if np.isfinite(y)]
        if measured:
            ends.append((measured[-1], line))
    lowest = min((end for end, _ in ends), default=0.0)
    low, high = np.log(axes.get_ylim())
    below = 1.0 + LABEL_GAP
    named = [
        (end, str(line.get_label()), line.get_color())
        for end, line in ends
        if not apart_only or end >= (1 + DISTINCT) * lowest
    ]
    if 0 < len(named) < len(ends):
        named.append((lowest, "all others", FAINT))
    for end, name, ink in sorted(named, key=lambda one: -one[0]):
        height = min((np.log(end) - low) / (high - low), below - LABEL_GAP)
        below = height
        axes.annotate(
            name, (1.0, height), xycoords="axes fraction", xytext=(5, 0),
            textcoords="offset points", va="center", fontsize=9, color=ink,
        )  # fmt: skip


def _apart(costs: Sequence[float | None], others: Sequence[float | None]) -> bool:
    pairs = zip(costs, others, strict=True)
    return any(one and other and abs(one / other - 1) > DISTINCT for one, other in pairs)


def _axes(axes: Axes, lengths: Sequence[int], label: str, plain: bool) -> None:
    powers_of_two(axes, lengths, FuncFormatter(lambda n, _: f"{n / 1024:g}k"))
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    form = (lambda value, _: f"{value:g}") if plain else (lambda value, _: rate(value))
    axes.yaxis.set_major_formatter(FuncFormatter(form))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel(label)
    low, high = axes.get_ylim()
    if high / low < LEAST_RANGE:  # a small difference should look small
        more = (LEAST_RANGE * low / high) ** 0.5
        axes.set_ylim(low / more, high * more)
