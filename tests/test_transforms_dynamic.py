"""Frequency transforms that look at the length: by row, remembering nothing, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_tools import LENGTH, close, small, tokens
from torch import Tensor
from transform_tools import L0, build, frequencies

from pe.encodings.dynamic_ntk import DynamicNTK


def test_alpha_grows_in_a_straight_line_from_1() -> None:
    transform = DynamicNTK(4096, 2.0)
    lengths = torch.tensor([1, 4095, 4096, 4097, 8192, 100_001])
    expected = torch.tensor([1, 1, 1, 1.00048828125, 3, 47.82861328125], dtype=torch.float64)
    assert torch.equal(transform.alpha(lengths), expected)
    for factor in (1.0, 3.0, 100.0):
        assert float(DynamicNTK(777, factor).alpha(torch.tensor(777))) == 1
    assert float(DynamicNTK(777, 1.0).alpha(torch.tensor(4 * 777))) == pytest.approx(4)


def test_dynamic_ntk_is_ntk_by_the_alpha_of_its_length() -> None:
    for length in (L0 + 1, 1000, 100_001):
        alpha = float(DynamicNTK(L0, 3.0).alpha(torch.tensor(length)))
        static = frequencies("ntk", factor=alpha)
        assert torch.equal(frequencies("dynamic_ntk", length, factor=3.0), static)


DYNAMIC: list[tuple[str, dict[str, Any]]] = [
    ("dynamic_ntk", {}),
    ("dynamic_ntk+resonance", {}),
    ("yarn", {"dynamic": True}),
    ("yarn+resonance", {"dynamic": True}),
]
GROWING = pytest.mark.parametrize(("spec", "options"), DYNAMIC)


@GROWING
def test_traits_of_those_that_look_at_the_length(spec: str, options: dict[str, Any]) -> None:
    enc = build(spec, **options)
    assert enc.length_dependent
    assert enc.raw_keys
    assert not enc.relative  # moved by a thousand positions, a text is longer by as much
    assert not dict(enc.named_buffers())


@GROWING
def test_each_row_has_the_base_of_its_own_length(spec: str, options: dict[str, Any]) -> None:
    enc = build(spec, **options)
    rows = torch.stack([torch.arange(8) * step for step in (1, 90, 400, 14_000)])
    spectrum = enc.spectrum(rows)
    assert spectrum.inv_freq.shape == (4, 32)
    q, k = (torch.randn(4, 2, 8, 64) for _ in range(2))
    together = enc.rotate(q, k, rows, rows)
    for b in range(4):
        alone = enc.spectrum(rows[b])
        assert alone.inv_freq.shape == (32,)
        assert torch.equal(spectrum.inv_freq[b], alone.inv_freq)
        if isinstance(spectrum.magnitude, Tensor):
            assert float(spectrum.magnitude[b]) == float(alone.magnitude)
        single = enc.rotate(q[b : b + 1], k[b : b + 1], rows[b], rows[b])
        for x, y in zip(together, single, strict=True):
            assert torch.equal(x[b : b + 1], y)
    assert not torch.equal(spectrum.inv_freq[1], spectrum.inv_freq[2])


def test_dynamic_yarns_factor_and_temperature_follow_each_row() -> None:
    grows = build("yarn", dynamic=True)
    spectrum = grows.frequencies(torch.tensor([[100], [L0], [2 * L0], [9 * L0]]))
    magnitude = spectrum.magnitude
    assert isinstance(magnitude, Tensor)
    assert magnitude.shape == (4, 1)
    for row, factor in enumerate((1.0, 1.0, 2.0, 9.0)):
        fixed = build("yarn", factor=factor).frequencies()
        torch.testing.assert_close(spectrum.inv_freq[row], fixed.inv_freq, rtol=1e-15, atol=0)
        assert float(magnitude[row]) == pytest.approx(float(fixed.magnitude), rel=1e-15)
    explicit = build("yarn", dynamic=True, attention_factor=1.25)
    assert explicit.frequencies(torch.tensor([[900]])).magnitude == 1.25
    weighted = build("yarn", dynamic=True, mscale=1.0, mscale_all_dim=0.5)
    ratio = (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)
    assert float(weighted.frequencies(torch.tensor(4 * L0)).magnitude) == pytest.approx(ratio)


@pytest.mark.parametrize("spec", ["dynamic_ntk+resonance", "yarn"])
def test_a_compiled_model_takes_each_rows_length_without_leaving_its_graph(spec: str) -> None:
    options = {"dynamic": True} if spec == "yarn" else {}
    model = small(spec, num_hidden_layers=1, pe_options=options)
    ids, pad = tokens(2, 2 * LENGTH), 9
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        want = model(ids, attention_mask=mask, use_cache=False).logits
        found = compiled(ids, attention_mask=mask, use_cache=False).logits
    close(found[mask.bool()], want[mask.bool()], atol=1e-5)
