"""What the encodings of a method page cost, and what they combine with.

| ```{costs}```       parameters, cache and longest position from the registry, speed and memory
|                     from the speed record
| ```{combines}```    which sums the package accepts, and its reason where it refuses one

Both ask the package while the guide is built, so a page agrees with the code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from book_directives import Made
from book_encodings import LAYERS, SIZES, cached
from book_measured import of_page
from book_plans import listed

from pe.encodings import about, layer_encodings
from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.speed import tables
from pe.speed.record import Speed

PARTNERS = {
    "sinusoidal": "positions added to the embeddings",
    "rope": "a rotation",
    "yarn": "a change of RoPE's frequencies",
    "alibi": "a bias of the distance",
    "fox": "a bias of the content",
    "ssmax": "a factor on the logits",
    "randomized": "random positions",
    "window:512": "a window",
}
"""One encoding for each place where encodings act, with what it stands for."""
OF_FREQUENCIES = {
    "pi": "another stretching of the frequencies",
    "resonance": "rounded wavelengths",
    "pope": "an encoding with its own frequencies",
}
"""Further partners of encodings that change RoPE's frequencies."""
MEASURED = {"train": "training speed", "prefill": "prompt speed"}
LENGTHS = (1024, 16384)
"""Tokens per window, as in the table of every encoding."""


class Sum(NamedTuple):
    """A sum of an encoding and a partner, and why the package refuses it ("" if it does not)."""

    spec: str
    partner: str
    refused: str


def partners(name: str) -> dict[str, str]:
    """Return the partners that are tried with an encoding, with what each stands for."""
    return PARTNERS | (OF_FREQUENCIES if about(name).family == "frequencies" else {})


def sums(name: str) -> list[Sum]:
    """Try an encoding with each of its partners."""
    tried = []
    width = SIZES["head_dim"] * SIZES["num_heads"]
    for partner in partners(name):
        if partner == name:
            continue
        spec = f"{name}+{partner}"
        reason = ""
        try:
            layer_encodings(spec, 2, hidden_size=width, **SIZES)
        except ValueError as error:
            reason = str(error).removeprefix(f"'{spec}': ")
        tried.append(Sum(spec, partner, reason))
    return tried


def combinations(names: Sequence[str]) -> str:
    """Write what the first of ``names`` combines with, and then each other one that differs."""
    lines: list[str] = []
    first: list[tuple[str, bool]] = []
    for name in names:
        tried, kinds = sums(name), partners(name)
        answers = [(one.partner, not one.refused) for one in tried]
        if answers == first:
            continue
        first = first or answers
        who = f"`{name}` combines" if len(names) > 1 else "Combines"
        good = [f"{kinds[one.partner]} (`{one.spec}`)" for one in tried if not one.refused]
        lines.append(f"- {who} with {listed(good) or 'none of them'}.")
        lines += _refusals([one for one in tried if one.refused])
    return "\n".join(lines)


def _refusals(refused: Sequence[Sum]) -> list[str]:
    """Write a line per reason of refusal, with all sums that have it."""
    reasons: dict[str, list[Sum]] = {}
    for one in refused:
        reason = one.refused.replace(one.partner.partition(":")[0], "the other")
        reasons.setdefault(reason, []).append(one)
    return [
        f"- Refused: {listed([f'`{one.spec}`' for one in same], 'or')}, because "
        f"{reason if len(same) > 1 else same[0].refused}."
        for reason, same in reasons.items()
    ]


def traits(name: str) -> dict[str, str]:
    """Return the learned parameters, the cached keys and the longest position of an encoding."""
    layers = layer_encodings(name, LAYERS, **SIZES)
    learned = {id(p): p.numel() for layer in layers for p in layer.parameters() if p.requires_grad}
    kept = cached(layers[0])
    longest = layers[0].max_positions
    return {
        f"learned numbers in {LAYERS} layers": f"{sum(learned.values()):,}",
        "cached keys": "cannot be cached" if kept == "none" else kept,
        "longest position": "any" if longest is None else f"{longest - 1:,}",
    }


def _has(speed: Speed, mode: str) -> bool:
    return set(LENGTHS) <= set(speed.lengths(mode))


def measured(speed: Speed, name: str) -> dict[str, str]:
    """Return the speed of an encoding divided by NoPE's in each mode, and its training memory."""
    cells = {}
    for mode, words in MEASURED.items():
        for length in LENGTHS if _has(speed, mode) else ():
            value = 1.0 if name == "nope" else speed.ratio(name, mode, length)
            cells[f"{words}, {length:,} tokens"] = "–" if value is None else f"{value:.2f}"
    memory = speed.result(name, "train", LENGTHS[-1])["peak_memory_gib"]
    cells[f"training memory, {LENGTHS[-1]:,} tokens"] = (
        "–" if memory is None else f"{memory:.1f} GiB"
    )
    return cells


def costs(names: Sequence[str], speed: Speed | None) -> str:
    """Write a line per cost, and a column for NoPE, for RoPE if it is changed, and per name."""
    beside = ["nope", *(["rope"] if about(names[0]).family == "frequencies" else [])]
    shown = list(dict.fromkeys([*beside, *names]))
    columns = [traits(name) for name in shown]
    made = (
        f"For {SIZES['num_heads']} heads of width {SIZES['head_dim']} and "
        f"{SIZES['original_length']:,} training tokens; {{doc}}`/methods/index` explains the words."
    )
    known = tables.shown(speed, "train") if speed and _has(speed, "train") else []
    if names == ["nope"]:  # the measure of all others
        made += " {doc}`/speed` divides the speeds of all other encodings by NoPE's."
    elif speed and set(names) & set(known):
        for name, column in zip(shown, columns, strict=True):
            column.update(measured(speed, name) if name in known else {})
        made += (
            f" Speeds are tokens per second divided by NoPE's, on one {speed.hardware['name']} "
            f"({{doc}}`/speed`)."
        )
    else:
        made += " Its speed has not been measured."
    heads = list(columns[0])
    lines = [[head, *(column.get(head, "not measured") for column in columns)] for head in heads]
    return pipe(["", *map(label, shown)], lines, 1) + f"\n\n*{made}*"


class _OfPage(Made):
    """A directive about the encodings of a page, or about those that its argument names."""

    required_arguments, optional_arguments = 0, 1
    final_argument_whitespace = True

    def names(self) -> list[str]:
        """Return the encodings that the argument names, or those of this page."""
        if self.arguments:
            return str(self.arguments[0]).split()
        names = of_page(self.env.docname.rpartition("/")[2])
        if not names:
            raise ValueError("this is the page of no encoding; name some")
        return names


class Costs(_OfPage):
    """The table of costs."""

    def text(self) -> str:
        return costs(self.names(), self.book.speeds.best)


class Combines(_OfPage):
    """What the encodings combine with."""

    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        return combinations(self.names())
