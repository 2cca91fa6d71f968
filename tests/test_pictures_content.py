"""The numbers behind the pages of head scale, LeRoPE, BAM, DAPE, PaTH and stick-breaking."""

from __future__ import annotations

import math

import pytest
import torch
from pictures import bam, dape, head_scale, lerope, path, relative_content, stickbreaking


def test_attention_covers_a_share_of_the_keys_and_a_factor_makes_it_smaller() -> None:
    lengths = [1024, 4096]
    plain, sharper = (head_scale.entropy_numbers(lengths, factor) for factor in (1.0, 1.6))
    assert float(plain[1] / plain[0]) == pytest.approx(4, rel=0.25)
    assert float(plain[1]) / 4096 == pytest.approx(math.exp(-2), rel=0.2)
    assert (sharper < plain / 5).all()


def test_the_worked_example_of_stick_breaking() -> None:
    weights = stickbreaking.weight_numbers(torch.tensor([9.0, 0.0, 2.0, 2.0]).double(), "stick")
    assert weights.tolist() == pytest.approx([0, 0.5, 0.44, 0.053], abs=1e-3)
    for logit, keys in ((0.0, 1), (-3.0, 14), (-5.0, 103)):
        assert stickbreaking.half_life(logit) == pytest.approx(keys, abs=0.5)
    found = stickbreaking.weight_numbers(stickbreaking.search_numbers(), "stick")
    near, far = (float(found[distance]) for distance in stickbreaking.MATCHES)
    assert near > 8 * far


def test_a_switch_flips_every_key_that_passes_it_and_random_reflections_fade() -> None:
    signs = path.flip_numbers()
    assert [float(signs[distance]) for distance in (0, 9, 11, 24, 26, 39, 41)] == pytest.approx(
        [1, 1, -1, -1, 1, 1, -1]
    )
    w = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [0.6, 0.8]]]).double()
    one = torch.tensor([[1.0, 0.0]]).double()
    (logits,) = path.logit_numbers(w, torch.tensor([[0.0, 2.0, 0.0]]).double(), one, one)
    assert logits.tolist() == pytest.approx([1, 1, 0.28])
    decay = path.decay_numbers(1.0, length=9)
    assert float(decay[8]) == pytest.approx(path.kept(1.0, 16) ** 8, rel=0.25)
    assert math.log(0.5) / math.log(path.kept(1.0, 64)) == pytest.approx(44, abs=0.1)


def test_two_units_lift_a_penalty_from_keys_that_match() -> None:
    slope = 2**-8
    biases = {logit: dape.bias_numbers(dape.gated(), logit) for logit in dape.LOGITS}
    assert float(biases[2.0].abs().max()) < 0.01
    assert float(biases[-1.0][10]) == pytest.approx(-10 * slope, rel=0.05)
    assert float(biases[-1.0][-1]) == pytest.approx(-0.1, rel=0.05)
    assert float(biases[-2.0][-1]) == pytest.approx(-0.2, rel=0.05)


def test_the_factors_of_a_head_that_looks_past_what_is_near() -> None:
    factor = bam.bias_numbers(-1.0, 3.0, 101).exp()
    assert [float(factor[distance]) for distance in (20, 100)] == pytest.approx(
        [0.37, 0.82], abs=5e-3
    )


def test_slow_frequencies_hardly_learn() -> None:
    slopes = lerope.slope_numbers(100)
    assert float(slopes[16]) == pytest.approx(-0.84, abs=5e-3)
    assert float(slopes[31]) == pytest.approx(-0.00018, abs=1e-5)


def test_a_query_mixes_profiles_up_to_the_reach() -> None:
    line, bump, both = (relative_content.bias_numbers(r) for r in ((1, 0), (0, 1), (1, 1)))
    torch.testing.assert_close(both, line + bump)
    assert int(bump.argmax()) == 30
    assert float(line[63]) == -63 / 8
    assert not both[64:].any()
