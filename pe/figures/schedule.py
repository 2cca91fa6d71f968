"""A schedule as a picture: which keys each layer shows to the last query of a text.

pe.figures.schedule("3*(rope + window:512), nope")
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pe._errors import whole
from pe.figures.axes import PLAIN
from pe.figures.style import FAINT, GRID, INK, colour, style

if TYPE_CHECKING:
    from pe.encodings.core.spec import LayerSpec

LENGTHS = 4
"""Tokens of a picture, in multiples of the longest window or chunk."""
PLAIN_LENGTH = 1024
"""Tokens of a picture of a schedule without window and chunk."""
THINNEST = 0.006
"""Share of the width below which a bar is drawn wider, so that one key can be seen."""


class LayerRow(NamedTuple):
    """One layer as it is drawn."""

    title: str
    """Its encoding; layers that follow each other under the same title are labelled once."""
    colour: str
    spans: list[tuple[int, int]]
    """The keys that are shown, in spans: the first key, and one more than the last."""


@style()
def schedule(
    spec: str, num_layers: int | None = None, *, length: int | None = None, **options: Any
) -> Figure:
    """Draw the layers, the first on top, against the keys that each shows to the last token.

    Args:
        spec: an encoding, a schedule of layers or the name of a released model's
            (`pe.encodings.core.spec`).
        num_layers: of a model that repeats the schedule; None: the layers that the spec lists.
        length: tokens; None: four times the longest window or chunk.
        options: of the encoding, and sizes such as ``head_dim`` where they matter.

    Raises:
        ValueError: the spec is wrong, or does not fit the number of layers.
    """
    from pe.encodings.core.spec import layer_specs, parse

    listed = parse(spec)
    if num_layers is not None:
        whole("num_layers", num_layers, 1)
    if length is not None:
        whole("length", length, 1)
    times = 1 if num_layers is None else len(layer_specs(spec, num_layers)) // len(listed)
    rows, length = layer_rows(spec, length, **options)
    figure = Figure(figsize=(6.4, 0.85 + 0.22 * max(2, len(rows))), layout="constrained")
    axes = figure.subplots()
    draw_layers(axes, rows, length)
    axes.set_ylabel("layer" if times == 1 else f"layer\n({times} times)")
    return figure


def layer_rows(spec: str, length: int | None = None, **options: Any) -> tuple[list[LayerRow], int]:
    """Return the rows that `draw_layers` draws for ``spec``, and the tokens that it shows."""
    import torch

    from pe.encodings.core.build import layer_encodings
    from pe.encodings.core.spec import parse

    listed = parse(spec)
    sizes = {"head_dim": 64, "num_heads": 8, "original_length": PLAIN_LENGTH} | options
    encodings = layer_encodings(spec, len(listed), **sizes)
    encodings *= len(listed) // len(encodings)
    if length is None:
        reaches = (getattr(part, name, 0) for enc in encodings for part in enc.modules()
                   for name in ("window", "chunk"))  # fmt: skip
        length = LENGTHS * max(reaches) or PLAIN_LENGTH
    rows = []
    for title, layer, enc in zip(_titles(listed), listed, encodings, strict=True):
        shown = torch.ones(length, dtype=torch.bool)
        if enc.hides:
            shown = enc.narrow(None, 1, length, torch.device("cpu")).flatten()
        rows.append(LayerRow(title, colour(layer[0].name), spans(shown.tolist())))
    return rows, length


def spans(shown: Sequence[bool]) -> list[tuple[int, int]]:
    """Return where each stretch of True begins, and where it has ended."""
    runs = [(value, len(list(group))) for value, group in itertools.groupby(shown)]
    ends = list(itertools.accumulate(count for _, count in runs))
    return [(end - count, end) for (value, count), end in zip(runs, ends, strict=True) if value]


def _titles(layers: Sequence[LayerSpec]) -> list[str]:
    """Return the title of each layer, with options only where layers differ in nothing else."""
    from pe.encodings.core.registry import about
    from pe.encodings.core.spec import joined

    short = {
        layer: about(joined(tuple(part._replace(options=()) for part in layer))).title
        for layer in layers
    }
    twice = {title for title in short.values() if list(short.values()).count(title) > 1}
    return [about(joined(layer)).title if short[layer] in twice else short[layer]
            for layer in layers]  # fmt: skip


def draw_layers(axes: Axes, rows: Sequence[LayerRow], length: int) -> None:
    """Draw a bar per layer over the keys it shows, and a faint line over those it hides.

    Args:
        length: tokens of the text, of which the query is the last.
    """
    for number, row in enumerate(rows):
        axes.plot([0, length], [number, number], color=GRID, linewidth=1.0, zorder=1)
        for first, end in row.spans:
            width = max(end - first, THINNEST * length)
            axes.barh(number, width, left=min(first, length - width), height=0.62,
                      color=row.colour, linewidth=0)  # fmt: skip
    number = 0
    for title, group in itertools.groupby(row.title for row in rows):
        count = len(list(group))
        axes.text(
            1.015, number + (count - 1) / 2, title, transform=axes.get_yaxis_transform(),
            va="center", fontsize=9, color=INK,
        )  # fmt: skip
        number += count
    axes.axvline(length, color=FAINT, linewidth=1)
    axes.set_xlim(0, length)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    step = max(1, len(rows) // 12)
    axes.set_yticks(range(0, len(rows), step), [str(n + 1) for n in range(0, len(rows), step)])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.set_xticks([length * quarter // 4 for quarter in range(5)])
    axes.xaxis.set_major_formatter(PLAIN)
    axes.set_xlabel(f"keys that token {length:,} sees")
