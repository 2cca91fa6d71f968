"""What partial RoPE, p-RoPE, multiscale RoPE, xPos, FoPE, iRoPE and SSMax do, besides parity."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pe.encodings import Encoding, encoding, layer_encodings

SIZES: dict[str, Any] = {"head_dim": 32, "num_heads": 4, "original_length": 256}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def both(length: int = 12, keys: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    q, k = drawn(1, 4, length, 32), drawn(1, keys, length, 32, seed=1)
    return q, k, torch.arange(length)


def logits(enc: Encoding, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """What a causal decoder sees of them."""
    q, k = enc.rotate(q, k, positions, positions)
    seen: Tensor = (q @ k.mT / 32**0.5).tril()
    return seen


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_partial_turns_a_quarter_and_passes_the_rest(layout: str) -> None:
    q, k, p = both()
    turned, _ = encoding("partial", **SIZES, layout=layout).rotate(q, k, p, p)
    assert torch.equal(turned[..., 8:], q[..., 8:])
    small = encoding("rope", head_dim=8, num_heads=4, layout=layout)
    assert torch.equal(turned[..., :8], small.rotate(q[..., :8], k[..., :8], p, p)[0])


def test_yarn_scales_only_what_partial_turns() -> None:
    q, k, p = both()
    enc = encoding("partial+yarn", **SIZES, factor=4.0)
    turned, _ = enc.rotate(q, k, p, p)
    assert torch.equal(turned[..., 8:], q[..., 8:])
    grown = turned[..., :8].norm(dim=-1) / q[..., :8].norm(dim=-1)
    torch.testing.assert_close(grown, torch.full_like(grown, 0.1 * math.log(4) + 1))


def test_p_rope_with_all_frequencies_is_rope() -> None:
    q, k, p = both()
    ours = encoding("p_rope", **SIZES, p=1.0).rotate(q, k, p, p)
    rope = encoding("rope", **SIZES).rotate(q, k, p, p)
    assert all(torch.equal(a, b) for a, b in zip(ours, rope, strict=True))


@pytest.mark.parametrize("transform", ["", "+yarn", "+resonance", "+llama3", "+ntk"])
def test_p_rope_leaves_what_it_stops_after_any_transform(transform: str) -> None:
    enc = encoding("p_rope" + transform, **SIZES, p=0.5)
    base = encoding("rope" + transform, **SIZES)
    for name, value in base.named_buffers():
        kept = enc.get_buffer(name)
        assert torch.equal(kept[:8], value[:8])
        if name == "inv_freq":
            assert (kept[8:] == 0).all()
    p = torch.tensor([100_000])
    (cos, sin), _ = enc.prepare(p, p).tables
    assert (sin[..., 8:] == 0).all()
    assert (cos[..., 8:] == cos[..., 8:9]).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("p_rope", {"p": 0.0}, "p: expected more than 0 and at most 1, got 0.0"),
        ("p_rope", {"p": 0.01}, "head_dim 32 with p 0.01 keeps no frequency"),
        ("partial", {"rotary_fraction": 0.03}, "leaves no whole pairs to rotate"),
        ("multiscale_rope", {"theta_max": 10.0}, "theta_max: expected .* at least 1000.0, got 10"),
        ("xpos", {"scale_base": 0.0}, "scale_base: expected a finite number above 0, got 0.0"),
        ("fope", {"original_length": 6}, "original_length: expected .* at least 7, got 6"),
        ("fope", {"dropped": "one"}, "dropped.*one"),
        ("irope", {"nope_every": 1}, "nope_every: expected .* at least 2, got 1"),
        ("ssmax", {"original_length": 1}, "original_length: expected .* at least 2, got 1"),
        ("nope+ssmax", {}, "nothing can be added"),
        ("fope+yarn", {}, "yarn changes RoPE's frequencies, and fope has its own"),
        ("xpos+rope", {}, "both rotate"),
    ],
)
def test_refusals(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encoding(name, **(SIZES | options))


def test_the_query_heads_of_a_group_turn_with_their_key() -> None:
    q, k, p = both(keys=2)
    for name in ("multiscale_rope", "fope"):
        grouped = encoding(name, **SIZES, num_kv_heads=2)
        turned_q, turned_k = grouped.rotate(q, k, p, p)
        for head in range(4):
            again = grouped.rotate(q[:, [head, head]], k, p, p)[0][:, head // 2]
            assert torch.equal(turned_q[:, head], again)
            other = grouped.rotate(q[:, [head, head]], k, p, p)[0][:, 1 - head // 2]
            assert not torch.allclose(turned_q[:, head], other)
        assert turned_k.shape == k.shape


def decayed_logits(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    """xPos from its definition: each pair of the logit times zeta^(distance / B)."""
    rope = encoding("rope", **SIZES, layout="interleaved")
    q, k = rope.rotate(q, k, positions, positions)
    zeta = (torch.arange(0, 32, 2, dtype=torch.float64) / 32 + 0.4) / 1.4
    distance = (positions[:, None] - positions[None, :]).clamp(min=0)
    weight = zeta ** (distance[..., None] / 512.0)
    pairs = (q[..., :, None, :] * k[..., None, :, :]).unflatten(-1, (16, 2)).sum(-1)
    seen: Tensor = ((pairs * weight).sum(-1) / 32**0.5).tril()
    return seen


@pytest.mark.parametrize("gap", [1, 40, 4495, 8191, 30_000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_xpos_is_its_definition_on_any_number_of_stretches(gap: int, dtype: torch.dtype) -> None:
    q, k, p = both()
    want = decayed_logits(q.double(), k.double(), p * gap)
    ours = logits(encoding("xpos", **SIZES), q.to(dtype), k.to(dtype), p * gap)
    torch.testing.assert_close(ours.double(), want, atol=3e-6, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_no_factor_of_xpos_overflows(dtype: torch.dtype) -> None:
    enc = encoding("xpos", **SIZES)
    p = torch.arange(0, 300_000, 97)
    ones = torch.full((1, 1, len(p), 32), 10.0, dtype=dtype)
    q, k = enc.rotate(ones, ones, p, p)
    assert q.isfinite().all()
    assert k.isfinite().all()
    # the largest product that a mask will hide
    width = torch.promote_types(dtype, torch.float32)
    top = (q.to(width).abs().amax(-2) * k.to(width).abs().amax(-2)).sum()
    assert top.isfinite()


def test_xpos_widens_only_what_is_longer_than_a_stretch() -> None:
    enc = encoding("xpos", **SIZES)
    for last, times in ((24_520, 1), (24_521, 2)):
        p = torch.tensor([0, last])
        q, k = enc.rotate(*both(2)[:2], p, p)
        assert q.shape[-1] == k.shape[-1] == 32 * times


def test_fope_drops_slow_frequencies_as_the_paper_or_as_the_code_has_it() -> None:
    q, k, p = both()
    enc = encoding("fope", **SIZES)  # 256 tokens keep 7 of 16 frequencies
    assert enc.get_parameter("cos_mix").shape == (4, 7, 7)
    assert enc.get_buffer("inv_freq").min() >= 2 * math.pi / 256
    rest = [*range(7, 16), *range(23, 32)]
    turned_q, turned_k = enc.rotate(q, k, p, p)
    assert torch.equal(turned_q[..., rest], q[..., rest])
    code = encoding("fope", **SIZES, dropped="ones")
    code.load_state_dict(enc.state_dict())
    code_q, code_k = code.rotate(q, k, p, p)
    plain = turned_q[..., rest] @ turned_k[..., rest].mT
    torch.testing.assert_close(code_q[..., rest] @ code_k[..., rest].mT, 2 * plain)
    moved = [*range(7), *range(16, 23)]
    assert torch.equal(code_q[..., moved], turned_q[..., moved])


def test_fope_without_noise_is_rope_on_the_fast_frequencies() -> None:
    sizes = SIZES | {"original_length": 40}  # keeps fewer frequencies than d/4
    enc = encoding("fope", **sizes, gain=0.0)
    mixed = enc.get_parameter("cos_mix").shape[1]
    assert enc.get_parameter("cos_mix").shape == (4, mixed, mixed)
    rope = encoding("p_rope", **sizes, p=mixed / 16)
    q, k, p = both()
    torch.testing.assert_close(enc.rotate(q, k, p, p), rope.rotate(q, k, p, p))


def test_fope_is_drawn_for_each_layer_and_frozen() -> None:
    layers = layer_encodings("fope", 2, **SIZES)
    for seed, enc in enumerate(layers):
        enc.reset_parameters(torch.Generator().manual_seed(seed))
    first, second = (enc.get_parameter("cos_mix") for enc in layers)
    assert not torch.equal(first, second)
    assert not any(p.requires_grad for enc in layers for p in enc.parameters())
    again = encoding("fope", **SIZES)
    again.reset_parameters(torch.Generator().manual_seed(0))
    assert torch.equal(again.get_parameter("cos_mix"), first)
    wide = encoding("fope", head_dim=128, num_heads=16, original_length=4096)
    mix = wide.get_parameter("sin_mix")
    step = -(-mix.shape[1] // mix.shape[2])
    noise = mix.clone()
    noise[:, torch.arange(0, mix.shape[1], step), torch.arange(-(-mix.shape[1] // step))] -= 1
    expected = 0.3 * math.sqrt(2 / ((mix.shape[1] + 16) * mix.shape[2]))
    assert float(noise.std()) == pytest.approx(expected, rel=0.02)


def test_irope_rotates_in_all_layers_but_every_fourth() -> None:
    q, k, p = both()
    layers = layer_encodings("irope", 8, **SIZES, floor_scale=4)
    still = [torch.equal(enc.rotate(q, k, p, p)[0], q) for enc in layers]
    assert still == [False, False, False, True] * 2
    sharpened = [enc.logit_scale(p) is not None for enc in layers]
    assert sharpened == still
    every_second = layer_encodings("irope", 4, **SIZES, nope_every=2)
    assert [e.relative for e in every_second] == [True, False, True, False]


def test_irope_without_norm_is_rope_at_its_base() -> None:
    q, k, p = both()
    enc = encoding("irope", **SIZES, qk_norm=False)
    rope = encoding("rope", **SIZES, theta=500000.0, layout="interleaved")
    for ours, theirs in zip(enc.rotate(q, k, p, p), rope.rotate(q, k, p, p), strict=True):
        assert torch.equal(ours, theirs)


def test_the_norm_of_irope_comes_to_the_same_after_rotating() -> None:
    q, k, p = both()
    ours, _ = encoding("irope", **SIZES).rotate(q, k, p, p)
    turned, _ = encoding("irope", **SIZES, qk_norm=False).rotate(q, k, p, p)
    after = turned / (turned.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(ours, after)


def test_the_magnitude_of_yarn_survives_the_norm_of_irope() -> None:
    q, k, p = both()
    turned, _ = encoding("irope+yarn", **SIZES, factor=4.0).rotate(q, k, p, p)
    size = turned.square().mean(-1).sqrt()
    torch.testing.assert_close(size, torch.full_like(size, 0.1 * math.log(4) + 1))
    still = encoding("irope+yarn", **SIZES, factor=4.0, layer_index=3)
    assert still.rotate(q, k, p, p)[0] is q


def test_ssmax_begins_as_softmax_on_average() -> None:
    enc = encoding("ssmax", **SIZES)
    scale = enc.logit_scale(torch.arange(256))
    assert scale is not None
    assert scale.shape == (4, 256)
    torch.testing.assert_close(scale.mean(-1), torch.ones(4))
    given = encoding("ssmax", **SIZES, s_init=0.43).get_parameter("s")
    assert torch.equal(given, torch.full((4,), 0.43))


def test_ssmax_goes_with_anything() -> None:
    q, k, p = both()
    enc = encoding("rope+ssmax", **SIZES)
    assert enc.rotates
    assert not enc.raw_keys
    rows = torch.stack((p, p + 5))
    scale = enc.logit_scale(rows)
    assert scale is not None
    assert scale.shape == (2, 4, 12)
    torch.testing.assert_close(scale[1, 0], enc.get_parameter("parts.1.s")[0] * (p + 6).log())
    rope = encoding("rope", **SIZES)
    assert torch.equal(enc.rotate(q, k, p, p)[0], rope.rotate(q, k, p, p)[0])
    layers = layer_encodings("rope+ssmax", 3, **SIZES)
    assert len({id(parameter) for enc in layers for parameter in enc.parameters()}) == 3
    irope = encoding("irope+ssmax", **SIZES, layer_index=3, floor_scale=4)
    both_scales = irope.logit_scale(p)
    assert both_scales is not None
    assert both_scales.squeeze(0).shape == (4, 12)
