"""Partial RoPE, p-RoPE, multiscale RoPE, xPos, FoPE, iRoPE and SSMax against published code.

tests/golden holds what that code computed: ``*_f64`` in float64, ``*_f32`` as it is. Where a
float32 result is far off, its own phases are, so ours is compared with it near the start only.
"""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
import torch
from golden_tools import GOLDEN, golden
from torch import Tensor

from pe.attention import attend, scaled
from pe.encodings import Encoding, encoding

EXACT, FLOAT32 = 1e-8, 1e-5


def configurations(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{method}.json").read_text())["configs"]
    return found


def far_from(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.detach().double() - theirs.double()).abs().max())


def rotations_agree(enc: Encoding, method: str, config: str, positions: Tensor) -> None:
    arrays = golden(method)
    near = arrays if f"{config}q" not in arrays else {n: arrays[config + n] for n in "qk"}
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, FLOAT32)):
        q, k = enc.rotate(near["q"].to(dtype), near["k"].to(dtype), positions, positions)
        assert q.dtype == k.dtype == dtype
        assert far_from(q, arrays[f"{config}q_rot_f64"]) < tolerance
        assert far_from(k, arrays[f"{config}k_rot_f64"]) < tolerance
        logits = (q.double() @ k.double().mT / q.shape[-1] ** 0.5).tril()
        # What the mask hides may be large in xPos.
        assert far_from(logits, arrays[f"{config}logits_f64"].tril()) < tolerance


@pytest.mark.parametrize("config", configurations("partial_and_p_rope"))
def test_partial_and_p_rope(config: str) -> None:
    arrays, given = golden("partial_and_p_rope"), configurations("partial_and_p_rope")[config]
    sizes: dict[str, Any] = {"head_dim": 64, "num_heads": 2}
    if config == "gptj_partial__":
        sizes |= {"rotary_fraction": given["rotary_dim"] / 64, "layout": "interleaved"}
        enc = encoding("partial", **sizes)
    elif given["rope_type"] == "default":
        enc = encoding("partial", **sizes, rotary_fraction=given["partial_rotary_factor"])
    else:
        enc = encoding("p_rope", **sizes, p=given["partial_rotary_factor"])
    inv_freq = enc.get_buffer("inv_freq")
    torch.testing.assert_close(inv_freq, arrays[f"{config}inv_freq_f64"], rtol=1e-12, atol=0)
    rotations_agree(enc, "partial_and_p_rope", config, arrays["positions"])


@pytest.mark.parametrize("config", configurations("multiscale_rope"))
def test_multiscale_rope(config: str) -> None:
    arrays, given = golden("multiscale_rope"), configurations("multiscale_rope")[config]
    low, high = given["base_range"]
    enc = encoding(
        "multiscale_rope", head_dim=given["dim"], num_heads=given["heads"], theta_min=low,
        theta_max=high, scaling_factor=given["scaling_factor"],
    )  # fmt: skip
    inv_freq = enc.get_buffer("inv_freq")
    torch.testing.assert_close(inv_freq, arrays[f"{config}inv_freq_f64"], rtol=1e-12, atol=0)
    rotations_agree(enc, "multiscale_rope", config, torch.arange(16))


@pytest.mark.parametrize("config", ["c0__", "c1__", "c2__", "c3__"])
def test_xpos(config: str) -> None:
    arrays, given = golden("xpos"), configurations("xpos")[config]
    width, base = given["head_dim"], float(given["scale_base"])
    enc = encoding("xpos", head_dim=width, num_heads=2, scale_base=base)
    zeta = (enc.get_buffer("rate") * base).exp()
    torch.testing.assert_close(zeta, arrays[f"{config}zeta_f64"], rtol=1e-12, atol=0)
    rotations_agree(enc, "xpos", config, arrays[f"{config}positions"])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, EXACT), (torch.float32, FLOAT32), (torch.bfloat16, 0.05),
     (torch.float16, 0.01)],
)  # fmt: skip
def test_xpos_up_to_position_100_000(dtype: torch.dtype, tolerance: float) -> None:
    arrays = golden("xpos")
    enc = encoding("xpos", head_dim=64, num_heads=2)
    q, k, p = arrays["far_q"].to(dtype), arrays["far_k"].to(dtype), arrays["far_positions"]
    q, k = enc.rotate(q, k, p, p)
    wide = torch.promote_types(dtype, torch.float32)
    logits = q.to(wide) @ k.to(wide).mT / 8
    assert logits.isfinite().all()  # also where the mask will hide them
    assert far_from(logits.tril(), arrays["far_causal_logits_f64"]) < tolerance


@pytest.mark.parametrize("config", configurations("fope"))
def test_fope(config: str) -> None:
    arrays, given = golden("fope"), configurations("fope")[config]
    enc = encoding(
        "fope", head_dim=64, num_heads=2, original_length=given["max_sequence_length"],
        **({"dropped": "ones"} if given.get("fourier_ignore_zero", True) else {"keep_zero": True}),
    )  # fmt: skip
    kept = arrays[f"{config}inv_freq_kept_f64"]
    torch.testing.assert_close(enc.get_buffer("inv_freq"), kept, rtol=1e-12, atol=0)
    for ours, theirs in (("cos_mix", "cos_coef"), ("sin_mix", "sin_coef")):
        assert enc.get_parameter(ours).shape == arrays[config + theirs].shape
        enc.get_parameter(ours).copy_(arrays[config + theirs])
    rotations_agree(enc, "fope", config, arrays["positions"])
    first = torch.arange(16)
    q, _ = enc.rotate(arrays["q"], arrays["k"], first, first)
    assert far_from(q, arrays[f"{config}forward_q_positions_0_15_f32"]) < FLOAT32


