"""Extended, and trained on: a panel a method, perplexity by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from pe.figures.axes import PERPLEXITY, labels, legend, log_perplexity, mark, numbers, powers_of_two
from pe.figures.style import FAINT, colour, marker, style
from pe.results.finetuned import CONTROL, FineTuned
from pe.results.quantities import trained_length

PALE = (0, (4, 1.6))


@style()
def by_length(rows: Sequence[FineTuned]) -> Figure:
    """For each method three lines: the run it began with, extended, and trained on.

    The control, longer windows and no other frequencies, is in every panel, pale.
    """
    from pe.encodings.core.spec import parse  # brings torch

    length = trained_length(rows[0].row.runs)
    control = next((row for row in rows if row.row.label == CONTROL), None)
    shown = [row for row in rows if row is not control] or list(rows)
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure = Figure(figsize=(6.4, 1.0 + 1.9 * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axes, row in zip(grid.flat, shown, strict=False):
        name = parse(row.row.pe)[0][0].name
        _line(axes, row.before, color=FAINT, linewidth=1.2, label="the model as it was")
        if control is not None:
            _line(
                axes, control.trained, color=FAINT, linewidth=1.2, linestyle=PALE,
                label="not extended, trained on",
            )  # fmt: skip
        look = {"color": colour(name), "marker": marker(name), "markersize": 4}
        _line(
            axes, row.extended, linestyle=PALE, markerfacecolor="none", linewidth=1.3,
            label="extended", **look,
        )  # fmt: skip
        _line(axes, row.trained, label="extended, trained on", **look)
        axes.set_title(row.title, fontsize=9.5)
        form = FuncFormatter(lambda value, _: f"{value / 1024:g}k")
        powers_of_two(axes, list(row.trained), form)
        axes.set_yscale("log")
        mark(axes, length)
    log_perplexity(grid.flat[0])
    for axes in list(grid.flat)[len(shown) :]:
        axes.remove()
    for axes in list(grid.flat)[: len(shown)]:
        axes.tick_params(labelsize=8.5, labelbottom=True)
    labels(figure, "context in tokens (k = 1,024)", PERPLEXITY)
    legend(figure, grid.flat[0].get_legend_handles_labels()[0], columns=2)
    return figure


def _line(axes: Axes, values: Mapping[int, float | None], **look: object) -> None:
    axes.plot(list(values), numbers(values.values()), **look)  # type: ignore[arg-type]
