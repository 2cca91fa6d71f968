"""The laws of pe.conformance over the whole registry, and over the sums that the guide names."""

from __future__ import annotations

from typing import Any

import pytest

from pe.conformance import LAWS, check_laws
from pe.encodings import encoding, list_encodings
from pe.encodings.registry import part_classes

# What every encoding promises. The others depend on traits, as `promised_by_traits` says.
ALWAYS = {
    "contract", "heads", "future", "decode", "memory", "precision", "autocast", "cast", "meta",
    "saving", "gradients", "backends",
}  # fmt: skip
SUMS = [
    "rope+alibi", "yarn+resonance", "cope+rope", "longrope+resonance", "rope+ssmax",
    "alibi+randomized", "rope+randomized", "irope+ssmax", "clex+fire", "dynamic_ntk+alibi",
    "sinusoidal+rope+t5",
]  # fmt: skip


def promised_by_traits(spec: str, **options: Any) -> set[str]:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 4, "original_length": 24}
    enc = encoding(spec, **(sizes | options))
    found = set(ALWAYS)
    found.add("shift" if enc.relative else "change")
    if not enc.random:
        found |= {"rows", "cache", "padding"}
    if enc.rotates:
        found.add("time")
    if enc.longest_position is not None:
        found.add("limit")
    return found


def holds(spec: str, **options: Any) -> None:
    report = check_laws(spec, options)
    assert report.ok, str(report)
    promised = {f.law.name for f in report.findings if f.result == "ok"}
    # A law may also be promised where no trait demands it, and never the other way round.
    assert promised_by_traits(spec, **options) <= promised, str(report)
    assert promised <= promised_by_traits(spec, **options) | {"base", "formula", "composition"}


@pytest.mark.parametrize("name", list_encodings())
def test_laws(name: str) -> None:
    holds(name)


@pytest.mark.parametrize("spec", SUMS)
def test_laws_of_sums(spec: str) -> None:
    if not set(spec.split("+")) <= set(list_encodings()):
        pytest.skip("a part is not registered")
    holds(spec)


@pytest.mark.parametrize("name", list_encodings())
def test_constants_are_not_saved(name: str) -> None:
    """They are computed, so that a checkpoint holds what was learned and nothing else."""
    enc = encoding(name, head_dim=16, num_heads=4, original_length=24)
    assert set(enc.state_dict()) == {key for key, _ in enc.named_parameters()}


def test_the_sums_differ_from_the_registry() -> None:
    assert not set(SUMS) & set(list_encodings())
    assert all(len(part_classes(s)) > 1 for s in SUMS if set(s.split("+")) <= set(list_encodings()))
    assert set(LAWS) >= ALWAYS
