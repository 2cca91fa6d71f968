"""Frequency transforms against published code, configuration by configuration.

tests/golden holds what transformers (PI, dynamic NTK, Llama 3) and the authors' repositories (NTK,
dynamic YaRN, Resonance) compute: ``*_f32`` as they are, ``*_f64`` the same code or its closed form
in float64. Positions reach 100,000.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
import torch
from golden_tools import GOLDEN, golden
from torch import Tensor

from pe.encodings import encoding
from pe.encodings.rope import RoPE

NEAR = 256  # as far as the published float32 tables are good to 2e-5


@cache
def configurations(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{method}.json").read_text())["configs"]
    return {name: given for name, given in found.items() if name.endswith("__")}


METHODS = ("linear_pi", "ntk_static", "dynamic_ntk", "llama3_scaling", "resonance_rope", "yarn")
CONFIGURATIONS = [
    (m, c) for m in METHODS for c in configurations(m) if m != "yarn" or c.startswith("dyn")
]
ALL = pytest.mark.parametrize(("method", "config"), CONFIGURATIONS)
FULL = pytest.mark.parametrize(
    ("method", "config"),
    [(m, c) for m, c in CONFIGURATIONS if f"{c}cos_f64" in golden(m)],
)


def spec(method: str, config: str) -> tuple[str, dict[str, Any]]:
    """(what the configuration is called here, its options)."""
    given = configurations(method)[config]
    options: dict[str, Any] = {"theta": float(given.get("rope_theta", given.get("theta", 0)))}
    if method == "linear_pi":
        return "pi", options | {"factor": given["factor"]}
    if method == "ntk_static":
        return "ntk", options | {"factor": given["alpha"]}
    if method == "dynamic_ntk":
        length = given["max_position_embeddings"]
        return "dynamic_ntk", options | {"factor": given["factor"], "original_length": length}
    if method == "llama3_scaling":
        names = ("factor", "low_freq_factor", "high_freq_factor")
        options |= {"original_length": given["original_max_position_embeddings"]}
        return "llama3", options | {name: given[name] for name in names}
    if method == "yarn":
        return "yarn", options | {"dynamic": True, "original_length": given["original"]}
    options = {"theta": float(given["base"])}
    before, factor = config.split("_")[0], given.get("scaling_factor")
    if before == "ntk4":
        return "ntk+resonance", options | {"factor": factor}
    if before == "yarn":
        options |= {"factor": factor, "original_length": given["max_position_embeddings"]}
        options |= {"beta_fast": 2.0 if "b2" in config else 32.0, "beta_slow": 1.0}
        return "yarn+resonance", options
    return "resonance", options


def build(method: str, config: str) -> RoPE:
    name, options = spec(method, config)
    enc = encoding(name, head_dim=64, num_heads=2, **options)
    assert isinstance(enc, RoPE)
    return enc


def lengths(method: str, config: str) -> Tensor | None:
    """The length whose frequencies the file holds, where they depend on it."""
    length = configurations(method)[config].get("seq_len")
    return None if length is None else torch.tensor(length)


def error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.detach().double() - theirs.double()).abs().max())


@ALL
def test_frequencies_and_magnitude(method: str, config: str) -> None:
    arrays, spectrum = golden(method), build(method, config).frequencies(lengths(method, config))
    assert spectrum.inv_freq.dtype == torch.float64
    prefix = f"{config}r_inv_freq" if method == "resonance_rope" else f"{config}inv_freq"
    if f"{prefix}_f64" in arrays:
        torch.testing.assert_close(spectrum.inv_freq, arrays[f"{prefix}_f64"], rtol=1e-12, atol=0)
    torch.testing.assert_close(
        spectrum.inv_freq.float(), arrays[f"{prefix}_f32"], rtol=2e-6, atol=0
    )
    # What the file leaves out for some lengths is 1 there.
    scaling = float(arrays.get(f"{config}attention_scaling", torch.tensor(1.0)))
    assert float(spectrum.magnitude) == pytest.approx(scaling, rel=1e-12)


def inside(method: str, config: str) -> tuple[Tensor, Tensor]:
    """Which of the file's rows lie in a text of its length, and where all keys of it stand.

    One more key is the text's last token. (For L = 16,384 the file goes on to position 100,000
    with frequencies that the published code would use in a shorter text only.)
    """
    positions, length = golden(method)["positions"], lengths(method, config)
    if length is None:
        return torch.ones_like(positions, dtype=torch.bool), positions
    rows = positions < length
    return rows, torch.cat((positions[rows], length[None] - 1))


@FULL
def test_tables(method: str, config: str) -> None:
    arrays, enc, (rows, keys) = golden(method), build(method, config), inside(method, config)
    positions = arrays["positions"][rows]
    near = positions <= NEAR
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-7)):
        found = enc.prepare(positions, keys, dtype).tables[0]
        for table, name in zip(found, ("cos", "sin"), strict=True):
            assert table.dtype == dtype
            assert error(table[0, 0], arrays[f"{config}{name}_f64"][rows]) < tolerance
            assert error(table[0, 0, near], arrays[f"{config}{name}_f32"][rows][near]) < 2e-5


@FULL
def test_rotated_vectors_and_logits(method: str, config: str) -> None:
    # Phases are built in float64, so float32 is as good at 100,000 as at 1.
    arrays, enc, (rows, keys) = golden(method), build(method, config), inside(method, config)
    for dtype, tolerance in ((torch.float64, 1e-8), (torch.float32, 1e-5)):
        q, k = (arrays[name][:, :, rows].to(dtype) for name in "qk")
        n = q.shape[2]
        longer = k[:, :, [*range(n), *[n - 1] * (len(keys) - n)]]
        q, longer = enc.rotate(q, longer, arrays["positions"][rows], keys)
        k = longer[:, :, :n]
        if f"{config}q_rot_f64" in arrays:
            assert error(q, arrays[f"{config}q_rot_f64"][:, :, rows]) < tolerance
            assert error(k, arrays[f"{config}k_rot_f64"][:, :, rows]) < tolerance
        name = "logits_f64_halfsplit" if method == "resonance_rope" else "logits_f64"
        if f"{config}{name}" in arrays:
            want = arrays[f"{config}{name}"][:, :, rows][..., rows]
            assert error(q @ k.mT / 8, want) < tolerance


@pytest.mark.parametrize("config", configurations("resonance_rope"))
def test_wavelengths_are_the_authors_integers(config: str) -> None:
    # The authors round in float32. In none of these configurations does that change an integer; it
    # does by 1 in wavelengths of some hundred thousand tokens and more, where 1 is nothing.
    arrays = golden("resonance_rope")
    period = build("resonance_rope", config).get_buffer("period")
    assert torch.equal(period, arrays[f"{config}r_wavelengths"])
    assert torch.equal(period, arrays[f"{config}r_wavelengths_if_rounded_in_f64"])
    unrounded = arrays[f"{config}unrounded_wavelengths_f64"]
    assert ((period - unrounded).abs() <= 0.5).all()


def test_the_published_classes_that_remember_are_matched_where_they_remember_nothing() -> None:
    """transformers' rotary module depends on the calls before: here every call is the first.

    It keeps the longest length seen until a text shorter than the training length comes along.
    """
    arrays = golden("dynamic_ntk")
    enc = encoding("dynamic_ntk", head_dim=64, num_heads=2, original_length=4096, factor=2.0)
    assert isinstance(enc, RoPE)
    seen, kept = 0, arrays["stateful_inv_freq_f32"]
    assert arrays["stateful_seq_lens"].tolist() == [100, 4096, 5000, 20000, 6000, 4096, 4095, 4097]
    differs = []
    for length, theirs in zip(arrays["stateful_seq_lens"].tolist(), kept, strict=True):
        seen = 0 if length < 4096 else max(seen, length)
        ours, remembered = (
            enc.frequencies(torch.tensor(n)).inv_freq.float() for n in (length, seen or length)
        )
        torch.testing.assert_close(remembered, theirs, rtol=2e-6, atol=0)
        differs.append(not torch.allclose(ours, theirs, rtol=1e-4, atol=0))
    assert differs == [False, False, False, False, True, True, False, False]
