"""Checks that the parts of a sum can be combined."""

from __future__ import annotations

from pe.encodings.core.base import Encoding
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.options import takes
from pe.encodings.core.registry import Part, is_key_part

ONE_ONLY = {
    "rotates": "rotate queries and keys",
    "embeds": "change the token embeddings",  # each would scale what the other added
    "stretches": "stretch RoPE's frequencies",
}
"""Traits that only one part of a sum may have, and what such a part does."""


def by_kind(
    classes: dict[str, Part],
) -> tuple[dict[str, type[Encoding]], dict[str, type[FrequencyTransform]]]:
    """The parts that are encodings, and those that transform RoPE's frequencies."""
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
