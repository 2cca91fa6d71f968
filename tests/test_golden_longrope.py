"""LongRoPE against published code, configuration by configuration; and what it promises.

tests/golden holds what transformers and microsoft/LongRoPE compute.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from golden_tools import GOLDEN, build, error, given, golden

from pe.encodings import encoding
from pe.encodings.longrope import LongRoPE, yarn_factors
from pe.encodings.rope import RoPE


def longrope(config: str, **options: Any) -> RoPE:
    o = given("longrope")[config]
    original = o["original_max_position_embeddings"]
    return build(
        "longrope",
        theta=o["rope_theta"],
        original_length=original,
        factor=o["max_position_embeddings"] / original,
        **({"long_factor": o["long_factor"], "short_factor": o["short_factor"]} | options),
    )


def original(config: str) -> int:
    length: int = given("longrope")[config]["original_max_position_embeddings"]
    return length


BRANCH = pytest.mark.parametrize("branch", ["short", "long"])
CONFIG = pytest.mark.parametrize("config", ["c0", "c1"])


@CONFIG
@BRANCH
def test_longrope_frequencies_and_magnitude(config: str, branch: str) -> None:
    arrays, length = golden("longrope"), original(config) + (branch == "long")
    found = longrope(config).frequencies(torch.tensor(length))
    prefix = f"{config}_{branch}__"
    torch.testing.assert_close(found.inv_freq, arrays[f"{prefix}inv_freq_f64"], rtol=1e-14, atol=0)
    torch.testing.assert_close(
        found.inv_freq.float(), arrays[f"{prefix}inv_freq_f32"], rtol=5e-7, atol=0
    )
    assert found.magnitude == pytest.approx(float(arrays[f"{prefix}attention_scaling"]), rel=1e-15)
    yarn = longrope(config, magnitude="yarn").frequencies().magnitude
    assert yarn == pytest.approx(given("longrope")[config]["yarn_policy_mscale"], rel=1e-15)
    assert longrope(config, magnitude=1.25).frequencies().magnitude == 1.25


@CONFIG
@BRANCH
def test_longrope_tables_vectors_and_logits(config: str, branch: str) -> None:
    """The file holds both branches at positions up to 100,000, so both are tried there."""
    arrays = golden("longrope")
    o = given("longrope")[config]
    # One branch at all lengths: the other branch's factors in both places.
    factors = o[f"{branch}_factor"]
    enc = longrope(config, long_factor=factors, short_factor=factors)
    positions, prefix = arrays["positions"], f"{config}_{branch}__"
    for dtype, table, vector in ((torch.float64, 1e-10, 1e-8), (torch.float32, 2e-7, 1e-5)):
        cos, sin = enc.prepare(positions, positions, dtype).tables[0]
        assert error(cos[0, 0], arrays[f"{prefix}cos_f64"]) < table
        assert error(sin[0, 0], arrays[f"{prefix}sin_f64"]) < table
        q, k = (arrays[name].to(dtype) for name in "qk")
        q, k = enc.rotate(q, k, positions, positions)
        assert error(q, arrays[f"{prefix}q_rot_f64"]) < vector
        assert error(k, arrays[f"{prefix}k_rot_f64"]) < vector
        assert error(q @ k.mT / 8, arrays[f"{prefix}logits_f64"]) < 2 * vector


@CONFIG
def test_longrope_dynamic_factors(config: str) -> None:
    enc, names = longrope(config, dynamic=True), [k for k in golden("longrope") if "_dyn_L" in k]
    own = [n for n in names if n.startswith(config)]
    assert len(own) == 2
    for name in own:
        length = int(name.split("_L")[1].split("__")[0])
        found = enc.frequencies(torch.tensor(length)).inv_freq
        torch.testing.assert_close(found.float(), golden("longrope")[name], rtol=5e-7, atol=0)
    # Up to L0 the published code goes on below 1; here short rows have their own factors.
    short = enc.frequencies(torch.tensor(original(config))).inv_freq
    assert torch.equal(short, golden("longrope")[f"{config}_short__inv_freq_f64"]) or error(
        short, golden("longrope")[f"{config}_short__inv_freq_f64"]
    ) == pytest.approx(0, abs=1e-15)
    # At s L0 they are the long factors.
    full = longrope(config, dynamic=True).frequencies(
        torch.tensor(given("longrope")[config]["max_position_embeddings"])
    )
    want = golden("longrope")[f"{config}_long__inv_freq_f64"]
    torch.testing.assert_close(full.inv_freq, want, rtol=1e-13, atol=0)


def test_longrope_exempt_tokens_turn_as_in_rope_without_magnitude() -> None:
    arrays, info = golden("longrope"), json.loads((GOLDEN / "longrope.json").read_text())
    nhat = info["configs"]["nhat"]
    enc = longrope(nhat["config"], exempt=nhat["start_token_idx"])
    cos, sin = enc.prepare(arrays["positions"], arrays["positions"], torch.float64).tables[0]
    assert error(cos[0, 0], arrays["nhat_cos_f64"]) < 1e-10
    assert error(sin[0, 0], arrays["nhat_sin_f64"]) < 1e-10


def test_the_published_class_is_matched_call_by_call() -> None:
    """It switches both ways, by the longest position of each call, and so does this one by row."""
    arrays, enc = golden("longrope"), longrope("c1")
    for length, theirs in zip(
        arrays["stateful_seq_lens"].tolist(), arrays["stateful_inv_freq_f32"], strict=True
    ):
        ours = enc.frequencies(torch.tensor(length)).inv_freq.float()
        torch.testing.assert_close(ours, theirs, rtol=5e-7, atol=0)


def test_longrope_rows_of_a_batch_switch_each_for_itself() -> None:
    enc = build("longrope", original_length=32, factor=8.0)
    rows = enc.frequencies(torch.tensor([[32], [33], [5]])).inv_freq
    plain = build("rope").frequencies().inv_freq
    assert torch.equal(rows[0], plain)
    assert torch.equal(rows[2], plain)
    assert not torch.equal(rows[1], plain)


def test_longrope_without_factors_is_yarn_beyond_the_training_length() -> None:
    enc = build("longrope", original_length=256, factor=8.0, magnitude="yarn")
    yarn = build("yarn", original_length=256, factor=8.0)
    positions = torch.arange(300)
    for ours, theirs in zip(
        enc.prepare(positions, positions).tables[0],
        yarn.prepare(positions, positions).tables[0],
        strict=True,
    ):
        assert error(ours, theirs) < 1e-7
    search = golden("longrope")["search_true_yarn_inv_freq"]
    base = build("rope").frequencies().inv_freq
    own = base / torch.tensor(yarn_factors(64, 1e4, 4096, 8.0), dtype=torch.float64)
    torch.testing.assert_close(own.float(), search, rtol=5e-7, atol=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"long_factor": [1.0] * 31},
            "long_factor: expected .* each of 32 pairs, got 31",
        ),
        (
            {"short_factor": [0.0] + [1.0] * 31},
            "short_factor, pair 0: .* above 0, got 0.0",
        ),
        ({"long_factor": ["a"] * 32}, "long_factor: expected numbers, got 'a' for pair 0"),
        ({"long_factor": "1,2"}, "option long_factor: expected list, got '1,2'"),
        ({"magnitude": "us"}, "magnitude 'us'.*'su'"),
        ({"magnitude": -1.0}, "magnitude: expected a finite number above 0, got -1.0"),
        ({"factor": 0.5}, "factor: expected a finite number of at least 1.0, got 0.5"),
        ({"factor": 1.0, "dynamic": True}, "factor 1: with dynamic=True"),
        ({"original_length": 1}, "original_length 1: magnitude 'su' divides by its logarithm"),
        ({"exempt": -1}, "exempt: expected"),
    ],
)
def test_longrope_refuses(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("longrope", **({"original_length": 64, "factor": 4.0} | options))


def test_longrope_counts_the_pairs_that_turn() -> None:
    """With a share of the head rotated there are fewer of them."""
    factors = [1.0, 2.0, 3.0, 4.0]
    given: dict[str, Any] = {"original_length": 8, "factor": 4.0, "long_factor": factors}
    enc = build("longrope", 16, rotary_fraction=0.5, **given)
    base = build("rope", 16, rotary_fraction=0.5).frequencies().inv_freq
    found = enc.frequencies(torch.tensor(9)).inv_freq
    torch.testing.assert_close(base / found, torch.tensor(factors, dtype=torch.float64))
    with pytest.raises(ValueError, match="for each of 8 pairs, got 4"):
        build("longrope", 16, **given)


def test_longrope_needs_the_length_that_it_extends_from() -> None:
    with pytest.raises(ValueError, match="'longrope' needs original_length"):
        encoding("longrope", head_dim=16, num_heads=2)
    assert LongRoPE(64).stretches
