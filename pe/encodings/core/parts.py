"""Classes of the parts of a spec: which can be combined, and what options and rates they declare.

A frequency transform acts on RoPE, so a transform alone adds RoPE to the spec. An encoding with
`Encoding.alone_with` adds that encoding in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import UNSET
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.options import options_of, own_options, takes
from pe.encodings.core.registry import Part, is_key_part, lookup, rate_of
from pe.encodings.core.spec import LayerSpec, PartSpec, joined, parse

ONE_ONLY = {
    "rotates": "rotate queries and keys",
    "embeds": "change the token embeddings",  # each would scale what the other added
    "stretches": "stretch RoPE's frequencies",
}
"""Traits that only one part of a sum may have, and what such a part does."""


def part_classes(spec: str) -> dict[str, Part]:
    """Return the class of each part of ``spec`` by name, including added parts such as RoPE.

    A schedule gives the parts of all its layers.
    """
    classes: dict[str, Part] = {}
    for layer in dict.fromkeys(parse(spec)):
        with placed(spec, layer):
            classes |= layer_classes(layer)
    return classes


def layer_classes(layer: LayerSpec) -> dict[str, Part]:
    """Return the `part_classes` of one layer."""
    spec, names = joined(layer), [part.name for part in layer]
    if len(set(names)) < len(names):
        raise ValueError(f"{spec!r} names a part twice")
    classes = {name: lookup(name) for name in names}
    refuse_impossible(spec, classes)
    encodings, transforms = by_kind(classes)
    if transforms and not any(takes(c, "transforms") for c in encodings.values()):
        classes = {"rope": lookup("rope"), **classes}
    others = [c for n, c in encodings.items() if not is_key_part(n)]
    if others and all(c.alone_with for c in others):
        brought = {str(c.alone_with) for c in others}
        classes = {n: lookup(n) for n in sorted(brought)} | classes
    return classes


def by_kind(
    classes: dict[str, Part],
) -> tuple[dict[str, type[Encoding]], dict[str, type[FrequencyTransform]]]:
    """Return the parts that are encodings, and those that transform RoPE's frequencies."""
    encodings = {n: c for n, c in classes.items() if issubclass(c, Encoding)}
    return encodings, {n: c for n, c in classes.items() if issubclass(c, FrequencyTransform)}


def refuse_impossible(spec: str, classes: dict[str, Part]) -> None:
    """Raise ValueError if two parts of ``spec`` cannot be combined."""
    if "nope" in classes and any(not is_key_part(n) for n in classes if n != "nope"):
        raise ValueError(f"{spec!r}: nope means no encoding, so nothing can be added to it")
    for name in (n for n, c in classes.items() if getattr(c, "exclusive", False)):
        for other, part in classes.items():
            if other != name and not (
                getattr(part, "hides", False) or getattr(part, "keeps", False)
            ):
                raise ValueError(
                    f"{spec!r}: {name} takes its weights from the logits of queries and keys "
                    f"alone, so {other} cannot be added to it; what it sees may be limited, as in "
                    f"'{name}+window:512'"
                )
    for name in (n for n, c in classes.items() if getattr(c, "corrects_logits", False)):
        for other, part in classes.items():
            if getattr(part, "logit_scale", Encoding.logit_scale) is not Encoding.logit_scale:
                raise ValueError(
                    f"{spec!r}: {name} adds the difference to other logits, so {other} cannot "
                    f"scale them; leave out {other}"
                )
    for trait, what in ONE_ONLY.items():
        first, *others = [n for n, c in classes.items() if getattr(c, trait, False)] or [""]
        if others:
            raise ValueError(f"{spec!r}: {first} and {others[0]} both {what}")
    encodings, transforms = by_kind(classes)
    hiding = any(c.hides for c in encodings.values())
    keeping = [n for n, c in encodings.items() if c.keeps]
    if keeping and not hiding:
        raise ValueError(
            f"{spec!r}: {keeping[0]} keeps keys visible that a window or a chunk hides, and here "
            f"nothing hides any; add one, as in {'rope+window:512+sinks:4'!r}"
        )
    for moving in (n for n, c in encodings.items() if c.random):
        for narrowing in (n for n, c in encodings.items() if c.hides or c.keeps):
            raise ValueError(
                f"{spec!r}: {moving} moves tokens to random positions, so {narrowing} would show "
                f"distances of up to all positions; leave out {moving} or {narrowing}"
            )
    learning = [name for name, part in transforms.items() if part.learns]
    rounding = [name for name, part in transforms.items() if not part.stretches]
    if learning and rounding:
        raise ValueError(
            f"{spec!r}: {rounding[0]} rounds the wavelengths that {learning[0]} learns, which "
            f"stops their gradients; leave out {rounding[0]} or {learning[0]}"
        )
    for other, part in encodings.items() if transforms else ():
        if part.rotates and not takes(part, "transforms"):
            name = next(iter(transforms))
            raise ValueError(
                f"{spec!r}: {name} changes RoPE's frequencies, and {other} has its own"
            )


@contextlib.contextmanager
def placed(spec: str, layer: LayerSpec) -> Iterator[None]:
    """Adds the number of the layer to errors about one layer of a schedule."""
    try:
        yield
    except ValueError as error:
        layers = parse(spec)
        if len(layers) == 1:
            raise
        number = layers.index(layer) + 1
        raise ValueError(f"{spec!r}, layer {number} of {len(layers)}: {error}") from error


def takes_option(spec: str, option: str) -> bool:
    """Return whether a part of ``spec`` has this option."""
    return any(option in options_of(part) for part in part_classes(spec).values())


def stated_options(spec: str) -> dict[str, list[Any]]:
    """Return the different values that ``spec`` gives to each option.

    `UNSET` is among them if one part has a value and another part with this option has none.
    """
    stated: dict[str, list[Any]] = {}
    for layer in parse(spec):
        named = {part.name: part for part in layer}
        for name, part in layer_classes(layer).items():
            own = own_options(named.get(name, PartSpec(name)), part)
            for option in {*options_of(part), *own}:
                values = stated.setdefault(option, [])
                value = own.get(option, UNSET)
                values += [] if value in values else [value]
    return {option: values for option, values in stated.items() if values != [UNSET]}


def declared_rate(spec: str) -> float:
    """Return the multiple of the learning rate for the parameters of an encoding.

    It is 1 if no part declares one.

    Raises:
        ValueError: parts declare different multiples.
    """
    rates = {name: rate_of(name) for name in part_classes(spec)}
    declared = {name: rate for name, rate in rates.items() if rate is not None}
    if len(set(declared.values())) > 1:
        listed = ", ".join(f"{name} {rate:g}" for name, rate in declared.items())
        raise ValueError(f"encoding_rate: the parts of {spec!r} declare {listed}; give a number")
    return next(iter(declared.values()), 1.0)
