"""Figures of a speed record: tokens/s and memory of a training step against the length.

A line for each encoding that costs something else than those before it; beside them transformers'
Llama. The number of tokens in a step is the same everywhere, so a level line is a cost that grows
linearly with the text. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from pe.figures.axes import WHOLE, numbers, powers_of_two
from pe.figures.style import FAINT, colour, marker, style
from pe.speed.names import library, title
from pe.speed.record import Result, Speed
from pe.speed.tables import rate

LLAMA = "transformers/rope"
DISTINCT = 0.15
"""Encodings are drawn apart where their tokens/s differ by more at some length."""
LEAST_RANGE = 8.0
"""Of the axes, from bottom to top."""


@style()
def training(speed: Speed) -> Figure:
    """Tokens/s and, where it was recorded, peak memory of a training step, by length."""
    panels: list[tuple[str, Callable[[Result], float | None]]] = [
        ("tokens/s (log scale)", lambda result: result.tokens_per_second)
    ]
    if any(row["peak_memory_gib"] for row in speed.record["cells"]):
        panels.append(("peak memory, GiB (log scale)", lambda result: result["peak_memory_gib"]))
    figure = Figure(figsize=(3.9 * len(panels), 4.1), layout="constrained")
    lengths = speed.lengths("train")
    for place, (label, value) in enumerate(panels):
        axes = figure.add_subplot(1, len(panels), place + 1)
        for system, look in _lines(speed, lengths):
            y = [value(speed.result(system, "train", n)) for n in lengths]
            axes.plot(lengths, numbers(y), **look)
        _axes(axes, lengths, label, plain=place > 0)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2 * len(panels), fontsize=9)
    figure.supxlabel("tokens in a window; as many in every step", fontsize=10.5)
    return figure


def _lines(speed: Speed, lengths: Sequence[int]) -> list[tuple[str, dict[str, Any]]]:
    """System and look of each line: NoPE, RoPE, and what costs something else than all before."""
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


def _apart(costs: Sequence[float | None], others: Sequence[float | None]) -> bool:
    pairs = zip(costs, others, strict=True)
    return any(one and other and abs(one / other - 1) > DISTINCT for one, other in pairs)


def _axes(axes: Axes, lengths: Sequence[int], label: str, plain: bool) -> None:
    powers_of_two(axes, lengths, WHOLE)
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
