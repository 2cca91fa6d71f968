"""The timeline of book/tables/models.yaml."""

from __future__ import annotations

from book_models import ledger, when
from matplotlib.figure import Figure

from pe import figures
from pictures.common import NARROW, canvas, picture

YEARS = (2017, 2026)
APART = 0.3
"""Years between two names of a column, at least."""
_COLOURS = {
    "embeddings": "sinusoidal",
    "logits": "t5",
    "rotation": "rope",
    "layers and keys": "nope",
}


def placed(times: list[float], apart: float = APART) -> list[float]:
    """Where names stand: at their times, moved later where they would touch the one before."""
    result: list[float] = []
    for time in sorted(times):
        result.append(max(time, result[-1] + apart) if result else time)
    return result


@picture("who-timeline")
def draw_timeline() -> Figure:
    figure, axes = canvas(height=6.4, width=NARROW + 0.3)
    ax = axes[0, 0]
    methods = ledger()["methods"]
    for column, (place, entries) in enumerate(methods.items()):
        colour = figures.colour(_COLOURS[place])
        entries = sorted(entries, key=when)
        times = [when(entry) for entry in entries]
        ax.plot([column, column], YEARS, color=figures.GRID, lw=1)
        for entry, time, where in zip(entries, times, placed(times), strict=True):
            ax.plot([column], [time], "o", color=colour, ms=5)
            ax.plot([column, column + 0.09], [time, where], color=figures.FAINT, lw=0.6)
            ax.text(column + 0.11, where, entry["name"], va="center", fontsize=9)
    ax.set(xlim=(-0.15, len(methods)), ylim=(YEARS[1] + 0.3, YEARS[0] + 0.2))
    ax.set_xticks(range(len(methods)), list(methods), ha="left")
    ax.xaxis.tick_top()
    ax.set_yticks(range(YEARS[0] + 1, YEARS[1] + 1))
    ax.grid(visible=True, axis="y", lw=0.4)
    ax.grid(visible=False, axis="x")
    ax.tick_params(length=0)
    for side in ax.spines.values():
        side.set_visible(False)
    return figure
