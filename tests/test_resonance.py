"""Resonance, alone and after what stretches: wavelengths of whole tokens, so tables repeat."""

from __future__ import annotations

import math

import pytest
import torch
from transform_tools import L0, build, turned

import pe
from pe.encodings import encoding
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.resonance import Resonance

RESONANT = ["resonance", "yarn+resonance", "ntk+resonance", "pi+resonance", "llama3+resonance"]


@pytest.mark.parametrize("spec", RESONANT)
def test_tables_repeat_bit_by_bit_at_any_position(spec: str) -> None:
    """A rounded wavelength is a whole number of tokens."""
    enc = build(spec)
    period = enc.get_buffer("period")
    assert torch.equal(period, period.round())
    torch.testing.assert_close(enc.inv_freq * period, torch.full_like(period, 2 * math.pi))
    for dtype in (torch.float32, torch.float64):
        for start in (0, 99_000):
            for pair in range(0, 32, 3):
                turn = int(period[pair])
                here = torch.arange(start, start + 64)
                first, later = (enc.prepare(p, p, dtype).tables[0] for p in (here, here + turn))
                assert torch.equal(first[0][..., pair], later[0][..., pair])
                assert torch.equal(first[1][..., pair], later[1][..., pair])


def test_without_resonance_no_table_repeats() -> None:
    enc, here = build("rope"), torch.arange(64)
    for pair in range(8):
        turn = round(2 * math.pi / float(enc.inv_freq[pair]))
        first, later = (enc.prepare(p, p).tables[0] for p in (here, here + turn))
        assert not torch.equal(first[0][..., pair], later[0][..., pair])


def test_rows_repeat_with_the_period_of_their_own_length() -> None:
    enc = build("dynamic_ntk+resonance")
    lengths = torch.tensor([[100], [1000], [50_000]])
    spectrum = enc.frequencies(lengths)
    assert spectrum.period is not None
    assert spectrum.period.shape == (3, 32)
    assert torch.equal(spectrum.period, spectrum.period.round())
    assert (spectrum.period[2] > spectrum.period[0])[1:].all()
    for row, length in enumerate(lengths.flatten().tolist()):
        turn = int(spectrum.period[row, 3])
        rows = torch.tensor([0, 1, turn, 1 + turn, length - 1])
        cos, _ = enc.prepare(rows, rows).tables[0]
        assert torch.equal(cos[0, 0, :2, 3], cos[0, 0, 2:4, 3])


def test_stretching_comes_first_whatever_the_order_of_the_names() -> None:
    a, b = build("resonance+yarn"), build("yarn+resonance")
    assert torch.equal(a.inv_freq, b.inv_freq)
    slowed = 2 * math.pi / build("yarn").inv_freq
    assert torch.equal(a.get_buffer("period"), slowed.round())
    assert a.magnitude == build("yarn").magnitude


def test_logits_stay_a_function_of_distance() -> None:
    """Positions are reduced, and whole turns change nothing."""
    enc = build("resonance")
    assert enc.relative
    q, k = (torch.randn(1, 2, 9, 64, dtype=torch.float64) for _ in range(2))
    p = torch.tensor([0, 1, 2, 5, 6, 7, 100, 313, 5000])
    logits = []
    for shift in (0, 1, 63, 90_001):
        a, b = enc.rotate(q, k, p + shift, p + shift)
        logits.append(a @ b.mT)
    for other in logits[1:]:
        torch.testing.assert_close(other, logits[0], rtol=0, atol=1e-9)


def test_a_pair_that_stands_still_stays_so() -> None:
    base = base_frequencies(8, 10_000.0)
    still = base._replace(inv_freq=base.inv_freq * torch.tensor([1, 1, 0, 0]))
    out = Resonance()(still)
    assert out.period is not None
    assert out.period.tolist() == [6, 63, 0, 0]
    assert out.inv_freq[2:].tolist() == [0, 0]
    assert torch.isfinite(out.inv_freq).all()


def test_learned_frequencies_are_not_rounded_in_silence() -> None:
    base = base_frequencies(8, 10_000.0)
    learned = base._replace(inv_freq=base.inv_freq.clone().requires_grad_())
    with pytest.raises(ValueError, match="rounds wavelengths, which stops gradients"):
        Resonance()(learned)
    with torch.no_grad():
        Resonance()(base)


@pytest.mark.parametrize("spec", [*RESONANT, "dynamic_ntk+resonance", "longrope+resonance"])
def test_constants_survive_casts_and_the_meta_device(spec: str) -> None:
    here, positions = build(spec), torch.arange(0, 3000, 100)
    expected = turned(here, positions)
    cast = build(spec).to(torch.bfloat16)
    with torch.device("meta"):
        empty = build(spec)
    for enc in (cast, empty.to_empty(device="cpu")):
        found = turned(enc, positions)
        assert all(torch.equal(x, y) for x, y in zip(expected, found, strict=True))


@pytest.mark.parametrize("spec", ["pi+alibi", "resonance+alibi", "dynamic_ntk+resonance+alibi"])
def test_biases_can_be_added(spec: str) -> None:
    enc = encoding(spec, head_dim=64, num_heads=2, original_length=L0)
    assert enc.rotates
    assert enc.length_dependent == ("dynamic" in spec)
    p = torch.arange(300)
    q, k, v = (torch.randn(1, 2, 300, 64) for _ in range(3))
    assert torch.isfinite(pe.attend(enc, q, k, v, p, p)).all()
    assert enc.bias(q, k, p, p) is not None
