"""The perplexities of each encoding of a budget as a line, and the shares it finds as cells.

A line goes from the perplexity at the training length to that of longer texts. A short line belongs
to a model that reads long texts as well as short ones, a line that begins far to the left to one
that reads short texts well. Lines are sorted by the longer text, the best on top; if hidden numbers
were asked for, by the share that was found beyond the training length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, NullFormatter

from pe.figures.axes import BASELINE, CUT, GUESS, PLAIN, legend
from pe.figures.style import FAINT, INK, SEQUENTIAL, style
from pe.results.measure import cut, measure
from pe.results.quantities import multiples, perplexity, vocabulary
from pe.results.rows import Row, ceilings, comparable

PLACES = {
    "none": "#858585",
    "embeddings": "#9a63c9",
    "queries and keys": "#2f7fc4",
    "logits": "#d9541e",
}
"""Where an encoding acts, and the colour of its line."""
TASK = "multikey"
"""The hidden numbers whose shares stand beside the lines."""


def ordered(rows: Sequence[Row], far: int) -> list[tuple[Row, float, float | None]]:
    """Return (row, perplexity at 1×, perplexity at ``far``×), best at ``far``× first.

    Rows without a value at ``far``×, where the last item is None, come last. Rows without a value
    at 1× are left out.
    """
    measured = []
    for row in rows:
        near = measure(row, "ppl@1x").value
        if near is not None:
            measured.append((row, near, measure(row, f"ppl@{far}x").value))
    return sorted(measured, key=lambda item: (item[2] is None, item[2] or item[1], item[0].title))


def _found(row: Row, names: Sequence[str]) -> list[float | None]:
    """Return the share of prompts answered, by length."""
    return [measure(row, f"{TASK}@{name}").value for name in names]


@style()
def reach(
    rows: Sequence[Row], places: Mapping[str, str], far: int = 16, base: str = "rope"
) -> Figure:
    """Draw perplexity at the training length and at ``far`` times that, a line for each row.

    Args:
        rows: with all their seeds. The lines and their order are of the seeds that all rows have;
            what further seeds found stands beside it, in a part of its own of each cell, and their
            perplexities are small marks.
        places: by a row's label, where it acts: a key of `PLACES`.
        base: the label of the row that the baselines belong to; the first row if none has it.

    Shares of the prompts of `TASK` stand beside the lines if any row was asked for them. Thin lines
    are baselines: the base when it reads no more than the training length; rows that were trained
    on longer windows, at that length; and uniform guessing, where the axis goes so far. The last
    row of cells is what the base would find if it read no more than the training length.
    """
    longer = ceilings(rows)
    compared = comparable([row for row in rows if row not in longer])
    further = {row.label: _further(row, compared) for row in rows}
    measured = ordered(compared, far)
    names = multiples([run for row, *_ in measured for run in row.runs])
    asked = any(value is not None for row, *_ in measured for value in _found(row, names))
    if asked:

        def beyond(row: Row) -> float:
            return sum(value or 0.0 for value in _found(row, names)[1:])

        measured.sort(key=lambda item: -beyond(item[0]))
    size = (6.4 if asked else 5.6, 0.95 + 0.2 * len(measured) + (0.35 if asked else 0))
    figure = Figure(figsize=size, layout="constrained")
    if asked:
        axes, cells = figure.subplots(1, 2, width_ratios=(5, 4))
    else:
        axes = figure.subplots()
    held = next((item for item in measured if item[0].label == base), measured[0])
    lines = _lines(axes, measured, places, held)
    _marks(axes, measured, places, further, far)
    for row, at, _ in ordered(longer, far):
        lines.append(axes.axvline(at, **(BASELINE | {"label": row.title})))
    limit = vocabulary(measured[0][0].runs[0])
    if asked:
        _narrow(axes, measured, limit)
    elif axes.get_xlim()[1] > limit:
        lines.append(axes.axvline(limit, **GUESS))
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low > 500 else (1, 2, 5)))
    if asked:
        _cells(cells, [[row, *further[row.label]] for row, *_ in measured], held[0], names)
        height = len(measured) + 1
        titles = [row.title for row, *_ in measured]
        axes.set_yticks(range(height), [*titles, f"{held[0].title}, cut"], fontsize=9)
        axes.get_yticklabels()[-1].set_style("italic")
        for one in (axes, cells):
            one.set_ylim(height - 0.4, -0.6)
    shown = {places[row.label] for row, *_ in measured}
    lines += [
        Line2D([], [], marker="o", linestyle="none", color=FAINT, label="1×"),
        Line2D([], [], marker="D", linestyle="none", color=FAINT, markerfacecolor="none",
               label=f"{far}×"),
        *(Line2D([], [], color=colour, label=place)
          for place, colour in PLACES.items() if place in shown),
    ]  # fmt: skip
    legend(figure, lines, columns=4 if asked else 3)
    return figure


def _lines(
    axes: Axes,
    found: Sequence[tuple[Row, float, float | None]],
    places: Mapping[str, str],
    base: tuple[Row, float, float | None],
) -> list[Line2D]:
    """Draw a line of perplexities per row. Return that of ``base`` cut to the training length."""
    for height, (row, near, there) in enumerate(found):
        colour = PLACES[places[row.label]]
        if there is not None:
            axes.plot([near, there], [height, height], color=colour, linewidth=1.6)
            axes.plot(there, height, "D", color=colour, markersize=5, markerfacecolor="none")
        axes.plot(near, height, "o", color=colour, markersize=5)
    axes.set_yticks(range(len(found)), [row.title for row, *_ in found], fontsize=9)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(PLAIN)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("perplexity")
    return [axes.axvline(base[1], **(CUT | {"label": f"{base[0].title}, {CUT['label']}"}))]


def _further(row: Row, compared: Sequence[Row]) -> list[Row]:
    """Return a row for each seed that no row of ``compared`` has."""
    known = {(one.label, seed) for one in compared for seed in one.seeds}
    return [one for one in row.each() if (row.label, one.seeds[0]) not in known]


def _marks(
    axes: Axes,
    found: Sequence[tuple[Row, float, float | None]],
    places: Mapping[str, str],
    further: Mapping[str, Sequence[Row]],
    far: int,
) -> None:
    """Draw the perplexities of further seeds as small marks below the lines."""
    for height, (row, *_) in enumerate(found):
        colour = PLACES[places[row.label]]
        for _, near, there in ordered(further[row.label], far):
            axes.plot(near, height + 0.28, "o", color=colour, markersize=2.5)
            if there is not None:
                axes.plot(
                    there, height + 0.28, "D", color=colour, markersize=2.5, markerfacecolor="none"
                )


def _narrow(axes: Axes, found: Sequence[tuple[Row, float, float | None]], limit: int) -> None:
    """End the axis at eight times the best value, and write larger values at its edge."""
    edge = 8 * min(near for _, near, _ in found)
    if axes.get_xlim()[1] <= edge:
        return
    axes.set_xlim(right=edge)
    for height, (_, _, there) in enumerate(found):
        if there is not None and there > edge:
            axes.text(
                edge, height - 0.12, f"{perplexity(there, limit)} \N{RIGHTWARDS ARROW}", ha="right",
                va="bottom", fontsize=7.5, color=FAINT,
            )  # fmt: skip


def _cells(axes: Axes, rows: Sequence[Sequence[Row]], base: Row, names: Sequence[str]) -> None:
    """Draw the percentage of prompts answered, a line of cells for each encoding.

    ``rows`` has a list of rows for each, whose numbers share a cell, one beside the other. ``base``
    with texts cut comes last.
    """
    axes.grid(visible=False)
    shares = [[_found(row, names) for row in each] for each in rows]
    shares.append([[cut(base, f"{TASK}@{name}") for name in names]])
    for height, each in enumerate(shares):
        width = 1 / len(each)
        for i, line in enumerate(each):
            for place, value in enumerate(line):
                left = place - 0.5 + i * width
                if value is None:
                    continue
                colour = SEQUENTIAL(value / 1.25)
                axes.add_patch(Rectangle((left, height - 0.5), width, 1, color=colour, linewidth=0))
                axes.text(
                    left + width / 2, height, f"{100 * value:.0f}", ha="center", va="center",
                    fontsize=8.5 if len(each) == 1 else 6.5, color=INK,
                    style="italic" if height == len(rows) else "normal",
                )  # fmt: skip
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.set_xticks(range(len(names)), [name.replace("x", "×") for name in names])
    axes.set_yticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_xlabel(f"{TASK} answered, %")
