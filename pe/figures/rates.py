"""The validation loss of each encoding of a sweep, by its peak learning rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from pe.figures.axes import PLAIN, legend
from pe.figures.style import colour, marker, style
from pe.results.quantities import RunLike, label
from pe.results.sweeps import Sweep, loss, setting, sweeps


def tried(sweep: Sweep) -> Sequence[RunLike]:
    """Return the runs that a line has: those at the multiple of the best one; none if it is alone.

    The multiple is that at which the encoding's own parameters learn.
    """
    runs = [run for run in sweep.runs if setting(run)[1] == setting(sweep.best)[1]]
    return runs if len(runs) > 1 else []


def shown(runs: Sequence[RunLike]) -> list[RunLike]:
    """Return the runs that `by_rate` shows."""
    return [run for sweep in sweeps(runs) for run in tried(sweep)]


@style()
def by_rate(runs: Sequence[RunLike]) -> Figure:
    """Draw a line for each encoding that was trained at several rates, with its best rate filled.

    Losses are in nats per token.
    """
    figure = Figure(figsize=(5.6, 3.2), layout="constrained")
    axes = figure.subplots()
    marked: set[float] = set()
    dashes: dict[str, Iterator[str]] = {}  # encodings of one colour have different lines
    for sweep in sweeps(runs):
        line = tried(sweep)
        if not line:
            continue
        hue = colour(sweep.pe)
        look: dict[str, Any] = {"color": hue, "marker": marker(sweep.pe)}
        dash = next(dashes.setdefault(hue, cycle(("-", "--", ":"))))
        rates = [setting(run)[0] for run in line]
        marked.update(rates)
        losses = [loss(run) for run in line]
        name = label(sweep.pe)
        axes.plot(rates, losses, linestyle=dash, markerfacecolor="none", label=name, **look)
        axes.plot(setting(sweep.best)[0], loss(sweep.best), linestyle="none", **look)
    handles, _ = axes.get_legend_handles_labels()
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(marked)))
    axes.xaxis.set_major_formatter(PLAIN)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("peak learning rate (log scale)")
    axes.set_ylabel("validation loss, nats per token")
    legend(figure, handles, columns=4)
    return figure
