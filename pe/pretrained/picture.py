"""A picture of an `Explanation`: frequencies in training, and angles beyond it per method."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure

from pe.figures.style import FAINT, INK, colour, style

if TYPE_CHECKING:
    from pe.pretrained.report import Explanation

_STYLES = ("-", "--", "-.", ":")


@style()
def picture(e: Explanation) -> Figure:
    """Two panels over the frequencies' index.

    Above, full turns in training, those below one marked; below, the largest angle at ``length``
    tokens over the largest of training, where 1 is as far as in training.
    """
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    turned = [f for f in e.frequencies if f.radians > 0]
    index = [f.index for f in turned]
    above.plot(index, [f.turns for f in turned], color=INK)
    above.axhline(1, color=FAINT, linewidth=1)
    above.set_yscale("log")
    above.set_ylabel(f"turns in {e.span:,} tokens")
    if never := e.never_completed:
        for axes in (above, below):
            axes.axvspan(never[0] - 0.5, never[-1] + 0.5, color=FAINT, alpha=0.15, linewidth=0)
        above.annotate(
            "never completed a turn", (never[0], above.get_ylim()[1]), fontsize=9, color=FAINT,
            va="top", xytext=(4, -2), textcoords="offset points",
        )  # fmt: skip
    seen = torch.tensor([f.radians for f in turned], dtype=torch.float64) * e.span
    for number, method in enumerate(e.methods):
        if method.name == "window":
            continue
        reach = min(e.reach or e.length, e.length)
        furthest = torch.tensor(method.inv_freq, dtype=torch.float64)[index] * reach
        below.plot(
            index, (furthest / seen).tolist(), _STYLES[number % len(_STYLES)],
            color=colour(_ENCODINGS.get(method.name, method.name)), label=method.title,
        )  # fmt: skip
    below.axhline(1, color=FAINT, linewidth=1)
    below.set_yscale("log", base=2)
    below.yaxis.set_major_formatter("{x:g}×")
    below.set_ylabel(f"largest angle at {e.length:,}\nover that of training")
    below.set_xlabel("frequency, the fastest first")
    below.legend(fontsize=8.5, ncols=2)
    above.set_title(f"{e.model_type}: {len(e.frequencies)} frequencies, base {e.main.base:,.0f}",
                    fontsize=10.5, loc="left")  # fmt: skip
    return figure


_ENCODINGS = {"as_it_is": "rope", "yarn_dynamic": "yarn", "abf": "multiscale_rope"}
"""Encodings whose colours methods have, where the two have different names."""
