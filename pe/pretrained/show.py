"""An `Explanation` as Markdown, which reads well in a terminal, a notebook and an issue."""

from __future__ import annotations

import itertools
import json
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from pe.pretrained.rope import PAPERS, TITLES

if TYPE_CHECKING:
    from pe.pretrained.methods import Method
    from pe.pretrained.report import Explanation, Kind

COLUMNS = 80
"""Columns of a terminal: paragraphs and settings are wrapped to it, and tables are kept narrow."""

LIST = r'^( *)("\w+": )\[\n([^\[\]{}]*?)\n *\]'
"""A list in JSON, one item per line: its indent, its name, its items."""


def markdown(explanation: Explanation) -> str:
    """Write headings, paragraphs, tables, and settings to paste."""
    return "\n\n".join(_parts(explanation))


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return str(tabulate(lines, list(heads), tablefmt="pipe", disable_numparse=True))


def _words(text: str, indent: str = "") -> str:
    return textwrap.fill(
        text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _items(lines: Sequence[str]) -> str:
    return "\n".join(_words(f"- {line}", "  ") for line in lines)


def _parts(e: Explanation) -> list[str]:
    return [
        f"## {e.name}: {e.model_type}, {sum(len(kind.layers) for kind in e.kinds)} layers",
        _table(
            ("layers", "attention", "position", "base", "channels"),
            [_kind(kind) for kind in e.kinds],
        ),
        *_queries(e.kinds),
        _words(_pairing(e)),
        *(_words(f"Note: {note}.") for note in e.notes),
        "## Training length",
        _words(_training(e)),
        "## Frequencies",
        _words(_angles(e)),
        f"## Reading {e.length:,} tokens" + ("" if e.asked else ", for example"),
        _words(
            f"Slower: how many of the {len(e.frequencies)} frequencies. New angles: the first "
            "distance with one, and in parentheses how many frequencies meet one. Short texts: "
            "those within the training length."
        ),
        _table(
            ("method", "slower", "new angles", "logits", "short texts"),
            [_method(e, method) for method in e.methods],
        ),
        _items([f"{m.title} (arXiv:{m.paper}): {m.remark}." for m in e.methods if m.remark]),
        *_warnings(e),
        "## What to do",
        _words(e.advice.why),
        *([_words(e.advice.short_texts), *_blocks(e, e.advice.method)] if e.advice.method else []),
    ]


def ranges(indices: Sequence[int]) -> str:
    """Write ``0-2, 4-6, 9``, or a regular rhythm as ``every 4th from 3``."""
    gaps = {b - a for a, b in itertools.pairwise(indices)}
    if len(indices) > 3 and len(gaps) == 1 and (gap := gaps.pop()) > 1:
        return f"{indices[0]}, {indices[1]} … {indices[-1]} (every {gap})"
    parts: list[list[int]] = []
    for index in indices:
        if parts and index == parts[-1][-1] + 1:
            parts[-1].append(index)
        else:
            parts.append([index])
    shown = [f"{part[0]}-{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts]
    if len(shown) > 4:
        shown = [shown[0], f"{shown[1]} … {shown[-1]}"]
    return ", ".join(shown) + (f" ({len(indices)})" if len(parts) > 1 else "")


def _kind(kind: Kind) -> list[str]:
    does, rope = kind.does, kind.does.rope
    attention = does.attention or "–"
    if does.reach is not None:
        attention += f" {does.reach:,}"
    position: str = "ALiBi" if does.position == "alibi" else does.position
    base = channels = "–"
    if rope is not None:
        position = TITLES[rope.kind] + (f" ×{rope.factor:g}" if rope.scaled else "")
        base = number(rope.base)
        channels = f"{rope.width} of {rope.head_dim}"
    return [ranges(kind.layers), attention, position, base, channels]


def _queries(kinds: Sequence[Kind]) -> list[str]:
    """List temperatures and sinks by layer, in one item; empty where no layer has any."""
    layers: dict[str, list[int]] = {}
    for kind in kinds:
        sink = "a learned sink in each head" if kind.does.sink else ""
        if extra := "; ".join(filter(None, (kind.does.temperature, sink))):
            layers.setdefault(extra, []).extend(kind.layers)
    lines = [
        f"layer{'s' if len(indices) > 1 else ''} {ranges(sorted(indices))}: {extra}."
        for extra, indices in layers.items()
    ]
    return [_items(lines)] if lines else []


def number(value: float) -> str:
    """Write a number with commas between thousands, and a fraction with six digits."""
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def _pairing(e: Explanation) -> str:
    if e.main.layout == "half":
        return (
            "Channel i is rotated with channel i + d/2 (half-split). Other files of the same model "
            "may pair 2i with 2i + 1, as Meta's original Llama weights and some gguf files do; "
            "with the wrong pairing the first tokens look right and the text then falls apart."
        )
    return (
        "Channel 2i is rotated with channel 2i + 1 (interleaved). Code that pairs i with i + d/2 "
        "gives another model with the same weights, without an error."
    )


def _training(e: Explanation) -> str:
    sure = "" if e.training.certain else " Not certain: compare with what its makers say."
    before = ""
    if e.training.original != e.training.tokens:
        before = f" Before scaling: {e.training.original:,}."
    return f"{e.training.tokens:,} tokens. Known from: {e.training.how}.{before}{sure}"


def _angles(e: Explanation) -> str:
    never, last = e.never_completed, e.frequencies[-1]
    rotating = [f for f in e.frequencies if f.radians > 0]
    slowest = rotating[-1]
    still = len(e.frequencies) - len(rotating)
    begin = (
        f"The fastest rotates once in {rotating[0].wavelength:.1f} tokens, the slowest once in "
        f"{slowest.wavelength:,.0f} (w_i = base^(-2i/d), arXiv:{PAPERS[e.main.kind]})."
    )
    if still:
        begin += f" {still} of {last.index + 1} never rotate."
    if not never:
        return f"{begin} Every one completed a rotation in training, so no angle is ever new."
    count = f"Frequencies {never[0]} to {never[-1]}, {len(never)} of {len(e.frequencies)}, "
    where = (
        f"so angles that training never had begin at a distance of {e.first_unseen:,} tokens."
        if e.first_unseen is not None
        else "but no distance reaches angles that training never had."
        if e.reach is not None
        else f"but none reaches a new angle within {e.length:,} tokens."
    )
    return f"{begin} {count}never completed a rotation in {e.span:,} tokens, {where}"


def _method(e: Explanation, method: Method) -> list[str]:
    first = "none" if method.first_unseen is None else f"{method.first_unseen:,}"
    if method.unseen:
        first += f" ({method.unseen})"
    mark = " ←" if method.name == e.advice.method else ""
    return [
        method.title + mark, f"{method.changed}", first, f"×{method.logits:.2f}",
        method.short_texts,
    ]  # fmt: skip


def _warnings(e: Explanation) -> list[str]:
    if not e.warnings:
        return []
    lines = [f"{warning.name}: {warning.text}." for warning in e.warnings]
    return ["## Mistakes to check", _items(lines)]


def settings_of(e: Explanation, name: str) -> str:
    """Return the settings of one method.

    Raises:
        ValueError: there is no such method, or it has no settings; the message says why.
    """
    if name not in e.settings:
        why = e.no_settings.get(e.method(name).name, "it changes no setting")
        raise ValueError(f"{name}: no settings: {why}")
    return "\n\n".join(_blocks(e, name))


def _blocks(e: Explanation, name: str) -> list[str]:
    settings = e.settings[name]
    blocks = [
        f"## Settings: {e.method(name).title}",
        _words(
            "For config.json, transformers 5 and later. Keep everything in the block, the base "
            "included."
        ),
        _json(settings.transformers),
    ]
    if settings.older is not None:
        blocks += [
            "The same before transformers 5 (newer versions still read it):",
            _json(settings.older),
        ]
    if settings.vllm is not None:
        blocks += ["vLLM 0.11.1 and later:", f"```bash\n{settings.vllm}\n```"]
    if settings.llama_cpp is not None:
        blocks += ["llama.cpp:", f"```bash\n{settings.llama_cpp}\n```"]
    return blocks


def _json(settings: Mapping[str, Any]) -> str:
    """Write a block of JSON. Lists fill their lines, because LongRoPE's have many numbers."""

    def filled(match: re.Match[str]) -> str:
        indent = match[1] + "  "
        numbers = textwrap.fill(
            " ".join(match[3].split()), COLUMNS, initial_indent=indent, subsequent_indent=indent
        )
        return f"{match[1]}{match[2]}[\n{numbers}\n{match[1]}]"

    text = json.dumps(settings, indent=2)
    return f"```json\n{re.sub(LIST, filled, text, flags=re.M)}\n```"
