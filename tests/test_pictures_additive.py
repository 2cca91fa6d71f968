"""Numbers stated on the pages of additive encodings and random positions; their pictures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
from pictures import additive  # noqa: E402


def test_sinusoidal_products_are_those_of_the_page_for_both_grids() -> None:
    numbers = additive.product_numbers(hidden=64, length=100)
    r, distance = torch.arange(32).double(), torch.arange(100).double()[:, None]
    for grid, steps in (("paper", 32), ("tensor2tensor", 31)):
        want = (distance * 1e4 ** (-r / steps)).cos().mean(-1)
        torch.testing.assert_close(numbers[grid], want, rtol=0, atol=1e-12)
    assert additive.product_numbers()["paper"][90:110].mean() == pytest.approx(0.45, abs=0.07)


def test_tokens_and_positions_at_the_start() -> None:
    """sigma sqrt(2 W) with the factor, sigma sqrt 2 without it."""
    rows = additive.vectors("sinusoidal", 512, torch.arange(1024))
    torch.testing.assert_close(rows.norm(dim=-1), torch.full((1024,), 16.0).double())
    token = 0.02 * math.sqrt(512)
    assert math.sqrt(512) * token / 16 == pytest.approx(0.64)
    assert token / 16 == pytest.approx(0.02 * math.sqrt(2))


def test_sine_only_products_depend_on_the_place_as_the_page_says() -> None:
    w = 1e4 ** (-torch.arange(128).double() / 128)
    for here, values in additive.sinonly_numbers().items():
        there = torch.arange(here - 60, here + 61).double()[:, None]
        want = 0.5 * (((here - there) * w).cos() - ((here + there) * w).cos()).sum(-1)
        torch.testing.assert_close(values * 64, want, rtol=0, atol=1e-10)
        assert (values - values.flip(0)).abs().max() > 0.05, "lopsided"


def test_a_learned_table_begins_as_noise() -> None:
    found = additive.cosines("learned", 128, 100, 256)
    others = torch.cat((found[:100], found[101:]))
    assert float(others.std()) == pytest.approx(1 / math.sqrt(128), rel=0.15)
    assert float(others.mean()) == pytest.approx(0, abs=0.02)


def test_bits_and_digits_step_as_the_pages_say() -> None:
    bits = additive.steps("binary", 1024).square()
    assert bits[7] == 4
    assert float(bits.mean()) == pytest.approx(2, abs=0.01)
    digits = additive.steps("decimal", 1000)
    assert [round(float(digits[p]), 1) for p in (8, 9, 99)] == [1.0, 9.1, 12.8]
    assert float(digits.mean()) == pytest.approx(1.85, abs=0.005)
    rows = additive.vectors("binary", 16, torch.tensor([7, 8, 15]))
    assert (rows @ rows[0]).tolist() == [3, 0, 3]


def test_what_normalising_leaves() -> None:
    where = torch.arange(1024)
    assert additive.constant_share("binary_norm", 512, 1024) == pytest.approx(0.98, abs=0.001)
    assert additive.constant_share("decimal_norm", 512, 1024) == pytest.approx(0.998, abs=0.001)
    for name in ("binary_norm", "decimal_norm"):
        rows = additive.vectors(name, 512, where)
        assert float(rows.norm(dim=-1).max()) == pytest.approx(22.6, abs=0.05)
    varies = (rows - rows.mean(0)).norm(dim=-1)
    assert float(varies.mean()) == pytest.approx(1.1, abs=0.05)
    assert float(additive.vectors("decimal", 512, where).norm(dim=-1).max()) == pytest.approx(
        15.6, abs=0.05
    )


def test_where_random_positions_lie() -> None:
    found = additive.draws(24, 384, 3000).double()
    mean, spread = additive.sample_mean(24, 384), additive.sample_spread(24, 384)
    torch.testing.assert_close(found.mean(0), mean.double(), rtol=0, atol=5)
    torch.testing.assert_close(found.std(0), spread, rtol=0.08, atol=0)


def test_how_far_the_next_token_stands() -> None:
    for tokens, chance in additive.gap_numbers(reach=4000).items():
        assert float(chance.sum()) == pytest.approx(1, abs=1e-6)
        assert float(chance[0]) == pytest.approx(tokens / 4096, rel=1e-6)
        mean = (chance * torch.arange(1, 4001)).sum()
        assert float(mean) == pytest.approx(4097 / (tokens + 1), rel=1e-3)
    drawn = additive.draws(16, 64, 2000).diff(dim=-1)
    share = float((drawn == 1).double().mean())
    assert share == pytest.approx(16 / 64, abs=0.015)
