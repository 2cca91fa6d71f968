"""Figures from run records: loss curves, perplexity by length, loss by position; and of a schedule.

    import pe
    figure = pe.figures.perplexity_by_length(pe.runs.find(study="demo"))
    pe.figures.save(figure, "perplexity.svg")

Imports no torch before a figure is drawn.
"""

from pe.figures.schedule import schedule
from pe.figures.study import loss_by_position, loss_curves, perplexity_by_length
from pe.figures.style import (
    DIVERGING,
    FAINT,
    GRID,
    INK,
    MAX_RUNS_IN_CAPTION,
    SEQUENTIAL,
    caption,
    colour,
    darken,
    marker,
    save,
    style,
    svg,
)
