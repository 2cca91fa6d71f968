"""Frequency transforms: what each changes, and what it leaves to the last bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transform_tools import FAR, L0, build, equal, frequencies, turned

from pe.encodings.core.frequencies import Frequencies
from pe.encodings.llama3 import Llama3


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("theta", [100.0, 10_000.0, 500_000.0])
@pytest.mark.parametrize("length", [3, 40, 256, 8192])
@pytest.mark.parametrize("name", ["pi", "ntk", "llama3", "yarn"])
def test_factor_one_is_rope_to_the_last_bit(
    name: str, length: int, theta: float, layout: str
) -> None:
    options: dict[str, Any] = {"theta": theta, "layout": layout, "original_length": length}
    rope, same = build("rope", **options), build(name, factor=1.0, **options)
    assert torch.equal(rope.inv_freq, same.inv_freq)
    assert equal(rope, same, FAR)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dynamic_ntk", {"factor": 1.0}),
        ("dynamic_ntk", {"factor": 8.0}),
        ("yarn", {"dynamic": True}),
    ],
)
def test_up_to_the_training_length_a_dynamic_one_is_rope_to_the_last_bit(
    name: str, options: dict[str, Any]
) -> None:
    rope, grows = build("rope"), build(name, **options)
    for length in (1, 2, L0 - 1, L0):
        assert equal(rope, grows, torch.arange(length))
    assert not equal(rope, grows, torch.arange(L0 + 1))
    assert torch.equal(rope.inv_freq, grows.frequencies().inv_freq)  # no length: that of training


# ---------------------------------------------------------------- PI, NTK, Llama 3


def test_pi_is_rope_at_positions_divided_by_the_factor() -> None:
    positions = torch.arange(0, 4000, 8)
    for a, b in zip(turned(build("pi", factor=8.0), positions),
                    turned(build("rope"), positions // 8), strict=True):  # fmt: skip
        torch.testing.assert_close(a, b, rtol=0, atol=1e-6)


@pytest.mark.parametrize("head_dim", [4, 32, 64, 128])
@pytest.mark.parametrize("factor", [2.0, 16.0])
def test_ntk_is_rope_with_another_base(head_dim: int, factor: float) -> None:
    base = 10_000.0 * factor ** (head_dim / (head_dim - 2))
    ours = frequencies("ntk", head_dim=head_dim, factor=factor)
    torch.testing.assert_close(
        ours, frequencies("rope", head_dim=head_dim, theta=base), rtol=1e-12, atol=0
    )
    ratio = ours / frequencies("rope", head_dim=head_dim)
    assert float(ratio[0]) == 1
    assert float(ratio[-1]) == pytest.approx(1 / factor, rel=1e-12)


def test_ntk_counts_the_rotated_width_and_not_the_heads() -> None:
    half = frequencies("ntk", rotary_fraction=0.5)
    assert torch.equal(half, frequencies("ntk", head_dim=32))
    ratio = half / frequencies("rope", rotary_fraction=0.5)
    assert float(ratio[-1]) == pytest.approx(1 / 4, rel=1e-12)


def test_one_pair_cannot_be_kept_and_slowed() -> None:
    said = "rotated width 2: NTK-aware scaling keeps the first frequency and slows the last"
    with pytest.raises(ValueError, match=said):
        build("ntk", head_dim=2)
    with pytest.raises(ValueError, match=said):
        build("ntk", head_dim=64, rotary_fraction=0.04)
    with pytest.raises(ValueError, match=said):
        build("dynamic_ntk", head_dim=2).frequencies()


def test_llama3_keeps_and_slows_by_turns_and_is_continuous() -> None:
    base = frequencies("rope", head_dim=128, theta=5e5)
    turns = 8192 * base / (2 * math.pi)
    ratio = frequencies("llama3", head_dim=128, theta=5e5, original_length=8192) / base
    assert (ratio[turns > 4] == 1).all()
    torch.testing.assert_close(ratio[turns < 1], torch.full_like(ratio[turns < 1], 1 / 8))
    between = (turns > 1) & (turns < 4)
    assert between.sum() > 2
    expected = 1 / 8 + (turns[between] - 1) / 3 * (1 - 1 / 8)
    torch.testing.assert_close(ratio[between], expected)
    assert (ratio.diff() <= 0).all()


def test_llama3s_bounds_belong_to_the_ramp_which_meets_both_ends() -> None:
    transform = Llama3(8192)
    exact = torch.tensor([4.0, 4.0 + 1e-9, 1.0, 1.0 - 1e-9], dtype=torch.float64)
    inv_freq = exact * 2 * math.pi / 8192
    ratio = transform(Frequencies(inv_freq, 1e4, 8)).inv_freq / inv_freq
    expected = torch.tensor([1, 1, 1 / 8, 1 / 8], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected)


@pytest.mark.parametrize(
    ("spec", "options", "said"),
    [
        ("pi", {"factor": 0.5}, "factor: expected a finite number of at least 1.0, got 0.5"),
        ("ntk", {"factor": math.inf}, "factor: expected a finite number"),
        ("dynamic_ntk", {"factor": 0.0}, "factor: expected a finite number of at least 1.0"),
        ("dynamic_ntk", {"original_length": 0}, "original_length: expected a whole number above 0"),
        ("llama3", {"low_freq_factor": 5.0}, "high_freq_factor 4.0 is less than"),
        ("llama3", {"low_freq_factor": 0.0}, "low_freq_factor: expected a finite number above 0"),
        ("llama3", {"original_length": None}, "'llama3' needs original_length"),
        ("yarn", {"dynamic": True, "factor": 4.0}, "factor 4.0: with dynamic=True it follows from"),
        ("pi+ntk", {}, "'pi+ntk': pi and ntk both stretch RoPE's frequencies"),
        ("dynamic_ntk+yarn", {}, "dynamic_ntk and yarn both stretch"),
        ("resonance+pope", {}, "resonance changes RoPE's frequencies, and pope has its own"),
        ("resonance", {"factor": 2.0}, "'resonance' has no option 'factor'"),
    ],
)
def test_what_is_refused(spec: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        build(spec, **options)
    assert said in str(caught.value)
