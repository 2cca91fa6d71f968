"""Figures of the records of a task: learning curves, accuracy by length, position and encoding.

Lines are means over seeds at each encoding's best rate. Bands are Student's 95% intervals within
the possible range. torch is imported only when a figure is drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, PercentFormatter

from pe.figures.axes import CUT, GUESS, WHOLE, legend, mark, numbers
from pe.figures.style import FAINT, INK, SEQUENTIAL, colour, marker, style
from pe.results.intervals import Interval
from pe.results.quantities import label
from pe.runs.models import TaskRecord
from pe.tasks.core.registry import task
from pe.tasks.measure import summary

NOTHING = "nothing is on record yet"


def _empty() -> Figure:
    figure = Figure(figsize=(6.4, 1.2), layout="constrained")
    figure.text(0.5, 0.5, NOTHING, ha="center", va="center", color=FAINT)
    return figure


def _band(
    axes: Axes, x: Sequence[float], values: Sequence[Interval | None], pe: str, dots: bool
) -> None:
    """Draw the means of an encoding as a line and their intervals as a band."""
    ink = colour(pe)
    means = numbers(None if one is None else one.value for one in values)
    every = None if dots else 0.1  # colours repeat, so every line needs markers
    axes.plot(x, means, color=ink, label=label(pe), marker=marker(pe), markevery=every)
    low = numbers(None if one is None else one.low for one in values)
    high = numbers(None if one is None else one.high for one in values)
    axes.fill_between(x, low, high, color=ink, alpha=0.16, linewidth=0)


@style()
def learning_curves(records: Sequence[TaskRecord]) -> Figure:
    """Draw the loss of the training batches by step, and a line at the loss of uniform guessing."""
    if not any(record.steps for record in records):
        return _empty()
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.add_subplot()
    for record in records:
        losses = [model.losses for model in summary.at_rate(record)]
        values = [summary.mean(at) for at in zip(*losses, strict=True)]
        _band(axes, record.steps, values, record.pe, dots=False)
    _loss_by_step(figure, axes, records[0].chance)
    return figure


def _loss_by_step(figure: Figure, axes: Axes, chance: float) -> None:
    axes.axhline(-math.log(chance), **GUESS)
    axes.set_ylim(bottom=0, top=1.25 * -math.log(chance))
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats per answer")
    axes.xaxis.set_major_formatter(WHOLE)
    legend(figure, axes.get_legend_handles_labels()[0])


@style()
def live_curves(
    losses: Mapping[str, Sequence[Sequence[float]]], steps: int, chance: float
) -> Figure:
    """Draw the mean loss over models by step while encodings are trained.

    Args:
        losses: by encoding, a list per step with the loss of each model. steps: where the axis
            ends. chance: of the task.
    """
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for pe, history in losses.items():
        means = [sum(at) / len(at) for at in history]
        every = max(1, len(means) // 400)
        at = range(1, len(means) + 1, every)
        axes.plot(
            at, means[::every], color=colour(pe), marker=marker(pe), markevery=0.1, label=label(pe)
        )
    axes.set_xlim(0, max(1, steps))
    _loss_by_step(figure, axes, chance)
    return figure


def _shares(axes: Axes, record: TaskRecord) -> None:
    axes.axhline(record.chance, **GUESS)
    axes.set_ylim(-0.03, 1.03)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


@style()
def accuracy_by_length(records: Sequence[TaskRecord]) -> Figure:
    """Draw the share of right tokens by length.

    A dotted line is at the end of training's lengths.
    """
    if not records:
        return _empty()
    figure = Figure(figsize=(6.4, 3.9), layout="constrained")
    axes = figure.add_subplot()
    for record in records:
        lengths = sorted(map(int, record.lengths))
        values = [
            None if answers is None else summary.mean([summary.token(one) for one in answers])
            for answers in (record.lengths[str(length)] for length in lengths)
        ]
        _band(axes, lengths, values, record.pe, dots=True)
    _shares(axes, records[0])
    _, longest = task(records[0].task, **records[0].task_options).train_lengths
    axes.set_ylim(top=1.13)  # room for the words above the lines
    mark(axes, longest, "trained up to here")
    axes.set_xlabel("length")
    axes.set_ylabel("right answers")
    legend(figure, axes.get_legend_handles_labels()[0])
    return figure


@style()
def accuracy_by_position(records: Sequence[TaskRecord]) -> Figure:
    """Draw the share of right tokens by position in the sequence, a panel per split."""
    names = summary.splits(records[0]) if records else []
    if not names:
        return _empty()
    figure = Figure(figsize=(3.6 * len(names), 3.7), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, split in zip(panels, names, strict=True):
        _shares(axes, records[0])
        for record in records:
            places = record.positions[split]
            if places is not None:
                values = [summary.mean(at) for at in zip(*places.shares, strict=True)]
                _band(axes, places.starts, values, record.pe, dots=len(places.starts) < 12)
        axes.set_title(summary.title(split), fontsize=10.5)
        axes.set_xlabel("position")
    panels[0].set_ylabel("right answers")
    legend(figure, panels[0].get_legend_handles_labels()[0])
    return figure


ROW = 0.27
"""Inches of a line of `by_encoding`."""
WIDEST = 8.8
"""Inches of a figure that a page of 1,280 pixels shows whole with letters of 9 pixels."""


@style()
def by_encoding(records: Mapping[str, TaskRecord | None]) -> Figure:
    """Draw the share of whole answers that are right, a line per encoding and a panel per split.

    A dot is the mean over seeds, its bar Student's 95% interval, and each small tick is a seed. An
    open diamond is the share of right tokens, where an answer has several. Lines from top to bottom
    are the share of tokens by chance (dotted) and by the best trivial strategy (dashes).

    Args:
        records: by encoding, in the order of the lines; None where nothing is recorded.
    """
    known = [record for record in records.values() if record is not None]
    if not known:
        return _empty()
    first, names = known[0], summary.splits(known[0])
    height = 1.25 + ROW * len(records)
    width = min(1.6 + 2.9 * len(names), WIDEST)
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, split in zip(panels, names, strict=True):
        best = max((shares[split] for shares in first.baselines.values()), default=first.chance)
        axes.axvline(first.chance, **(GUESS | {"label": "uniform guessing, tokens"}))
        axes.axvline(best, **(CUT | {"label": "best trivial strategy, tokens"}))
        for line, (pe, record) in enumerate(records.items()):
            _line_of(axes, line, pe, record, split)
        axes.set_xlim(-0.04, 1.04)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_title(summary.title(split), fontsize=10.5)
        axes.set_xlabel("right answers")
    axes = panels[0]
    axes.set_ylim(len(records) - 0.5, -0.5)
    axes.set_yticks(range(len(records)), [label(pe) for pe in records])
    handles = axes.get_legend_handles_labels()
    unique = dict(zip(reversed(handles[1]), reversed(handles[0]), strict=True))
    legend(figure, list(reversed(unique.values())))
    return figure


@style()
def solved(titles: Sequence[str], records: Mapping[str, Sequence[TaskRecord | None]]) -> Figure:
    """Draw how many seeds solve a task in and out of distribution, encodings by tasks.

    Encodings whose seeds solve most out of distribution come first, counted on the tasks that all
    encodings were trained on. Where a task has several splits out of distribution, the one that the
    fewest seeds solve counts. A dark cell means all seeds, an empty one none; otherwise the cell
    has the number. A dash means no record, or an encoding without such positions.

    Args:
        titles: of the tasks. records: by encoding, one per task; None where nothing is recorded.
    """
    counts = {pe: [_solved(record) for record in line] for pe, line in records.items()}

    shared = [
        place for place in range(len(titles)) if all(line[place] for line in records.values())
    ]

    def far(pe: str) -> int:
        return sum(counts[pe][place][1] or 0 for place in shared)

    order = sorted(counts, key=far, reverse=True)
    most = max((len(r.seeds) for line in records.values() for r in line if r), default=1)
    figure = Figure(figsize=(WIDEST, 1.9 + ROW * len(order)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for side, axes in enumerate(panels):
        cells = [[counts[pe][place][side] for place in range(len(titles))] for pe in order]
        for line, row in enumerate(cells):
            for place, count in enumerate(row):
                if count:
                    shade = SEQUENTIAL(count / (1.25 * most))
                    axes.add_patch(Rectangle((place - 0.5, line - 0.5), 1, 1, color=shade, lw=0))
        for line, row in enumerate(cells):
            for place, count in enumerate(row):
                if count is None or 0 < count < most:
                    words = "–" if count is None else str(count)
                    axes.text(place, line, words, ha="center", va="center", fontsize=9, color=INK)
        axes.set_xlim(-0.5, len(titles) - 0.5)
        axes.set_xticks(
            range(len(titles)), titles, rotation=50, ha="right", rotation_mode="anchor", fontsize=9
        )
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for edge in axes.spines.values():
            edge.set_visible(False)
    panels[0].set_ylim(len(order) - 0.5, -0.5)
    panels[0].set_yticks(range(len(order)), [label(pe) for pe in order], fontsize=9)
    panels[0].set_title("solved at the lengths of training", fontsize=10.5)
    panels[1].set_title("solved out of distribution", fontsize=10.5)
    return figure


def _solved(record: TaskRecord | None) -> tuple[int | None, int | None]:
    """Return how many seeds solve the task in distribution, and in the hardest split out of it."""
    if record is None:
        return None, None
    near, *far = (summary.solved(record, split) for split in summary.splits(record))
    known = [count for count in far if count is not None]
    return near, min(known, default=None)


def _line_of(axes: Axes, line: int, pe: str, record: TaskRecord | None, split: str) -> None:
    whole = [] if record is None else summary.by_seed(record, split, summary.exact)
    tokens = [] if record is None else summary.by_seed(record, split)
    mean, of_tokens = summary.mean(whole), summary.mean(tokens)
    if mean is None or of_tokens is None:
        words = "not run" if record is None else "no such positions"
        axes.text(0.3, line, words, ha="center", va="center", color=FAINT, fontsize=9)
        return
    ink = colour(pe)
    seeds = numbers(whole)
    # One path for all seeds: as markers they would add a third to the bytes of the figure.
    across = np.repeat(seeds, 3)
    down = np.tile([line - 0.2, line + 0.2, np.nan], len(seeds))
    axes.plot(across, down, color=ink, alpha=0.55, linewidth=1.0)
    ends = [max(0.0, mean.low), min(1.0, mean.high)]
    axes.plot(ends, [line, line], color=ink, linewidth=3, alpha=0.35, solid_capstyle="butt")
    if whole != tokens:
        axes.plot(
            of_tokens.value, line, "D", markersize=4.5, markerfacecolor="none", markeredgecolor=ink,
            linestyle="none", label="right tokens",
        )  # fmt: skip
    axes.plot(mean.value, line, marker(pe), color=ink)
