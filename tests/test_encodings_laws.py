"""The laws of pe.conformance over the whole registry, and over the sums that the guide names."""

from __future__ import annotations

from typing import Any

import pytest
from model_tools import cheaper

from pe.conformance import LAWS, check_laws
from pe.encodings import encoding, list_encodings
from pe.encodings.core.parts import part_classes

# What every encoding promises. The others depend on traits, as `promised_by_traits` says.
ALWAYS = {
    "contract", "heads", "future", "decode", "memory", "precision", "autocast", "cast", "meta",
    "saving", "gradients", "backends", "blind",
}  # fmt: skip
SUMS = [
    "rope+alibi", "yarn+resonance", "cope+rope", "longrope+resonance", "rope+ssmax",
    "alibi+randomized", "rope+randomized", "irope+ssmax", "clex+fire", "dynamic_ntk+alibi",
    "dynamic_ntk+resonance", "sinusoidal+rope+t5", "rope+fox", "fire+randomized",
    "cope+randomized", "fox+cope+rope",
]  # fmt: skip


def promised_by_traits(spec: str, **options: Any) -> set[str]:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 4, "original_length": 24}
    enc = encoding(spec, **(sizes | options))
    found = set(ALWAYS) - ({"heads"} if getattr(enc, "mixes_heads", False) else set())
    if enc.relative:
        found.add("shift")
    if not enc.random:
        found |= {"rows", "cache", "padding", "holes", "documents"}
        found |= set() if enc.relative else {"change"}
    if enc.rotates:
        found.add("time")
    if enc.max_positions is not None:
        found.add("limit")
    if enc.biased and enc.has_form and not enc.random:
        found.add("form")
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
    holds(name, **cheaper(name))


@pytest.mark.parametrize("spec", SUMS)
def test_laws_of_sums(spec: str) -> None:
    if not set(spec.split("+")) <= set(list_encodings()):
        pytest.skip("a part is not registered")
    holds(spec, **cheaper(spec))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("rope", {"layout": "interleaved"}),
        ("rope", {"rotary_fraction": 0.5}),
        ("pope", {"delta_init": "uniform", "rotary_fraction": 0.5}),
        ("yarn", {"dynamic": True}),
        ("yarn+resonance", {"dynamic": True}),
        ("yarn", {"factor": 8.0, "attention_factor": 1.3, "truncate": False}),
        ("yarn", {"original_length": 300}),
        ("longrope", {"dynamic": True}),
        ("longrope", {"exempt": 4}),
        ("llama3", {"original_length": 300}),
        ("irope", {"layer_index": 3}),
        ("irope", {"nope_every": 2, "qk_norm": False}),
        ("xpos", {"layout": "half"}),
        ("fope", {"dropped": "ones"}),
        ("fope", {"keep_zero": True}),
        ("sinusoidal", {"layout": "concat", "learned_scale": True}),
        ("learned", {"table_size": 64, "scale_embeddings": True}),
        ("randomized", {"max_position": 64}),
        ("t5", {"num_buckets": 8, "max_distance": 16}),
        ("sandwich", {"centred": False}),
        ("cope", {"npos": 8, "divide": False}),
        ("fire", {"threshold": 8.0}),
        ("ssmax", {"with_bias": True}),
    ],
    ids=str,
)
def test_laws_under_options(name: str, options: dict[str, Any]) -> None:
    holds(name, **options)


@pytest.mark.parametrize("name", list_encodings())
def test_constants_are_not_saved(name: str) -> None:
    """They are computed, so that a checkpoint holds what was learned and nothing else."""
    enc = encoding(name, head_dim=16, num_heads=4, original_length=24)
    assert set(enc.state_dict()) == {key for key, _ in enc.named_parameters()}


def test_the_sums_differ_from_the_registry() -> None:
    assert not set(SUMS) & set(list_encodings())
    assert all(len(part_classes(s)) > 1 for s in SUMS if set(s.split("+")) <= set(list_encodings()))
    assert set(LAWS) >= ALWAYS
