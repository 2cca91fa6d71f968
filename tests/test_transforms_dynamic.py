"""Frequency transforms that look at the length: by row, remembering nothing, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_tools import LENGTH, close, small, stepwise, tokens
from torch import Tensor
from transform_tools import L0, build, frequencies, turned

import pe
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


@GROWING
def test_left_padding_is_not_length(spec: str, options: dict[str, Any]) -> None:
    enc, pad = build(spec, **options), 250
    positions = torch.stack((torch.arange(600), (torch.arange(600) - pad).clamp(min=0)))
    q, k = (torch.randn(2, 2, 600, 64) for _ in range(2))
    a = enc.rotate(q, k, positions, positions)
    alone = torch.arange(600 - pad)
    b = enc.rotate(q[1:, :, pad:], k[1:, :, pad:], alone, alone)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x[1:, :, pad:], y)


@GROWING
def test_nothing_is_remembered(spec: str, options: dict[str, Any]) -> None:
    """Short, long, short, and the lengths at which transformers' module keeps the longest."""
    enc = build(spec, **options)
    first = {n: turned(enc, torch.arange(n)) for n in (40, L0, 300)}
    for n in (5000, L0, 300, 40, 100, L0, 300, 40):
        again = turned(enc, torch.arange(n))
        if n in first:
            assert all(torch.equal(x, y) for x, y in zip(first[n], again, strict=True))


@GROWING
@pytest.mark.parametrize("length", [L0 - 1, L0, L0 + 1, 2 * L0])
def test_a_decoding_step_is_the_last_row_of_a_full_call(
    spec: str, options: dict[str, Any], length: int
) -> None:
    """huggingface/transformers#25104: cached keys are rotated for the length of the step."""
    enc, positions = build(spec, **options), torch.arange(length)
    q, k, v = (torch.randn(2, 2, length, 64, dtype=torch.float64) for _ in range(3))
    whole = pe.attend(enc, q, k, v, positions, positions)
    step = pe.attend(enc, q[:, :, -1:], k, v, positions[-1:], positions)
    torch.testing.assert_close(step, whole[:, :, -1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "spec", ["dynamic_ntk+resonance", "longrope+resonance", "yarn", "yarn+resonance"]
)
def test_one_layer_decodes_as_it_prefills(spec: str) -> None:
    """As tests/test_generation.py has it for those that are registered by name."""
    options = {"dynamic": True} if "yarn" in spec else {}
    model = small(spec, num_hidden_layers=1, pe_options=options)
    length, pad = 2 * LENGTH, 5
    ids = tokens(2, length)
    mask = torch.ones_like(ids)
    mask[0, :pad] = 0
    with torch.no_grad():
        whole = model(ids, attention_mask=mask, use_cache=False).logits[:, -1]
        steps = stepwise(model, ids, [pad + 2, *[1] * (length - pad - 2)], attention_mask=mask)
    close(steps[:, -1], whole)


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
