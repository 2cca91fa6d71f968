"""What the pages on the rotary relatives and on SSMax state in numbers, and their pictures."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from pe.encodings import encoding
from pe.encodings.xpos import XPos

ROOT = Path(__file__).parents[1]
from pictures import fope, irope, multiscale_rope, partial, ssmax, xpos  # noqa: E402


def test_the_table_of_partial_and_p_rope() -> None:
    stated = {
        "RoPE": (32, 47_117),
        "partial, 1/4": (8, 19_869),
        "p-RoPE, p = 3/4": (24, 4_712),
        "p-RoPE, p = 1/4": (8, 47.1),
    }
    for label, waves in partial.spectra_numbers().items():
        pairs, slowest = stated[label]
        assert len(waves) == pairs
        assert float(waves[0]) == pytest.approx(6.28, abs=0.01)
        assert float(waves[-1]) == pytest.approx(slowest, rel=1e-3)


def test_far_logits_level_off_at_the_share_that_stands_still() -> None:
    distances, logits = partial.logit_numbers()
    far = distances > 5_000
    for label, level in (("p-RoPE, p = 3/4", 2.0), ("p-RoPE, p = 1/4", 6.0)):
        assert float(logits[label][far].mean()) == pytest.approx(level, abs=0.15)


def test_bases_and_counts_of_multiscale_rope() -> None:
    waves = multiscale_rope.wavelength_numbers()
    assert multiscale_rope.encoding().bases()[[0, -1]].tolist() == pytest.approx([1e3, 1e5])
    assert float(waves[:, 0].std()) < 1e-9  # all start together
    assert (waves[0] < 1024).sum() == 24
    assert (waves[-1] < 1024).sum() == 15  # 14.2 pairs after the first
    assert multiscale_rope.logit_numbers()[:, 0].tolist() == pytest.approx([8.0] * 4)
    count = 32 * math.log(1024 / (2 * math.pi)) / math.log(1e3)
    assert count == pytest.approx(23.6, abs=0.05)


def test_half_lives_and_limits_of_xpos() -> None:
    assert xpos.half_life(0) == pytest.approx(283, abs=0.5)
    weights = xpos.weight_numbers()
    assert (weights[0] > 0.5).sum() == 284  # distances 0 to 283
    enc = encoding("xpos", head_dim=64, num_heads=1)
    assert isinstance(enc, XPos)
    stated = {torch.float32: 24_521, torch.bfloat16: 24_521, torch.float16: 4_495}
    assert {dtype: enc.chunk(dtype) for dtype in stated} == stated
    assert enc.chunk(torch.float64) == 245_217
    assert math.log(1.4 / 0.4) / 512 == pytest.approx(0.00245, abs=5e-6)
    for largest, tokens in ((65_504, 9_000), (3.4e38, 72_000)):
        assert 2 * 512 * math.log(largest) / math.log(3.5) == pytest.approx(tokens, rel=0.02)


def test_the_factors_of_a_long_text_stay_in_range() -> None:
    _, q, k = xpos.factor_numbers()
    assert q.shape[0] == k.shape[0] == 3
    assert q.max() < 1e14
    assert k.max() < 1e14
    assert ((k > 0).sum(0) == 1).all()  # a key stands in one stretch


def test_the_logits_of_fope_scatter_and_those_of_rope_do_not() -> None:
    logits = fope.logit_numbers()
    assert float(logits["rope"].std()) < 1e-9
    assert 0.02 < float(logits["fope"].std()) < 0.2
    plain, series = fope.series_numbers()
    assert 0.01 < float((plain - series).abs().max()) < 0.2
    assert fope.encoding().get_parameter("cos_mix").shape == (4, 16, 16)


def test_the_schedule_and_temperature_of_irope() -> None:
    assert [n for n, turns in enumerate(irope.schedule_numbers()) if not turns] == [3, 7, 11]
    enc = encoding("irope", head_dim=16, num_heads=1, layer_index=3)
    scale = enc.logit_scale(torch.tensor([8_190, 8_191, 65_535, 131_071]))
    assert scale is not None
    assert scale[0].tolist() == pytest.approx([1, 1.069, 1.220, 1.283], abs=5e-4)
    positions, factors = irope.temperature_numbers()
    assert float(factors[positions <= 8_190].max()) == 1


def test_the_weights_of_ssmax() -> None:
    lengths = torch.tensor([1_024, 16_384])
    softmax = ssmax.weight_numbers(lengths, None)
    assert softmax.tolist() == pytest.approx([0.74, 0.15], abs=0.005)
    many = torch.tensor([10**9])
    for s, limit in ((0.25, 1.0), (0.125, 0.5), (0.1, 0.0)):
        assert float(ssmax.weight_numbers(many, s)) == pytest.approx(limit, abs=0.02)
    assert ssmax.start(1_024) == pytest.approx(0.168, abs=5e-4)
    assert float(ssmax.factor(torch.tensor([378]))) == pytest.approx(1, abs=1e-3)
