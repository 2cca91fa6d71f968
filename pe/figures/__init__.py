"""Figures from run records: loss curves, perplexity by length, loss by position.

One colour and one marker an encoding, everywhere. Backgrounds are transparent and the colours hold
a contrast of at least 3:1 on white and on the book's dark page; `darken` swaps the few inks that
cannot. SVG keeps text as text, and the same records give the same bytes. No pyplot state is used,
so figures can be made in any thread and any kernel. Imports no torch.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from pe.results.tables import Group, RunLike, groups, measure, multiples

INK, FAINT, GRID = "#24292f", "#6e7781", "#d0d7de"
"""Text and axes; secondary text; grid lines. The only colours that change on a dark page."""
_ON_DARK = {INK: "#e6edf3", FAINT: "#9aa4af", GRID: "#3a424c"}

NAMED = 15
"""So many runs a caption names; more are counted."""

_COLOURS = (
    "#8f8f8f", "#3f8fd8", "#d9641e", "#d03060", "#159570", "#9a63c9", "#b8860b", "#3a94a8",
    "#a0694b", "#7a8f1f",
)  # fmt: skip
_MARKERS = ("o", "s", "D", "^", "v", "P", "X", "<", ">", "h")
_SALT = 4267709
"""Of the hash that gives an encoding its colour and its marker, so that a new encoding changes no
other one's. It was searched for: NoPE, RoPE, PoPE and YaRN get the colours that colour-blind
readers tell apart best, and transforms of RoPE's frequencies, which share figures, one each."""

SEQUENTIAL = LinearSegmentedColormap.from_list("pe_sequential", ["#2f7fc400", "#2f7fc4ff"])
"""From nothing to blue: reads on both backgrounds because its zero is transparent."""
DIVERGING = LinearSegmentedColormap.from_list(
    "pe_diverging", ["#2f7fc4ff", "#2f7fc400", "#d9541e00", "#d9541eff"]
)
"""Blue for negative, orange for positive, transparent in the middle."""


def colour(pe: str) -> str:
    """The encoding's colour; the same name gets the same colour in every process."""
    return _COLOURS[_hash(pe)[0] % len(_COLOURS)]


def marker(pe: str) -> str:
    """The encoding's marker, so that no figure depends on colour alone."""
    return _MARKERS[_hash(pe)[1] % len(_MARKERS)]


def _hash(pe: str) -> bytes:
    return hashlib.sha256(f"{_SALT} {pe}".encode()).digest()


@contextmanager
def style() -> Iterator[None]:
    """The look of every figure here: transparent, text as text, deterministic SVG."""
    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": "pe",
        "font.family": "sans-serif",
        "font.size": 10.5,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "savefig.facecolor": "none",
        "legend.frameon": False,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": GRID,
        "grid.linewidth": 0.7,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "lines.linewidth": 1.8,
        "lines.markersize": 5.5,
    }
    with mpl.rc_context(settings):
        yield


def svg(figure: Figure) -> str:
    """The figure as SVG text without dates; equal figures give equal text."""
    out = io.StringIO()
    with style():
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    # The font list is matplotlib's own; readers get the page's sans-serif instead.
    text = out.getvalue().replace("'DejaVu Sans', 'Bitstream Vera Sans', ", "")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def darken(text: str) -> str:
    """The same SVG for a dark page: `INK`, `FAINT` and `GRID` become light."""
    for light, dark in _ON_DARK.items():
        text = text.replace(light, dark)
    return text


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure as SVG; the file is left alone when its bytes would not change."""
    target, data = Path(path), svg(figure).encode()
    if not target.exists() or target.read_bytes() != data:
        target.write_bytes(data)
    return target


def caption(runs: Sequence[RunLike]) -> str:
    """``Runs: demo/nope-s0-1a2b3c4d, rope-s0-...; tiny/...``: what a figure is made of.

    Of more than `NAMED` runs it names the studies and counts: ``Runs: 30 of scaffold-seeds``.
    """
    studies: dict[str, list[str]] = {}
    for run in (run for group in groups(runs) for run in group.runs):
        studies.setdefault(run.study, []).append(run.name)
    if sum(map(len, studies.values())) > NAMED:
        return "Runs: " + ", ".join(f"{len(names)} of {study}" for study, names in studies.items())
    return "Runs: " + "; ".join(f"{study}/{', '.join(names)}" for study, names in studies.items())


@style()
def perplexity_by_length(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Perplexity of the same target tokens against the length of the context before them.

    Args:
        runs: evaluated runs; several seeds of a configuration become a mean with a min-max band.
        highlight: an encoding or a run's name to draw strongly, with the others in the back.
    """
    figure, axes = _axes("context, in multiples of the training length", "perplexity (log scale)")
    names = multiples(runs)
    x = np.array([float(name[:-1]) for name in names])
    for group, look in _looks(groups(runs), highlight):
        y = np.array([_or_nan(measure(group, f"ppl@{name}").value) for name in names])
        axes.plot(x, y, marker=marker(group.pe), label=group.label, **look)
        if len(group.runs) > 1:
            each = [
                [
                    _or_nan(measure(Group(group.pe, "", (run,)), f"ppl@{name}").value)
                    for name in names
                ]
                for run in group.runs
            ]
            axes.fill_between(
                x,
                np.min(each, axis=0),
                np.max(each, axis=0),
                color=look["color"],
                alpha=0.18,
                linewidth=0,
                zorder=look["zorder"],
            )
    if not names:  # nothing evaluated yet: logarithmic axes need at least one value
        return figure
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(x.tolist()))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
    axes.xaxis.set_minor_locator(NullLocator())
    low, high = axes.get_ylim()
    subs = (1, 2, 5) if high / low > 8 else range(1, 10)  # a narrow range needs every digit
    axes.yaxis.set_major_locator(LogLocator(subs=subs))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    _mark(axes, 1.0, "trained up to here")
    _legend(figure, axes)
    return figure


