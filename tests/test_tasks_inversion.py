"""Logits of single keys: whether they still tell positions and tokens apart."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import pe
from pe.encodings import Encoding
from pe.encodings.core.additive import Additive
from pe.tasks.measure.inversion import aliasing, inversion, logits_at
from pe.tasks.measure.numerics import Errors, shift_errors

CONTROLS = "pe.tasks.measure.controls"


def one_head(name: str, **options: float) -> Encoding:
    return pe.encoding(name, head_dim=32, num_heads=1, original_length=128, **options).eval()


@pytest.mark.parametrize("name", ["rope", "alibi", "pope", "xpos", "t5", "ssmax"])
def test_logits_are_those_of_attention(name: str) -> None:
    """Attention over two keys says what the difference of their logits is."""
    enc = one_head(name)
    q, k = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    distances = torch.tensor([7, 3])
    v = torch.tensor([[1.0], [0.0]], dtype=torch.float64).expand(5, 1, 2, 1)
    keys = k[:, None, None].expand(-1, -1, 2, -1)
    weight = pe.attend(
        enc,
        q[:, None, None],
        keys,
        v,
        q_positions=torch.tensor([7]),
        k_positions=7 - distances,
        mask=torch.ones(1, 2, dtype=torch.bool),
        backend="dense",
    )[:, 0, 0, 0]
    logits = logits_at(enc, q, k, distances)
    assert torch.allclose((logits[:, 0] - logits[:, 1]).sigmoid(), weight, atol=1e-6)


def test_rope_loses_positions_and_tokens_with_length() -> None:
    enc = one_head("rope")
    by_length = [inversion(enc, 32, n, samples=2000) for n in (4, 128, 2**20)]
    for short, longer, long in zip(*by_length, strict=True):
        assert short < 0.25 < longer < long < 0.55
        assert long > 0.45
    by_length = [aliasing(enc, 32, n, samples=100) for n in (8, 2048)]
    for short, long in zip(*by_length, strict=True):
        assert short < 0.15
        assert long > 0.6


def test_a_larger_base_trades_positions_for_tokens() -> None:
    small, large = one_head("rope", theta=1e2), one_head("rope", theta=1e8)
    assert inversion(large, 32, 64).token < inversion(small, 32, 64).token - 0.1
    assert inversion(large, 32, 64).position > inversion(small, 32, 64).position + 0.05


def test_a_penalty_by_distance_inverts_nothing_and_nope_confuses_all_positions() -> None:
    alibi, nope = one_head("alibi"), one_head("nope")
    assert inversion(alibi, 32, 1024) == (0, 0)
    assert inversion(nope, 32, 1024) == (0, 0)
    assert aliasing(alibi, 32, 16, tolerance=2**-9).position == 0
    assert aliasing(nope, 32, 16).position > 0.9  # except where the first is the farthest


def test_unrelated_keys_are_ordered_by_a_coin() -> None:
    share = inversion(one_head("rope"), 32, 4096, alignment=0.0, samples=4000).position
    assert abs(share - 0.5) < 4.5 * math.sqrt(0.25 / 4000)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="'sinusoidal' does not act on logits"):
        inversion(one_head("sinusoidal"), 32, 64)
    with pytest.raises(ValueError, match="'cope' does not act on logits by position alone"):
        inversion(one_head("cope"), 32, 64)
    with pytest.raises(ValueError, match="built for 2 heads; expected 1"):
        inversion(pe.encoding("alibi", head_dim=32, num_heads=2), 32, 64)
    with pytest.raises(ValueError, match="length: expected 2 or more, got 1"):
        aliasing(one_head("rope"), 32, 1)
    with pytest.raises(ValueError, match="alignment: expected a correlation"):
        inversion(one_head("rope"), 32, 64, alignment=2.0)


def test_a_rotation_shifts_positions_that_were_not_seen_and_other_vectors_do_not() -> None:
    def errors(spec: str) -> Errors:
        enc = pe.encoding(spec, head_dim=16, num_heads=1, hidden_size=16)
        assert isinstance(enc, Additive)
        return shift_errors(enc, 32, 3)

    assert max(errors("sinusoidal")) < 1e-4
    assert errors("sinonly").inside > 0.01
    scattered = errors(f"{CONTROLS}:Scattered")
    assert scattered.inside > 0.3
    assert scattered.beyond > 0.9


def test_controls_have_the_properties_that_they_are_there_for() -> None:
    def rows(name: str) -> Tensor:
        enc = pe.encoding(f"{CONTROLS}:{name}", head_dim=16, num_heads=1, hidden_size=16)
        assert isinstance(enc, Additive)
        return enc.rows(torch.arange(40), torch.float64)

    gray = rows("Gray")
    assert ((gray[1:] != gray[:-1]).sum(dim=1) == 1).all(), "one bit from a position to the next"
    assert len({tuple(row) for row in gray.tolist()}) == 40
    decimal = pe.encoding("decimal", head_dim=16, num_heads=1, hidden_size=16)
    assert isinstance(decimal, Additive)
    assert torch.allclose(9 * rows("Quiet"), decimal.rows(torch.arange(40), torch.float64))
    sinusoidal = pe.encoding("sinusoidal", head_dim=16, num_heads=1, hidden_size=16)
    assert isinstance(sinusoidal, Additive)
    assert torch.allclose(rows("Loud"), 9 * sinusoidal.rows(torch.arange(40), torch.float64))
    size = rows("Scattered").square().mean().sqrt()
    assert float(size) == pytest.approx(0.5**0.5, rel=0.1)
