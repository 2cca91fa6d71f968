"""The numbers behind the pictures of LongRoPE and CLEX, and what their pages state in words."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import pe
from pe.evaluation.longrope.evolution import Evolution

ROOT = Path(__file__).parents[1]
from pictures import clex, longrope  # noqa: E402


def test_the_lines_of_the_search_are_what_the_text_says() -> None:
    first = longrope.first_generation()
    assert list(first) == list(longrope.NAMES)
    assert first["yarn"][10] == 1 < first["yarn"][11]
    assert first["yarn"][22] < 8 == first["yarn"][23]
    pair = torch.arange(32, dtype=torch.float64)
    torch.testing.assert_close(first["ntk"], 8 ** (2 * pair / 62), atol=1e-8, rtol=0)
    children = longrope.mutations("yarn", 6)
    assert (children.diff(dim=1) >= 0).all()
    assert (children != first["yarn"]).any(dim=1).all()


def test_the_blend_of_factors_slows_one_pair_two_and_a_half_times_more() -> None:
    first = longrope.first_generation()
    quotient = first["blend"] / first["yarn"]
    assert (quotient >= 1 - 1e-9).all()
    assert round(float(quotient.max()), 1) == 2.5
    # The exercise: at gamma = 1/2, (1 + s)^2 / 4 s.
    gamma = torch.linspace(0, 1, 1001, dtype=torch.float64)
    s = 8.0
    of_gamma = (gamma + (1 - gamma) * s) * (gamma + (1 - gamma) / s)
    assert int(of_gamma.argmax()) == 500
    assert float(of_gamma.max()) == pytest.approx((1 + s) ** 2 / (4 * s))


def test_how_many_candidates_there_are() -> None:
    assert 10 ** (longrope.sequences(32, 8.0) - 57) == pytest.approx(6, abs=0.5)
    assert longrope.sequences(2, 0.01) == pytest.approx(math.log10(3))  # 11, 12, 22


def test_how_many_evaluations_a_search_costs() -> None:
    from pe.encodings.core.frequencies import base_frequencies
    from pe.evaluation.longrope.evolution import seeds

    rules = Evolution(seeds(base_frequencies(64, 1e4), 4.0, 1024), 4.0, 64, seed=0)
    assert 64 + 40 * 2 * rules.children == 64 + 40 * 64 // 2 == 1344
    assert (rules.parents, rules.children) == (32, 16)


def test_the_switch_and_the_straight_line() -> None:
    lengths = torch.tensor([1, 4096, 4097, 8192, 32768])
    last = longrope.factors_by_length(lengths, dynamic=False)[:, -1]
    torch.testing.assert_close(last, torch.tensor([1, 1, 8, 8, 8], dtype=torch.float64))
    grows = longrope.factors_by_length(lengths, dynamic=True)[:, -1]
    torch.testing.assert_close(grows, torch.tensor([1, 1, 1 + 1 / 4096, 2, 8], dtype=torch.float64))


def test_the_magnitude_is_the_quotient_of_logarithms() -> None:
    s = torch.tensor([1.0, 2.0, 32.0])
    m = longrope.magnitudes(s, "su", 4096).double()
    torch.testing.assert_close(m**2, (4096 * s).log().double() / math.log(4096))
    short = longrope.magnitudes(s[1:], "su", 256)
    yarn = longrope.magnitudes(s[1:], "yarn", 256)
    assert (m[1:] < short).all()
    assert (short < yarn).all()


def test_one_keys_weight_stays_what_it_was() -> None:
    before, after, c = 4096, 32 * 4096, 1.3

    def weight(n: int, logit: float) -> float:
        return math.exp(logit) / (math.exp(logit) + n - 1)

    m = float(longrope.magnitudes(torch.tensor([32.0]), "su", before))
    own = c * math.log(before)
    # c > 1: its weight was near 1 and comes nearer; unscaled it is drowned.
    assert weight(after, own * m**2) > weight(before, own) > weight(after, own)
    own = math.log(before)
    assert weight(after, own * m**2) == pytest.approx(weight(before, own), rel=1e-3)


def test_clex_begins_on_ntk_scaling_and_may_leave_it() -> None:
    begins, moved = clex.flow(False), clex.flow(True)
    t = torch.arange(1, 9, dtype=torch.float64)[:, None]
    pair = torch.arange(32, dtype=torch.float64)
    torch.testing.assert_close(begins, (2 * t - 1) ** (-2 * pair / 62), rtol=2e-6, atol=0)
    assert float(begins[1, -1]) == pytest.approx(1 / 3, rel=1e-5)
    assert (begins[:, [4, 16, 31]].diff(dim=0) < 0).all()
    assert moved[-1, 4] > 1
    assert (moved > 0).all()


def test_errors_of_the_solution() -> None:
    for learned in (False, True):
        coarse, fine = (clex.phase_error(learned, steps) for steps in (16, 32))
        assert coarse / fine == pytest.approx(16, rel=0.05)  # fourth order
    assert round(clex.phase_error(False, 10), 4) == 0.0001
    assert round(clex.phase_error(True, 10), 4) == 0.0002


def test_the_exercise_on_one_step() -> None:
    def slope(t: float) -> float:
        return -1 / (2 * t - 1)

    step = (slope(1) + 3 * slope(4 / 3) + 3 * slope(5 / 3) + slope(2)) / 8
    assert step == pytest.approx(-0.55238, abs=1e-5)
    assert step == pytest.approx(-math.log(3) / 2, abs=4e-3)


def test_the_places_that_the_picture_shows() -> None:
    for t in (1, 2, 4, 8):
        places = clex.places(t, 16)
        assert places[0] == 0
        assert places[-1] == 16 * t - 1
        assert (places.diff() >= 1).all()
    assert torch.equal(clex.places(1, 16), torch.arange(16).double())


def test_the_exercise_on_neighbours() -> None:
    n, t, close = 8, 2, 0
    for seed in range(3000):
        order = torch.randperm(64, generator=torch.Generator().manual_seed(seed))
        places = clex.stretched(order, torch.tensor(n), torch.tensor(t), n, 32)[:n]
        close += int(places[3] + 1 == places[4])
    assert close / 3000 == pytest.approx((n - 2) / (n * t - 2), abs=0.04)


def test_both_pages_have_the_parameters_that_they_state() -> None:
    for name, count in (("longrope", 0), ("clex", 64 * 64)):
        enc = pe.encoding(name, head_dim=64, num_heads=4, original_length=128)
        assert sum(p.numel() for p in enc.parameters()) == count
