"""The systems that are measured beside single encodings, and the names of all systems."""

from __future__ import annotations

from typing import Any

from pe._errors import unknown
from pe.results.quantities import label

SUMS = ("rope+alibi",)
"""Sums that are measured beside single encodings: a rotation and a bias in one kernel."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {"cope@64": ("cope", {"npos": 64})}
"""Encodings that are measured a second time with options. CoPE's cost depends on its ``npos``."""
PEERS = (
    "transformers/rope", "x-transformers/nope", "x-transformers/rope", "x-transformers/alibi",
    "x-transformers/t5", "x-transformers/pope", "x-transformers/dynamic", "x-transformers/fox",
    "x-transformers/cope",
)  # fmt: skip
"""Other libraries' models of the same sizes. ``dynamic`` is an MLP on the distance, as FIRE is."""
TITLES = {"cope@64": "CoPE, counting to 64", "dynamic": "dynamic bias"}
"""The titles of systems that the registry does not know."""


def all_encodings() -> list[str]:
    """Return every name of the registry, `SUMS` and `OPTIONS`."""
    from pe.encodings import list_encodings

    return [*list_encodings(), *SUMS, *OPTIONS]


def family_of(system: str) -> str:
    """Return the family under which an encoding is registered."""
    from pe.encodings import about

    return about(spelled(system)[0]).family


def members(family: str) -> list[str]:
    """Return the encodings of registered families and single ones, named with commas between.

    Raises:
        ValueError: there is neither such a family nor such an encoding.
    """
    from pe.encodings import FAMILIES

    names, known = family.split(","), all_encodings()
    for name in names:
        if name not in FAMILIES and name not in known:
            raise unknown("family", name, [*FAMILIES, *known])
    return [s for s in known if {s, spelled(s)[0], family_of(s)} & set(names)]


def library(system: str) -> str:
    """Return ``x-transformers`` for ``x-transformers/rope``, and "" for an encoding of ours."""
    return system.partition("/")[0] if system in PEERS else ""


def spelled(system: str) -> tuple[str, dict[str, Any]]:
    """Return name and options of ``cope@64``: ``("cope", {"npos": 64})``."""
    return OPTIONS.get(system, (system, {}))


def title(system: str) -> str:
    """Return ``ALiBi`` for ``alibi``, and ``x-transformers: T5`` for ``x-transformers/t5``."""
    if library(system):
        return f"{library(system)}: {title(system.partition('/')[2])}"
    return TITLES.get(system) or label(system)


def counterpart(peer: str) -> str:
    """Return our encoding that does what a peer does."""
    method = peer.partition("/")[2]
    return {"dynamic": "fire"}.get(method, method)
