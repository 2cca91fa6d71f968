"""What each encoding of a budget reads: one line each, from the training length to far beyond it.

Lines are sorted by the longer text, best on top. A short line reads on where training stopped, and
one that begins far to the left reads short texts well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

from pe.figures.axes import BASELINE, CUT, GUESS, PLAIN, legend
from pe.figures.style import FAINT, style
from pe.results.quantities import vocabulary
from pe.results.rows import Row, ceilings, measure

PLACES = {
    "none": "#858585",
    "embeddings": "#9a63c9",
    "queries and keys": "#2f7fc4",
    "logits": "#d9541e",
}
"""Where an encoding acts, and the colour of its line."""


def ordered(rows: Sequence[Row], far: int) -> list[tuple[Row, float, float | None]]:
    """(row, perplexity at 1×, perplexity at ``far``×), best at ``far``× first.

    Rows that have no position so far, None there, come last; rows without a value at 1× not at all.
    """
    found = []
    for row in rows:
        near = measure(row, "ppl@1x").value
        if near is not None:
            found.append((row, near, measure(row, f"ppl@{far}x").value))
    return sorted(found, key=lambda item: (item[2] is None, item[2] or item[1], item[0].title))


@style()
def reach(rows: Sequence[Row], places: Mapping[str, str], far: int = 16) -> Figure:
    """Perplexity at the training length and at ``far`` times that, a line for each row.

    Args:
        places: by a row's label, where it acts: a key of `PLACES`.

    Thin lines are baselines: RoPE, or else the first row, reading no more than the training length;
    rows trained on longer windows, at that length; and uniform guessing, where a row gets there.
    """
    longer = ceilings(rows)
    found = ordered([row for row in rows if row not in longer], far)
    figure = Figure(figsize=(5.6, 0.95 + 0.2 * len(found)), layout="constrained")
    axes = figure.subplots()
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
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(PLAIN)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("perplexity")
    read = next((item for item in found if item[0].label == "rope"), found[0])
    lines = [axes.axvline(read[1], **(CUT | {"label": f"{read[0].title}, {CUT['label']}"}))]
    for row, at, _ in ordered(longer, far):
        lines.append(axes.axvline(at, **(BASELINE | {"label": row.title})))
    limit = vocabulary(found[0][0].runs[0])
    if axes.get_xlim()[1] > limit:
        lines.append(axes.axvline(limit, **GUESS))
    shown = {places[row.label] for row, *_ in found}
    lines += [
        Line2D([], [], marker="o", linestyle="none", color=FAINT, label="1×"),
        Line2D([], [], marker="D", linestyle="none", color=FAINT, markerfacecolor="none",
               label=f"{far}×"),
        *(Line2D([], [], color=colour, label=place)
          for place, colour in PLACES.items() if place in shown),
    ]  # fmt: skip
    legend(figure, lines)
    return figure
