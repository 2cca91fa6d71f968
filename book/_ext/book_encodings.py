"""Tables that are made from the package while the guide is built.

| ```{encodings}```    every encoding with its traits, from the registry
| ```{laws}```         every law of pe.conformance

The hooks that a class overrides say where it acts. The other columns are traits of an instance with
the sizes in `SIZES`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from book_directives import RESULTS, Made

from pe.conformance import LAWS
from pe.encodings import (
    Encoding,
    FrequencyTransform,
    about,
    in_order,
    layer_encodings,
    list_encodings,
    lookup,
)
from pe.encodings.core.registry import Part
from pe.results.markdown import pipe

BOOK = Path(__file__).resolve().parent.parent
SIZES: dict[str, Any] = {"head_dim": 64, "num_heads": 8, "original_length": 1024}
LAYERS = 6
# Hook -> what it acts on, in the order in which a forward pass meets them.
PLACES = {
    "embed": "embeddings",
    "prepare": "positions",
    "rotate": "q, k",
    "bias": "logits",
    "logit_scale": "scale",
}
FREQUENCIES = "frequencies"
HEADS = (
    "encoding", "acts on", "relative", "length", "content", "learned", "cached keys", "longest",
    "paper",
)  # fmt: skip


class Row(NamedTuple):
    """One encoding."""

    name: str
    place: str
    relative: bool
    length: bool
    content: bool
    learned: int
    cached: str
    longest: int | None
    page: str | None
    paper: str | None


def row(name: str) -> Row:
    """Return what the registry and an instance say about one encoding."""
    part = lookup(name)
    layers = layer_encodings(name, LAYERS, **SIZES)
    enc = layers[0]
    learned = {id(p): p.numel() for layer in layers for p in layer.parameters() if p.requires_grad}
    return Row(
        name,
        place(part),
        enc.relative,
        enc.length_dependent,
        enc.content_dependent or enc.state_size > 0,  # a state is made of the layer's input
        sum(learned.values()),
        cached(enc),
        None if enc.max_positions is None else enc.max_positions - 1,
        page(part),
        paper(name),
    )


def rows() -> list[Row]:
    """Return a row per encoding, in the order of `in_order`."""
    return [row(name) for name in in_order(list_encodings())]


def place(part: Part) -> str:
    """Say where a class acts."""
    if issubclass(part, FrequencyTransform):
        return FREQUENCIES
    acts = [
        where
        for hook, where in PLACES.items()
        if getattr(part, hook) is not getattr(Encoding, hook)
    ]
    if not part.random and "positions" in acts:  # tables for `rotate`, nobody is moved
        acts.remove("positions")
    return ", ".join(acts) or "nothing"


def cached(enc: Encoding) -> str:
    """Say what a cache holds of each key."""
    if not enc.cacheable:
        return "none"
    k, here = torch.zeros(1, SIZES["num_heads"], 1, SIZES["head_dim"]), torch.zeros(1).long()
    width = enc.rotate(k, k, here, here)[1].shape[-1] // SIZES["head_dim"]
    kept = "rotated" if enc.rotates and not enc.raw_keys else "raw"
    if width > 1 and kept == "rotated":
        kept += f", {width}d wide"
    if enc.state_size:
        kept += f" + {enc.state_size}"
    return kept


def page(part: Part) -> str | None:
    """Return the page that is named like the class's file, or else one that includes the file."""
    file = Path(str(sys.modules[part.__module__].__file__))
    if (BOOK / "methods" / f"{file.stem}.md").exists():
        return file.stem
    for path in sorted((BOOK / "methods").glob("*.md")):
        if re.search(rf"literalinclude\}} .*/encodings/{file.name}\n", path.read_text("utf-8")):
            return path.stem
    return None


def paper(name: str) -> str | None:
    """Return the key of the encoding's paper in references.bib."""
    number = about(name).paper
    entries = re.split(r"\n(?=@)", (BOOK / "references.bib").read_text("utf-8"))
    keys = (re.match(r"@\w+\{([^,]+),", e.strip()) for e in entries if number and number in e)
    return next((key[1] for key in keys if key), None)


def markdown(found: list[Row]) -> str:
    """Write the table."""
    lines = [
        [
            f"{{doc}}`{r.name} </methods/{r.page}>`" if r.page else f"`{r.name}`",
            r.place,
            "yes" if r.relative else "no",
            "yes" if r.length else "no",
            "yes" if r.content else "no",
            f"{r.learned:,}" if r.learned else "none",
            r.cached,
            "any" if r.longest is None else f"{r.longest:,}",
            f"{{cite:year}}`{r.paper}`" if r.paper else "",
        ]
        for r in found
    ]
    return pipe(HEADS, lines, len(HEADS))


class Encodings(Made):
    """The table of all encodings."""

    required_arguments = 0

    def text(self) -> str:
        return markdown(rows())


class Laws(Made):
    """The laws of `pe.conformance`, in the order in which they run."""

    required_arguments = 0
    classes: ClassVar[list[str]] = [RESULTS, "wrap"]

    def text(self) -> str:
        lines = [[f"`{law.name}`", law.sentence] for law in LAWS.values()]
        return pipe(["law", "what it says"], lines, 2)
