"""YaRN: its ramp at every training length, its temperature, and what it is at factor 1."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import pe
from pe.encodings import Encoding, encoding
from pe.encodings.yarn import YaRN, magnitude

SIZES: dict[str, Any] = {"head_dim": 64, "num_heads": 2}


def rope(**options: Any) -> Encoding:
    return encoding("rope", **SIZES, **options)


def yarn(length: int, factor: float = 4.0, **options: Any) -> Encoding:
    return encoding("yarn", **SIZES, original_length=length, factor=factor, **options)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_factor_one_is_rope_bit_for_bit(layout: str) -> None:
    a, b = yarn(256, 1.0, layout=layout), rope(layout=layout)
    assert torch.equal(a.get_buffer("inv_freq"), b.get_buffer("inv_freq"))
    q, k = torch.randn(2, 1, 2, 7, 64)
    p = torch.tensor([0, 1, 5, 300, 4096, 65535, 100_000])
    for x, y in zip(a.rotate(q, k, p, p), b.rotate(q, k, p, p), strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize(
    ("length", "bounds"),
    # facts of the ramp at width 64, theta 10000: floor of 32 turns, ceiling of 1 turn
    [(128, (0, 11)), (256, (0, 13)), (512, (3, 16)), (1024, (5, 18)), (2048, (8, 21))],
)
def test_ramp_bounds(length: int, bounds: tuple[int, int]) -> None:
    assert YaRN(length).ramp_bounds(64, 10000.0) == bounds


@pytest.mark.parametrize("length", [1, 3, 6, 7, 40, 64, 128, 192, 256, 100_000])
@pytest.mark.parametrize("truncate", [True, False])
def test_the_ramp_never_turns_around(length: int, truncate: bool) -> None:
    """Short training lengths have no pair that makes 32 turns, the shortest none that makes 1.

    Whatever the length, slower pairs are slowed at least as much, and the slowest all the way.
    """
    transform = YaRN(length, 4.0, truncate=truncate)
    low, high = transform.ramp_bounds(64, 10000.0)
    assert 0 <= low < high
    ratio = rope().get_buffer("inv_freq") / yarn(length, truncate=truncate).get_buffer("inv_freq")
    assert (ratio.diff() >= -1e-12).all()
    assert ratio.min() >= 1 - 1e-12
    assert ratio.max() <= 4 + 1e-12
    if length < 50_000:
        assert float(ratio[-1]) == pytest.approx(4.0)
    if length > 3:
        assert float(ratio[0]) == pytest.approx(1.0)  # the fastest pair is left alone


def test_a_pair_that_completed_its_turns_is_left_alone() -> None:
    base = rope().get_buffer("inv_freq")
    turns = 2048 * base / (2 * math.pi)
    ratio = base / yarn(2048, 8.0).get_buffer("inv_freq")
    assert torch.allclose(ratio[turns > 40], torch.ones(1, dtype=torch.float64))
    assert torch.allclose(ratio[turns < 0.8], torch.tensor(8.0, dtype=torch.float64))
    between = ratio[(turns < 24) & (turns > 1.3)]
    assert ((between > 1) & (between < 8)).all()


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, lambda m: m(1.0)),
        ({"attention_factor": 1.0}, lambda m: 1.0),
        ({"attention_factor": 1.5}, lambda m: 1.5),
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, lambda m: 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.707}, lambda m: m(1.0) / m(0.707)),
    ],
)
def test_the_temperature(factor: float, options: dict[str, float], expected: Any) -> None:
    """turboderp-org/exllamav3#259: 0.1 ln s + 1; a ratio needs both weights, a value wins."""
    want = expected(lambda w: 0.1 * w * math.log(factor) + 1)
    assert yarn(256, factor, **options).magnitude == pytest.approx(want, rel=1e-12)
    assert magnitude(0.5) == 1.0


def test_the_temperature_enters_logits_squared_and_once() -> None:
    """NVIDIA/TensorRT-LLM#16379: the factor applied twice."""
    q, k = torch.randn(2, 1, 2, 9, 64, dtype=torch.float64)
    p = torch.arange(9)
    plain, warm = yarn(256, attention_factor=1.0), yarn(256, attention_factor=1.25)
    logits = []
    for enc in (plain, warm):
        a, b = enc.rotate(q, k, p, p)
        logits.append(a @ b.transpose(-1, -2))
        assert enc.logit_scale(p) is None
        assert enc.bias(q, k, p, p) is None
    torch.testing.assert_close(logits[1], logits[0] * 1.25**2)


def test_the_temperature_touches_rotated_channels_only() -> None:
    enc = yarn(256, rotary_fraction=0.5, attention_factor=2.0)
    q = torch.randn(1, 2, 5, 64)
    turned, _ = enc.rotate(q, q, torch.arange(5), torch.arange(5))
    assert torch.equal(turned[..., 32:], q[..., 32:])
    torch.testing.assert_close(turned[..., :32].norm(dim=-1), 2 * q[..., :32].norm(dim=-1))


def test_it_applies_below_the_training_length_too() -> None:
    """The frequencies are those of the factor, however short the input is."""
    q, k = torch.randn(2, 1, 2, 4, 64)
    p = torch.arange(4)
    a, _ = yarn(1024, attention_factor=1.0).rotate(q, k, p, p)
    b, _ = rope().rotate(q, k, p, p)
    assert not torch.allclose(a, b, atol=1e-3)


def test_rope_fraction_leaves_the_rest_alone() -> None:
    enc = rope(rotary_fraction=0.25)
    q = torch.randn(1, 2, 5, 64)
    turned, _ = enc.rotate(q, q, torch.arange(5), torch.arange(5))
    assert torch.equal(turned[..., 16:], q[..., 16:])
    small = encoding("rope", head_dim=16, num_heads=2)  # the exponent runs over what is rotated
    alone, _ = small.rotate(q[..., :16], q[..., :16], torch.arange(5), torch.arange(5))
    assert torch.equal(turned[..., :16], alone)


def test_nope_ignores_positions() -> None:
    enc = encoding("nope", **SIZES)
    q, k, v = torch.randn(3, 1, 2, 9, 64)
    p = torch.arange(9)
    rotated = enc.rotate(q, k, p, p)
    assert rotated[0] is q
    assert rotated[1] is k
    out = pe.attend(enc, q, k, v, p, p)
    assert torch.equal(out, pe.attend(enc, q, k, v, p.flip(0) * 1000, p * 7))
    mixed = torch.tensor([3, 1, 0, 2])  # and the order of what the last query sees
    whole = torch.ones(4, 4, dtype=torch.bool)
    a = pe.attend(enc, q[:, :, :4], k[:, :, :4], v[:, :, :4], p[:4], p[:4], mask=whole)
    b = pe.attend(enc, q[:, :, :4], k[:, :, mixed], v[:, :, mixed], p[:4], p[:4], mask=whole)
    torch.testing.assert_close(a, b)