def projected(hidden: Tensor, weight: Tensor, heads: int) -> Tensor:
    flat = hidden @ weight.mT.to(hidden.dtype)
    return flat.view(*flat.shape[:-1], heads, 16).transpose(1, 2)


@pytest.mark.parametrize(("layer", "index"), [("rope_layer__", 0), ("nope_layer__", 3)])
def test_irope(layer: str, index: int) -> None:
    arrays = golden("llama4_irope")
    given = configurations("llama4_irope")
    assert given["no_rope_layers"][index] == (layer == "rope_layer__")
    enc = encoding(
        "irope", head_dim=16, num_heads=2, num_kv_heads=1, layer_index=index,
        floor_scale=given["floor_scale"], attn_scale=given["attn_scale"],
    )  # fmt: skip
    positions = torch.arange(16)
    # Llama 4 cuts the layers that rotate into chunks; that is the caller's mask.
    mask = arrays["chunk_mask_bool"] if index == 0 else torch.ones(16, 16).tril().bool()
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, FLOAT32)):
        hidden = arrays["hidden"].to(dtype)
        heads = {"Wq": 2, "Wk": 1, "Wv": 1}
        q, k, v = (projected(hidden, arrays[layer + w], n) for w, n in heads.items())
        turned_q, turned_k = enc.rotate(q, k, positions, positions)
        turned_q = scaled(turned_q, enc.logit_scale(positions))
        logits = (turned_q @ turned_k.mT / 4)[0]
        assert far_from(logits.tril(), arrays[f"{layer}logits_f64"].tril()) < tolerance
    out = attend(enc, q, k, v, positions, positions, mask=mask)
    out = out.transpose(1, 2).flatten(-2) @ arrays[f"{layer}Wo"].mT
    assert far_from(out, arrays[f"{layer}attn_out_f32"]) < FLOAT32
    one = torch.eye(16)[None, None]  # values that let the probabilities through
    probabilities = attend(enc, q, k, one, positions, positions, mask=mask)
    assert far_from(probabilities[0], arrays[f"{layer}attn_probs_f64"]) < FLOAT32


def test_the_temperature_of_irope() -> None:
    arrays = golden("llama4_irope")
    enc = encoding("irope", head_dim=16, num_heads=2, layer_index=3)
    scale = enc.logit_scale(arrays["temp_positions"])
    assert scale is not None
    torch.testing.assert_close(scale[0], arrays["temp_scale"], rtol=1e-15, atol=0)


def test_the_temperature_of_irope_is_as_exact_as_the_queries() -> None:
    enc = encoding("irope", head_dim=16, num_heads=1, layer_index=3, floor_scale=1)
    q, positions = torch.ones(1, 1, 3, 16), torch.tensor([0, 1, 2])
    exact = 1 + 0.1 * math.log1p(3)
    for dtype, error in ((torch.float64, 1e-15), (torch.float32, 1e-7), (torch.bfloat16, 5e-3)):
        for module in (enc, copy.deepcopy(enc).double()):
            result = scaled(q.to(dtype), module.logit_scale(positions))
            assert result.dtype == dtype
            assert abs(float(result[0, 0, 2, 0]) / exact - 1) < error


@pytest.mark.parametrize("with_bias", [False, True])
def test_ssmax(with_bias: bool) -> None:
    arrays = golden("ssmax")
    enc = encoding(
        "ssmax", head_dim=32, num_heads=2, original_length=1024, with_bias=with_bias
    ).double()
    mean = 1 / enc.get_parameter("s").detach()
    assert far_from(mean, arrays["mean_log_n_1_to_1024"].expand(2)) < 1e-6
    with torch.no_grad():
        for name, parameter in enc.named_parameters():
            parameter.copy_(arrays[name])
    positions = torch.arange(16)
    scale = enc.logit_scale(positions)
    assert scale is not None
    if not with_bias:
        assert far_from(scale, arrays["query_scale"]) < 1e-12
    name = "probs_causal_bias_f64" if with_bias else "probs_causal_f64"
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, FLOAT32)):
        own, q, k = enc.to(dtype), arrays["q"].to(dtype), arrays["k"].to(dtype)
        logits = q @ k.mT / math.sqrt(32)
        assert far_from(logits, arrays["logits_before"]) < tolerance
        one = torch.eye(16, dtype=dtype)[None, None].expand(1, 2, 16, 16)
        probabilities = attend(own, q, k, one, positions, positions)
        assert far_from(probabilities, arrays[name]) < tolerance


def test_ssmax_where_every_query_sees_all_keys() -> None:
    arrays = golden("ssmax")
    enc = encoding("ssmax", head_dim=32, num_heads=2, original_length=1024).double()
    with torch.no_grad():
        enc.get_parameter("s").copy_(arrays["s"])
    scale = enc.logit_scale(torch.full((16,), 15))
    assert scale is not None
    probabilities = (arrays["logits_before"] * scale[..., None]).softmax(-1)
    # the package that this comes from holds s in float32
    assert far_from(probabilities[0, 0], arrays["full_row_probs_n16_s"]) < 1e-7
    lengths, expected = arrays["log_n_lengths"], arrays["log_n"]
    with torch.no_grad():
        enc.get_parameter("s").fill_(1.0)
    grown = enc.logit_scale(lengths - 1)
    assert grown is not None
    assert far_from(grown[0], expected) < EXACT