@style()
def loss_curves(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Training loss by step as lines, validation loss as markers; one line a run.

    A run that started from another begins where that one was.
    """
    figure, axes = _axes("optimizer step", "loss, nats per token")
    for group, look in _looks(groups(runs), highlight):
        for i, run in enumerate(group.runs):
            metrics = run.metrics()
            if metrics.empty:
                continue
            name = group.label if i == 0 else "_seed"
            metrics["step"] += (run.read().get("parent") or {"stream_step": 0})["stream_step"]
            if "loss" in metrics:
                lines = metrics.dropna(subset="loss")
                axes.plot(lines["step"], lines["loss"], label=name, **(look | {"linewidth": 1.2}))
            if "validation_loss" in metrics:
                points = metrics.dropna(subset="validation_loss")
                axes.plot(
                    points["step"],
                    points["validation_loss"],
                    label="_validation",
                    **(look | {"linestyle": "none", "marker": marker(group.pe)}),
                )
    _legend(figure, axes)
    return figure


@style()
def loss_by_position(runs: Sequence[RunLike], highlight: str | None = None) -> Figure:
    """Mean loss of the token at each position of long windows, in bins; seeds are averaged."""
    figure, axes = _axes("position in the window, tokens", "loss, nats per token")
    trained = set()
    for group, look in _looks(groups(runs), highlight):
        found = [(run.evaluation() or {}).get("loss_by_position") for run in group.runs]
        curves = [entry for entry in found if entry]
        if not curves:
            continue
        edges = np.asarray(curves[0]["edges"], dtype=float)
        each = [[_or_nan(value) for value in curve["nll"]] for curve in curves]
        axes.stairs(np.mean(each, axis=0), edges, baseline=None, label=group.label, **look)
        trained |= {run.read()["recipe"]["context_length"] for run in group.runs}
    for length in sorted(trained):
        _mark(axes, float(length), "trained up to here")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    _legend(figure, axes)
    return figure


def _axes(xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.8, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    return figure, axes


def _looks(found: list[Group], highlight: str | None) -> Iterator[tuple[Group, dict[str, Any]]]:
    """Line settings of each group; configurations of one encoding differ in their dashes."""
    seen: dict[str, int] = {}
    for group in found:
        number = seen[group.pe] = seen.get(group.pe, -1) + 1
        strong = highlight is None or highlight in (group.pe, *(run.name for run in group.runs))
        yield (
            group,
            {
                "color": colour(group.pe) if strong else FAINT,
                "alpha": 1.0 if strong else 0.45,
                "linestyle": ("-", "--", ":", "-.")[number % 4],
                "linewidth": 2.4 if strong and highlight else 1.8,
                "zorder": 3 if strong else 2,
            },
        )


def _mark(axes: Axes, x: float, text: str) -> None:
    axes.axvline(x, color=FAINT, linewidth=1, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        text,
        (x, 1),
        xycoords=("data", "axes fraction"),
        xytext=(4, -3),
        textcoords="offset points",
        va="top",
        color=FAINT,
        fontsize=8.5,
    )


def _legend(figure: Figure, axes: Axes) -> None:
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside upper left", ncols=4, handlelength=2.0, columnspacing=1.2)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
