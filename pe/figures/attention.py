"""Attention maps, with the model's own inputs as labels, and how spread attention is by length.

Colours follow the square root of the probability, so that weak attention is visible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from pe.figures.axes import WHOLE, legend, mark, powers_of_two
from pe.figures.style import FAINT, SEQUENTIAL, style

MOST_LABELS = 48
"""The most labels along an axis of `one_map`. Of more tokens, only some are labelled."""


@style()
def maps(weights: Any, labels: Sequence[str], title: str = "") -> Figure:
    """Draw a panel per layer (rows) and head (columns).

    Args:
        weights: (layers, heads, T, T) probabilities, rows are queries. labels: the T inputs.
    """
    layers, heads = len(weights), len(weights[0])
    figure = Figure(figsize=(1.9 * heads + 0.4, 1.9 * layers + 0.5), layout="constrained")
    panels = figure.subplots(layers, heads, squeeze=False)
    for layer in range(layers):
        for head in range(heads):
            axes = panels[layer][head]
            _map(axes, weights[layer][head])
            axes.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=9)
            axes.set_xticks([])
            axes.set_yticks([])
    figure.supxlabel(f"key, 1 to {len(labels)}", fontsize=9)
    figure.supylabel("query", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=10.5)
    return figure


@style()
def one_map(weights: Any, labels: Sequence[str], title: str = "") -> Figure:
    """Draw one head, its inputs written along both axes.

    Args:
        weights: (T, T) probabilities, rows are queries. labels: the T inputs.
    """
    count = len(labels)
    every = -(-count // MOST_LABELS)
    side = 1.6 + min(6.0, 0.16 * count + 1.0)
    figure = Figure(figsize=(side, side), layout="constrained")
    axes = figure.add_subplot()
    _map(axes, weights)
    places = range(0, count, every)
    written = [labels[place] for place in places]
    axes.set_xticks(list(places), written, fontsize=7.5, rotation=90)
    axes.set_yticks(list(places), written, fontsize=7.5)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
    axes.set_title(title, fontsize=10.5)
    return figure


@style()
def entropy_by_length(spread: dict[str, Any], training_length: int, title: str = "") -> Figure:
    """Draw a line per layer, the mean over its heads, and the range of its heads as a band.

    The dashed line is even attention to all tokens, ln(length): what no head exceeds.

    Args:
        spread: the part "attention" of evaluation.json. training_length: marked in the figure.
    """
    entropies = {int(n): one["entropy"] for n, one in spread["lengths"].items() if one["entropy"]}
    lengths = sorted(entropies)
    layers = len(entropies[lengths[0]]) if lengths else 0
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for layer in range(layers):
        heads = [entropies[length][layer] for length in lengths]
        colour = SEQUENTIAL(0.35 + 0.65 * layer / max(layers - 1, 1))
        means = [sum(own) / len(own) for own in heads]
        axes.plot(lengths, means, color=colour, marker="o", label=f"layer {layer + 1}")
        axes.fill_between(
            lengths, [min(own) for own in heads], [max(own) for own in heads],
            color=colour, alpha=0.12, linewidth=0,
        )  # fmt: skip
    axes.plot(lengths, [math.log(n) for n in lengths], color=FAINT, linestyle="--", label="even")
    mark(axes, training_length, "trained up to here")
    powers_of_two(axes, lengths, WHOLE)
    axes.set_xlabel("context, tokens")
    axes.set_ylabel("entropy of attention, nats")
    legend(figure, axes.get_legend_handles_labels()[0], columns=4)
    axes.set_title(title, fontsize=10.5)
    return figure


def _map(axes: Axes, weights: Any) -> None:
    axes.imshow(
        weights, cmap=SEQUENTIAL, norm=PowerNorm(0.5, vmin=0, vmax=1), interpolation="nearest"
    )
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color(FAINT)
