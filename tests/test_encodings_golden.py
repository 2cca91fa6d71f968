"""Agreement with published code, number by number.

tests/golden holds arrays made by running the authors' or transformers' code: ``*_f32`` as it is,
``*_f64`` the same in float64. Positions reach 100,000.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from golden_tools import GOLDEN, golden
from torch import Tensor

from pe.encodings import Encoding, encoding
from pe.encodings.core.frequencies import cos_sin

# float32 error of transformers' own tables grows with position; ours is judged where theirs is fine
NEAR = 256


@cache
def configurations(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{method}.json").read_text())["configs"]
    return found


def named(*methods: str) -> list[tuple[str, str]]:
    return [(m, c) for m in methods for c in configurations(m) if c.endswith("__")]


def build(method: str, config: str) -> Encoding:
    given = configurations(method)[config]
    sizes: dict[str, Any] = {"head_dim": 64, "num_heads": 2}
    if method == "pope":
        enc = encoding("pope", **sizes, theta=given["theta"], rotary_fraction=given["dim"] / 64)
        set_delta(enc, golden(method)[f"{config}delta_raw"])
        return enc
    if method.startswith("rope"):
        layout = "half" if method == "rope_halfsplit" else "interleaved"
        return encoding("rope", **sizes, theta=float(given["theta"]), layout=layout)
    if config.startswith("dyn"):
        return encoding("yarn", **sizes, original_length=given["original"], factor=given["scale"])
    names = ("factor", "truncate", "mscale", "mscale_all_dim", "beta_fast", "beta_slow",
             "attention_factor")  # fmt: skip
    options = {name: given[name] for name in names if name in given}
    length = given["original_max_position_embeddings"]
    return encoding("yarn", **sizes, original_length=length, theta=given["rope_theta"], **options)


def set_delta(enc: Encoding, delta: Tensor) -> None:
    enc.to(torch.float64)  # as float32 the bounds -2 pi and 0 are not all exact
    with torch.no_grad():
        enc.get_parameter("delta").copy_(delta)


def rotated(enc: Encoding, arrays: dict[str, Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    q, k, positions = arrays["q"].to(dtype), arrays["k"].to(dtype), arrays["positions"]
    q, k = enc.rotate(q, k, positions, positions)
    assert q.dtype == k.dtype == dtype
    return q.detach(), k.detach()


def error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.double() - theirs.double()).abs().max())


def rotations(method: str, config: str) -> Iterator[tuple[str, float, float]]:
    """(array, worst error in float64, worst error in float32) against the float64 arrays."""
    arrays, enc = golden(method), build(method, config)
    q, k = rotated(enc, arrays, torch.float64)
    q32, k32 = rotated(enc, arrays, torch.float32)
    yield "q", error(q, arrays[f"{config}q_rot_f64"]), error(q32, arrays[f"{config}q_rot_f64"])
    yield "k", error(k, arrays[f"{config}k_rot_f64"]), error(k32, arrays[f"{config}k_rot_f64"])
    logits, logits32 = (a @ b.transpose(-1, -2) / 8 for a, b in ((q, k), (q32, k32)))
    want = arrays[f"{config}logits_f64"]
    yield "logits", error(logits, want), error(logits32, want)


@pytest.mark.parametrize(("method", "config"), named("rope_halfsplit", "rope_interleaved", "yarn"))
def test_frequencies_and_magnitude(method: str, config: str) -> None:
    arrays, enc = golden(method), build(method, config)
    inv_freq = enc.get_buffer("inv_freq")
    assert inv_freq.dtype == torch.float64
    exact = arrays.get(f"{config}inv_freq_f64")
    if exact is not None:
        torch.testing.assert_close(inv_freq, exact, rtol=1e-12, atol=0)
    rounded = arrays[f"{config}inv_freq_f32"]
    torch.testing.assert_close(inv_freq.float(), rounded, rtol=2e-6, atol=0)
    scaling = float(arrays[f"{config}attention_scaling"])
    assert enc.magnitude == pytest.approx(scaling, rel=1e-12)


def with_array(method: str, array: str) -> list[tuple[str, str]]:
    return [(m, c) for m, c in named(method) if f"{c}{array}" in golden(m)]


ROTATED = [
    *with_array("rope_halfsplit", "q_rot_f64"),
    *with_array("rope_interleaved", "q_rot_f64"),
    *with_array("yarn", "q_rot_f64"),
]


@pytest.mark.parametrize(("method", "config"), ROTATED)
def test_tables(method: str, config: str) -> None:
    arrays, enc = golden(method), build(method, config)
    positions, inv_freq = arrays["positions"], enc.get_buffer("inv_freq")
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-7)):
        cos, sin = (t * enc.magnitude for t in cos_sin(positions, inv_freq, dtype))
        assert cos.dtype == dtype
        assert error(cos, arrays[f"{config}cos_f64"]) < tolerance
        assert error(sin, arrays[f"{config}sin_f64"]) < tolerance
    near = positions <= NEAR
    for table, name in ((cos, "cos_f32"), (sin, "sin_f32")):
        if f"{config}{name}" in arrays:
            assert error(table[near], arrays[f"{config}{name}"][near]) < 2e-5


@pytest.mark.parametrize(("method", "config"), ROTATED)
def test_rotated_vectors_and_logits(method: str, config: str) -> None:
    # Phases are built in float64, so float32 is as good at 100,000 as at 1.
    for name, exact, single in rotations(method, config):
        assert exact < 1e-8, name
        assert single < 1e-5, name


@pytest.mark.parametrize(
    ("method", "config"), named("rope_halfsplit", "rope_interleaved"), ids="-".join
)
def test_float32_agrees_with_published_float32_code_nearby(method: str, config: str) -> None:
    arrays, enc = golden(method), build(method, config)
    near = arrays["positions"] <= NEAR
    q, k = rotated(enc, arrays, torch.float32)
    assert error(q[:, :, near], arrays[f"{config}q_rot_f32"][:, :, near]) < 5e-5
    assert error(k[:, :, near], arrays[f"{config}k_rot_f32"][:, :, near]) < 5e-5
    if f"{config}logits_f32" in arrays:
        logits = (q @ k.transpose(-1, -2) / 8)[:, :, near][..., near]
        assert error(logits, arrays[f"{config}logits_f32"][:, :, near][..., near]) < 5e-5


def test_bfloat16_angles_would_be_caught() -> None:
    # What the reference records for angles built in bfloat16 is far outside our tolerance.
    for given in configurations("rope_halfsplit").values():
        assert given["max_abs_err_cos_if_angles_in_bf16"] > 1.9


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_the_two_layouts_differ_by_a_permutation(theta: float) -> None:
    arrays = golden("rope_interleaved")
    permutation = arrays["perm_interleaved_to_half"]
    half = encoding("rope", head_dim=64, num_heads=2, theta=theta)
    interleaved = encoding("rope", head_dim=64, num_heads=2, theta=theta, layout="interleaved")
    q, k, p = arrays["q"], arrays["k"], arrays["positions"]
    a_q, a_k = interleaved.rotate(q, k, p, p)
    b_q, b_k = half.rotate(q[..., permutation], k[..., permutation], p, p)
    assert torch.equal(a_q[..., permutation], b_q)
    assert torch.equal(a_k[..., permutation], b_k)
    wrong, _ = half.rotate(q, k, p, p)
    assert error(wrong, a_q) > 1


@pytest.mark.parametrize("config", ["c0__", "c1__", "c2__", "c3__"])
def test_pope_scores(config: str) -> None:
    arrays, enc = golden("pope"), build("pope", config)
    inv_freq = enc.get_buffer("inv_freq")
    torch.testing.assert_close(inv_freq, arrays[f"{config}inv_freq_f64"], rtol=1e-12, atol=0)
    torch.testing.assert_close(inv_freq.float(), arrays[f"{config}inv_freq_f32"], rtol=2e-6, atol=0)
    scores = {}
    for dtype in (torch.float64, torch.float32):
        q, k = rotated(enc, arrays, dtype)
        scores[dtype] = q @ k.transpose(-1, -2)
    assert error(scores[torch.float64], arrays[f"{config}scores_raw_f64"]) < 1e-8
    assert error(scores[torch.float64] / 8, arrays[f"{config}scores_scaled_f64"]) < 1e-8
    assert error(scores[torch.float32], arrays[f"{config}scores_raw_f64"]) < 1e-4
    near = arrays["positions"] <= NEAR
    ours = scores[torch.float32][:, :, near][..., near]
    assert error(ours, arrays[f"{config}scores_raw_f32"][:, :, near][..., near]) < 1e-3


@pytest.mark.parametrize("config", ["c0__", "c1__", "c2__", "c3__"])
def test_pope_vectors_up_to_the_order_of_their_parts(config: str) -> None:
    # The reference interleaves real and imaginary parts; ours has all cosines, then all sines.
    arrays, enc = golden("pope"), build("pope", config)
    dim = arrays[f"{config}inv_freq_f64"].shape[0]
    for ours, name in zip(rotated(enc, arrays, torch.float64), "qk", strict=True):
        theirs = arrays[f"{config}{name}_cart_interleaved_f64"]
        assert ours.shape[-1] == 2 * dim + (64 - dim)
        assert error(ours[..., :dim], theirs[..., 0 : 2 * dim : 2]) < 1e-8
        assert error(ours[..., dim : 2 * dim], theirs[..., 1 : 2 * dim : 2]) < 1e-8
        assert torch.equal(ours[..., 2 * dim :], theirs[..., 2 * dim :])


def test_pope_delta_out_of_range_acts_as_its_bound() -> None:
    arrays, enc = golden("pope"), build("pope", "c2__")
    raw, bounded = arrays["c2__delta_raw"], arrays["c2__delta_clamped"]
    assert ((raw < -2 * math.pi) | (raw > 0)).any()
    q, k = rotated(enc, arrays, torch.float64)
    set_delta(enc, bounded)
    for a, b in zip((q, k), rotated(enc, arrays, torch.float64), strict=True):
        assert error(a, b) < 1e-12


def test_pope_with_a_delta_for_each_query_head() -> None:
    # The reference tiles two key heads to four (query head h reads key head h mod 2) and holds a
    # delta for each of the four. Ours holds one a key head: the same with the keys tiled first.
    arrays = golden("pope")
    enc = encoding("pope", head_dim=64, num_heads=4, num_kv_heads=4)
    set_delta(enc, arrays["gqa_delta"])
    tiled = arrays["k"].repeat(1, 2, 1, 1)
    p = arrays["positions"]
    q, k = (x.detach() for x in enc.rotate(arrays["gqa_q"], tiled, p, p))
    scores = q @ k.transpose(-1, -2)
    near = p <= NEAR
    want = arrays["gqa_scores_raw_f32"]
    assert error(scores[:, :, near][..., near], want[:, :, near][..., near]) < 1e-3
    assert error(scores, want) < 0.1  # the reference's phases are float32
    grouped = encoding("pope", head_dim=64, num_heads=4, num_kv_heads=2)
    set_delta(grouped, arrays["gqa_delta"][:2])
    q2, k2 = (x.detach() for x in grouped.rotate(arrays["gqa_q"], arrays["k"], p, p))
    heads = [0, 1]  # their deltas are those of the key heads that they read
    assert error((q2[:, heads] @ k2.transpose(-1, -2)), scores[:, heads]) < 1e-4
