"""A picture of an `Explanation`: what layers see, frequencies in training, angles beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from matplotlib.figure import Figure

from pe.figures.schedule import LENGTHS, LayerRow, draw_layers
from pe.figures.style import FAINT, INK, colour, style
from pe.pretrained.rope import TITLES

if TYPE_CHECKING:
    from pe.pretrained.layers import Layer
    from pe.pretrained.report import Explanation, Kind

_STYLES = ("-", "--", "-.", ":")


@style()
def picture(e: Explanation) -> Figure:
    """Draw two panels over the frequencies' index, below one of the layers if these differ.

    First, full rotations in training, those below one marked; then the largest angle at ``length``
    tokens over the largest of training, where 1 is as far as in training.
    """
    rows, tokens = layer_rows(e.kinds)
    heights = [0.35 + 0.2 * len(rows)] if rows else []
    figure = Figure(figsize=(7.2, 5.4 + sum(heights)), layout="constrained")
    *first, above, below = figure.subplots(
        len(heights) + 2, 1, squeeze=False, gridspec_kw={"height_ratios": [*heights, 2.5, 2.5]}
    )[:, 0]
    above.sharex(below)
    above.tick_params(axis="x", labelbottom=False)
    for axes in first:
        draw_layers(axes, rows, tokens)
        axes.set_ylabel("layer")
    rotating = [f for f in e.frequencies if f.radians > 0]
    index = [f.index for f in rotating]
    above.plot(index, [f.turns for f in rotating], color=INK)
    above.axhline(1, color=FAINT, linewidth=1)
    above.set_yscale("log")
    above.set_ylabel(f"rotations in {e.span:,} tokens")
    if never := e.never_completed:
        for axes in (above, below):
            axes.axvspan(never[0] - 0.5, never[-1] + 0.5, color=FAINT, alpha=0.15, linewidth=0)
        above.annotate(
            "never completed a rotation", (never[0], above.get_ylim()[1]), fontsize=9, color=FAINT,
            va="top", xytext=(4, -2), textcoords="offset points",
        )  # fmt: skip
    seen = torch.tensor([f.radians for f in rotating], dtype=torch.float64) * e.span
    for number, method in enumerate(e.methods):
        if method.name == "window":
            continue
        reach = min(method.reach or e.reach or e.length, e.length)
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


def layer_rows(kinds: Sequence[Kind]) -> tuple[list[LayerRow], int]:
    """Return the layers as `draw_layers` takes them, and how many tokens it shows.

    A pattern that repeats is drawn once. Nothing where all layers are the same and see all keys.
    """
    reaches = [kind.does.reach for kind in kinds if kind.does.reach is not None]
    if len(kinds) == 1 and not reaches:
        return [], 0
    number = {index: n for n, kind in enumerate(kinds) for index in kind.layers}
    order = [number[index] for index in sorted(number)]
    period = next(p for p in range(1, len(order) + 1)
                  if all(n == order[i % p] for i, n in enumerate(order)))  # fmt: skip
    length = LENGTHS * max(reaches, default=LONGEST // LENGTHS)
    bases = {kind.does.rope.base for kind in kinds if kind.does.rope is not None}
    drawn = [_row(kind.does, length, len(bases) > 1) for kind in kinds]
    return [drawn[n] for n in order[:period]], length


def _row(does: Layer, length: int, with_base: bool) -> LayerRow:
    name = {"none": "NoPE", "alibi": "ALiBi"}.get(does.position, does.position)
    if does.rope is not None:
        name = TITLES[does.rope.kind]
        name += f", base {does.rope.base:,.0f}" if with_base else ""
    if does.reach is not None:
        name += f", {does.attention} {does.reach:,}"
    name += ", sink logit" if does.sink else ""
    first = 0
    if does.reach is not None:
        chunked = "chunk" in does.attention
        first = (length - 1) // does.reach * does.reach if chunked else length - does.reach
    shown = [] if does.position == "recurrent" else [(first, length)]
    return LayerRow(name, colour(_POSITIONS.get(does.position, does.position)), shown)


LONGEST = 1024
"""Tokens that the panel of layers shows where no layer has a window."""
_POSITIONS = {"rotation": "rope", "none": "nope"}
"""Encodings whose colours stand for what layers do."""
_ENCODINGS = {"as_it_is": "rope", "yarn_dynamic": "yarn", "abf": "multiscale_rope"}
"""Encodings whose colours stand for methods that have another name."""
