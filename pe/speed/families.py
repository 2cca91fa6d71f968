"""Encodings that cost the same, other libraries' models, and names for both. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pe._errors import unknown
from pe.results.quantities import label

SUMS = ("rope+alibi",)
"""Measured beside the single encodings: a rotation and a bias in one kernel."""
OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {"cope@64": ("cope", {"npos": 64})}
"""Encodings measured a second time, with options: what CoPE costs depends on how far it counts."""
PEERS = (
    "transformers/rope", "x-transformers/nope", "x-transformers/rope", "x-transformers/alibi",
    "x-transformers/t5", "x-transformers/pope", "x-transformers/dynamic", "x-transformers/fox",
    "x-transformers/cope",
)  # fmt: skip
"""Other libraries' models of the same sizes. ``dynamic`` is an MLP on the distance, as FIRE is."""
WITH_OPTIONS = {"cope@64": "CoPE, counting to 64"}
PEER_METHODS = {"dynamic": "dynamic bias"}


@dataclass(frozen=True)
class Family:
    """Encodings whose attention costs the same. Figures draw its first member."""

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


def library(system: str) -> str:
    """``x-transformers/rope`` -> ``x-transformers``; "" for an encoding of ours."""
    return system.partition("/")[0] if system in PEERS else ""


def spelled(system: str) -> tuple[str, dict[str, Any]]:
    """``cope@64`` -> ``("cope", {"npos": 64})``: what the registry calls it, and its options."""
    return OPTIONS.get(system, (system, {}))


def title(system: str) -> str:
    """``alibi`` -> ``ALiBi``; ``x-transformers/t5`` -> ``x-transformers: T5``."""
    if library(system):
        method = system.partition("/")[2]
        return f"{library(system)}: {PEER_METHODS.get(method) or title(method)}"
    if system in WITH_OPTIONS:
        return WITH_OPTIONS[system]
    return label(system)


def counterpart(peer: str) -> str:
    """Our encoding that does what a peer does."""
    method = peer.partition("/")[2]
    return {"dynamic": "fire"}.get(method, method)
