"""Encodings that cost the same thing, and names for tables. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from pe._errors import unknown
from pe.results import tables
from pe.speed.plan import library

WITH_OPTIONS = {"cope@64": "CoPE, counting to 64"}
PEER_METHODS = {"dynamic": "dynamic bias"}


@dataclass(frozen=True)
class Family:
    """Encodings whose attention costs the same. The first member stands for it in figures."""

    name: str
    title: str
    members: tuple[str, ...]


FAMILIES = {
    family.name: family
    for family in (
        Family("none", "no encoding", ("nope",)),
        Family(
            "rotation",
            "rotation",
            (
                "rope", "partial", "p_rope", "multiscale_rope", "irope", "ssmax", "randomized",
                "pi", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope", "resonance", "clex",
            ),
        ),
        Family(
            "distance",
            "bias by distance",
            ("alibi", "kerple_log", "kerple_power", "sandwich", "t5", "rope+alibi"),
        ),
        Family("fire", "FIRE", ("fire",)),
        Family("fox", "FoX", ("fox",)),
        Family("cope", "CoPE", ("cope", "cope@64")),
        Family("wide", "PoPE, xPos, FoPE", ("pope", "xpos", "fope")),
        Family(
            "additive",
            "added to the embeddings",
            ("sinusoidal", "sinonly", "binary", "binary_norm", "decimal", "decimal_norm"),
        ),
        Family("learned", "learned table", ("learned",)),
    )
}  # fmt: skip


def family(name: str) -> Family:
    """The family of this name. ValueError if there is none."""
    if name not in FAMILIES:
        raise unknown("family", name, FAMILIES)
    return FAMILIES[name]


def title(system: str) -> str:
    """``alibi`` -> ``ALiBi``; ``x-transformers/t5`` -> ``x-transformers: T5``."""
    if library(system):
        method = system.partition("/")[2]
        return f"{library(system)}: {PEER_METHODS.get(method) or title(method)}"
    if system in WITH_OPTIONS:
        return WITH_OPTIONS[system]
    return tables.label(system)


def counterpart(peer: str) -> str:
    """Our encoding that does what a peer does."""
    method = peer.partition("/")[2]
    return {"dynamic": "fire"}.get(method, method)
