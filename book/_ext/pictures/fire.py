"""Pictures of FIRE."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.fire import FIRE
from pictures.common import canvas, picture

TRAINED = 256
QUERIES = (64, 256, 1024, 4096)
THRESHOLDS = (64, 256, 1024)


def share_numbers(query: int, threshold: float = TRAINED) -> Tensor:
    """(query + 1,) share of what a query at that position has seen, by distance; c as at first."""
    encoding = FIRE(num_heads=1, threshold=threshold)
    keys = torch.arange(query, -1, -1)
    with torch.no_grad():
        return encoding.share(torch.tensor([query]), keys, torch.float64)[0]


def largest_numbers(queries: Tensor, threshold: float) -> Tensor:
    """(n,) largest share that queries at these positions ask the network for: the first token's."""
    encoding = FIRE(num_heads=1, threshold=threshold)
    with torch.no_grad():
        return encoding.share(queries, torch.tensor([0]), torch.float64)[:, 0]


@picture("fire-share")
def draw_fire_share() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink, lines = figures.colour("fire"), ("-", "--", "-.", ":")
    for query, line in zip(QUERIES, lines, strict=True):
        look = {"color": ink, "ls": line, "lw": 1.5, "marker": "o", "ms": 4}
        left.plot(share_numbers(query), markevery=[query], label=f"query {query:,}", **look)
    left.set(xscale="log", xlim=(1, 5000), xlabel="distance", ylabel="share")
    left.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    left.minorticks_off()
    left.legend(fontsize=8, loc="upper left")
    queries = torch.unique(torch.logspace(0.5, 4, 200).long())
    for threshold, line in zip(THRESHOLDS, ("--", "-", ":"), strict=True):
        values = largest_numbers(queries, threshold)
        right.plot(queries, values, color=ink, ls=line, lw=1.5, label=f"L = {threshold:,}")
    right.axvspan(queries[0], TRAINED, color=figures.FAINT, alpha=0.15, lw=0)
    right.annotate("training", (4, 0.03), fontsize=8, color=figures.INK)
    right.set(xscale="log", xlim=(3, 10_000), ylim=(0, 1.05), xlabel="query's position")
    right.set_ylabel("largest share")
    right.set_xticks([10, 100, 1000, 10_000], ["10", "100", "1,000", "10,000"])
    right.minorticks_off()
    right.legend(fontsize=8, loc="lower right")
    return figure
