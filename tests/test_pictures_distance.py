"""What the pages on ALiBi, T5, KERPLE and Sandwich state in numbers, and their pictures' curves."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pe.encodings.alibi import alibi_slopes
from pe.encodings.t5 import bucket_starts
from pe.runs import find

ROOT = Path(__file__).parents[1]
from pictures import alibi, biases, kerple, sandwich, t5  # noqa: E402

# ---------------------------------------------------------------- ALiBi


def test_half_of_a_heads_attention_lies_within_ln_2_over_its_slope() -> None:
    stated = [1.4, 2.8, 5.5, 11, 22, 44, 89, 177]
    half = math.log(2) / alibi_slopes(8)
    assert half.tolist() == pytest.approx(stated, rel=0.02)
    reach = alibi.reach_numbers()
    keys = (reach < 0.5).sum(-1) + 1  # the first key with which one half is reached
    assert (keys >= half).all()
    assert (keys < half + 1.1).all()
    counted = torch.arange(1, reach.shape[1] + 1)
    torch.testing.assert_close(reach[2], 1 - (-counted * 2.0**-3).exp().double())


@pytest.mark.parametrize("heads", [1, 2, 8, 16, 64])
def test_the_last_slope_is_the_same_whatever_the_number_of_heads(heads: int) -> None:
    assert float(alibi_slopes(heads)[-1]) == 2**-8


def test_the_coins_loss_is_that_of_the_rule_of_succession() -> None:
    """P(heads) = (k + 1) / (c + 2) after k heads in c flips, every k being equally likely."""
    found = alibi.coin_loss(40)
    for seen in (0, 1, 2, 7, 40):
        guess = [(k + 1) / (seen + 2) for k in range(seen + 1)]
        entropy = [-p * math.log(p) - (1 - p) * math.log(1 - p) for p in guess]
        assert float(found[seen]) == pytest.approx(sum(entropy) / (seen + 1), rel=1e-9)


def test_pieces_flatter_a_predictor_that_looks_no_further() -> None:
    numbers = alibi.early_numbers(window=32)
    long = numbers["length"] > 32
    sliding, apart = numbers["sliding"][long], numbers["apart"][long]
    torch.testing.assert_close(sliding, sliding[:1].expand_as(sliding))
    assert (apart.diff() < 0).all()
    assert (apart > sliding).all()
    # mean = l(w) + A / L with one A for all L
    excess = (apart - sliding) * numbers["length"][long]
    torch.testing.assert_close(excess, excess[:1].expand_as(excess))


def test_the_records_show_the_early_token_effect_apart() -> None:
    """The page says that each record keeps both means."""
    runs = find(ROOT / "runs", study="demo")
    assert runs
    for run in runs:
        evaluation = run.evaluation()
        assert evaluation is not None
        assert evaluation["perplexity"].keys() == evaluation["window_perplexity"].keys()


# ---------------------------------------------------------------- T5


def test_the_buckets_of_the_page() -> None:
    later = [math.ceil(16 * 8 ** ((k - 16) / 16)) for k in range(16, 32)]
    assert bucket_starts(32, 128).tolist()[16:] == later
    assert later[-1] == 113
    drawn = t5.buckets()
    assert drawn[:16].tolist() == list(range(16))
    assert (drawn[113:] == 31).all()
    assert (drawn[59:67] == drawn[59]).all()
    assert drawn[58] < drawn[59] < drawn[67]


# ---------------------------------------------------------------- KERPLE


def test_the_kernels_are_conditionally_positive_definite() -> None:
    positions = torch.tensor([0, 1, 2, 5, 11, 40, 41, 200])
    distance = (positions[:, None] - positions).abs()
    constant = torch.ones(8, 8, dtype=torch.float64) / 8
    project = torch.eye(8, dtype=torch.float64) - constant  # weights with sum 0
    for name, parameters in (("kerple_log", kerple.LOG), ("kerple_power", kerple.POWER)):
        rows = kerple.shapes(name, parameters).double()
        for row in rows:
            matrix = row[distance]
            inside = project @ matrix @ project
            values = torch.linalg.eigvalsh(inside)
            assert values.min() > -1e-5 * values.max()
            assert (values > 1e-5 * values.max()).sum() == 7
            assert torch.linalg.eigvalsh(matrix).min() < 0
            shifted = matrix + 1e4 * values.max() * constant
            assert torch.linalg.eigvalsh(shifted).min() > 0


def test_the_power_must_not_exceed_2() -> None:
    """The exercise: weights 1, -2, 1 at 0, 1, 2 give 8 - 2^(p + 1)."""
    c, x = torch.tensor([1.0, -2.0, 1.0]), torch.tensor([0.0, 1.0, 2.0])
    for p in (1.0, 2.0, 2.5):
        total = -(c[:, None] * c * (x[:, None] - x).abs() ** p).sum()
        assert float(total) == pytest.approx(8 - 2 ** (p + 1), abs=1e-5)


def test_the_drawn_curves_are_the_formulas() -> None:
    r = torch.arange(256).double()
    for row, (p, a) in zip(kerple.shapes("kerple_log", kerple.LOG), kerple.LOG, strict=True):
        torch.testing.assert_close(row.double(), -p * (1 + a * r).log(), rtol=1e-5, atol=1e-5)
    for row, (p, a) in zip(kerple.shapes("kerple_power", kerple.POWER), kerple.POWER, strict=True):
        torch.testing.assert_close(row.double(), -a * r**p, rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------- Sandwich


def test_sandwich_falls_like_a_logarithm_until_its_ripples_begin() -> None:
    begin = math.pi * sandwich.WIDTH / math.log(1e4)
    assert begin == pytest.approx(44, abs=0.5)
    distance = torch.arange(4, 4096)
    for head in (1, 4, 8):
        bias = biases.distance_bias("sandwich", distance)[head - 1]
        miss = (bias - sandwich.logarithm(distance, head)).abs() * head
        near = miss[: int(begin) - 4]
        assert near.max() < 2.1
        assert miss[100:].max() > 3 * near.max()
    slope = 128 / 2 / math.log(1e4)
    assert slope == pytest.approx(6.9, abs=0.06)


def test_sandwich_is_not_monotone_and_never_above_0() -> None:
    bias = biases.distance_bias("sandwich", torch.arange(4096))
    assert (bias[:, 0] == 0).all()
    assert (bias[:, 1:] < 0).all()
    assert (bias.diff() > 0).any()
    torch.testing.assert_close(bias[0], 8 * bias[7])
    wide = biases.distance_bias("sandwich", torch.arange(10), heads=16)
    torch.testing.assert_close(wide[0], 2 * bias[0, :10])


# ---------------------------------------------------------------- all shapes in one figure


@pytest.mark.parametrize("name", ["alibi", "t5", "kerple_log", "kerple_power", "sandwich"])
def test_the_figure_shows_what_the_last_query_really_gets(name: str) -> None:
    by_distance = biases.distance_bias(name, torch.arange(biases.LENGTH), hidden_size=256)
    torch.testing.assert_close(biases.last_row(name).double(), by_distance, rtol=1e-5, atol=1e-5)


def test_fox_begins_like_alibi_with_a_slope_of_ln_2_in_every_head() -> None:
    row = biases.last_row("fox")
    assert (row[:, 0] == 0).all()
    torch.testing.assert_close(row[:, -1] / 511, torch.full((8,), -math.log(2)), rtol=0.05, atol=0)


def test_fire_begins_as_a_bounded_curve_that_bends_little() -> None:
    row = biases.last_row("fire")
    assert row.abs().max() < 2


def test_a_bounded_bias_leaves_less_for_what_is_near_in_a_longer_text() -> None:
    """S_c(T), eight heads, contents alike: ALiBi's stays, T5's falls as 1/T."""
    shares = {}
    for name in ("alibi", "t5"):
        bias = biases.distance_bias(name, torch.arange(16_384))
        shares[name] = [bias[:, :n].softmax(-1)[:, :32].sum(-1) for n in (2048, 4096, 16_384)]
    torch.testing.assert_close(shares["alibi"][0], shares["alibi"][2], rtol=1e-3, atol=0)
    ratio = shares["t5"][1] / shares["t5"][2]
    torch.testing.assert_close(ratio, torch.full_like(ratio, 4), rtol=0.02, atol=0)


def test_sandwich_has_a_finite_reach_in_six_of_eight_heads() -> None:
    """An exercise: p_h = 8 / (8 h) x 64 / ln 10,000."""
    slopes = [64 / math.log(1e4) / head for head in range(1, 9)]
    assert [p > 1 for p in slopes] == [True] * 6 + [False] * 2
