"""Stick-breaking, PaTH, DAPE, BAM, LeRoPE and relative logits against their authors' numbers."""

from __future__ import annotations

import math

import pytest
import torch
from golden_tools import golden
from torch import Tensor, nn

from pe.attention import attend
from pe.attention.dense import attention_weights, dense_attention
from pe.encodings import encoding
from pe.encodings.alibi import alibi_slopes
from pe.encodings.bam import BAM
from pe.encodings.dape import DAPE
from pe.encodings.fox import FoX
from pe.encodings.kerple import KerpleLog
from pe.encodings.path import PaTH
from pe.encodings.relative_content import RelativeContent
from pe.encodings.stickbreaking import StickBreaking

EXACT = 1e-9
HEADS = pytest.mark.parametrize("heads", [4, 8, 12])


def close(ours: Tensor, theirs: Tensor, error: float = EXACT) -> None:
    torch.testing.assert_close(ours.detach(), theirs.to(ours.dtype), atol=error, rtol=0)


def arrays(method: str, heads: int, names: str) -> list[Tensor]:
    """Arrays of (B, T, H, ...) as (B, H, T, ...)."""
    return [golden(method)[f"{name}__h{heads}"].transpose(1, 2) for name in names.split()]


# ------------------------------------------------------------------ stick-breaking


@HEADS
@pytest.mark.parametrize("current", [False, True])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
def test_stickbreaking(heads: int, current: bool, dtype: torch.dtype, error: float) -> None:
    q, k, v = (x.to(dtype) for x in arrays("stickbreaking", heads, "q k v"))
    out, rest = arrays("stickbreaking", heads, f"out_ac{current:d} rem_ac{current:d}")
    enc, places = StickBreaking(heads, attend_current=current), torch.arange(16)
    close(attend(enc, q, k, v), out, error)
    close(attend(enc, q, k, v, backend="dense"), out, error)
    bias = enc.bias(q, k, places, places)
    weights = attention_weights(q, k, 1 / math.sqrt(8), bias, None, enc.sink_logit())
    close(weights, golden("stickbreaking")[f"att_ac{current:d}__h{heads}"], error)
    close(1 - weights.sum(-1), rest, error)


def test_stickbreaking_of_16_384_keys_is_that_of_float64() -> None:
    length, places = 16_384, torch.arange(16_384)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(1, 1, 1, 8, generator=generator, dtype=torch.float64)
    k = torch.randn(1, 1, length, 8, generator=generator, dtype=torch.float64)
    k = k - 2.5 * q  # breaks are rare, so that the search goes far
    enc, weights = StickBreaking(1), []
    for dtype in (torch.float64, torch.float32):
        bias = enc.bias(q.to(dtype), k.to(dtype), places[-1:], places)
        weights.append(
            attention_weights(
                q.to(dtype), k.to(dtype), 1 / math.sqrt(8), bias, None, enc.sink_logit()
            )
        )
    logits = (q @ k.mT)[0, 0, 0, :-1] / math.sqrt(8)
    left = (-nn.functional.softplus(logits)).flip(0).cumsum(0).flip(0)
    close(weights[0][0, 0, 0, :-1], (logits + left).exp())
    close(weights[1], weights[0], 1e-5)
    assert float(weights[0][..., : length // 2].sum()) > 0.01


def test_nothing_but_what_limits_the_keys_is_added_to_stickbreaking() -> None:
    for other in ("rope", "alibi", "ssmax", "sink", "yarn"):
        with pytest.raises(ValueError, match=f"stickbreaking takes its weights .*{other}"):
            encoding(f"stickbreaking+{other}", head_dim=8, num_heads=2, original_length=16)
    assert encoding("stickbreaking+window:4+sinks:1", head_dim=8, num_heads=2).hides


# ------------------------------------------------------------------ PaTH


def path_of(heads: int) -> PaTH:
    return PaTH(8, heads, heads, 8 * heads)


@pytest.mark.parametrize("heads", [4, 8])
def test_path(heads: int) -> None:
    q, k, v, w, beta = arrays("path_attn", heads, "q k v w beta")
    state, places = torch.cat((w, beta[..., None]), -1), torch.arange(16)
    bias = path_of(heads).bias(q, k, places, places, state)
    logits = q @ k.mT + bias * math.sqrt(8)
    close(logits.tril(), golden("path_attn")[f"logits_unscaled__h{heads}"].tril())
    out = dense_attention(q, k, v, 1 / math.sqrt(8), bias)
    close(out, arrays("path_attn", heads, "out_nogate")[0])
    hidden = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril()
    close(path_of(heads).bias(q, k, places, places, state, hidden).tril(), bias.tril())
    (gates,) = arrays("path_attn", heads, "g")
    bias = bias + FoX(heads, 8).bias(q, k, places, places, gates[..., None])
    out = dense_attention(q, k, v, 1 / math.sqrt(8), bias)
    close(out, arrays("path_attn", heads, "out_gate_postscale")[0])


def test_path_multiplies_reflections_from_the_key_to_the_query() -> None:
    """One logit by matrices, with a token that the query does not see left out."""
    enc, x = path_of(2).double(), torch.randn(1, 5, 16, dtype=torch.float64)
    q, k = torch.randn(2, 1, 2, 5, 8, dtype=torch.float64).unbind()
    state, places = enc.key_state(x), torch.arange(5)
    close(enc.key_state(x[:, 1:]), state[:, :, 1:].detach())
    mask = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    mask[..., 4, 2] = False
    bias = enc.masked_bias(q, k, places, places, state, mask)
    for query, key, between in ((4, 1, (4, 3)), (3, 1, (3, 2))):
        way = q[0, 0, query]
        for token in between:
            w, beta = state[0, 0, token, :-1], state[0, 0, token, -1]
            way = way - beta * (way @ w) * w
        want = (way - q[0, 0, query]) @ k[0, 0, key] / math.sqrt(8)
        close(bias[0, 0, query, key], want.detach())


# ------------------------------------------------------------------ DAPE


@pytest.mark.parametrize("prior", ["kerple_log", "alibi"])
def test_dape_is_the_authors_network_over_logits_and_biases(prior: str) -> None:
    heads, length, places = 4, 7, torch.arange(7)
    enc = encoding("dape", head_dim=8, num_heads=heads, prior=prior, mlp_width=6).double()
    assert isinstance(enc, DAPE)
    mlp = nn.Sequential(nn.Linear(2 * heads, 6), nn.LeakyReLU(), nn.Linear(6, heads)).double()
    names = ("hidden_weight", "hidden_bias", "head_weight", "head_bias")
    mlp.load_state_dict(dict(zip(mlp.state_dict(), map(enc.get_parameter, names), strict=True)))
    distance = (places[:, None] - places).clamp(min=0).double()
    if isinstance(enc.prior, KerpleLog):
        p, a = (x[:, None, None].detach().clamp(min=0.01) for x in (enc.prior.p, enc.prior.a))
        fixed = -p * torch.log(1 + a * distance)
    else:
        fixed = -alibi_slopes(heads)[:, None, None].double() * distance
    q, k = torch.randn(2, 2, heads, length, 8, dtype=torch.float64).unbind()
    logits = q @ k.mT / math.sqrt(8)
    both = torch.cat((logits, fixed.tile(2, 1, 1, 1)), 1).permute(0, 2, 3, 1)
    want = fixed + mlp(both).permute(0, 3, 1, 2)
    found = enc.bias(q, k, places, places)
    assert found is not None
    close(found.tril(), want.detach().tril(), 1e-7)  # slopes are held in float32


# ------------------------------------------------------------------ BAM, LeRoPE, relative logits


def test_bam_is_the_authors_prior() -> None:
    enc = BAM(3, learn_shift=True).double()
    with torch.no_grad():
        for parameter in enc.parameters():
            parameter.normal_()
    positions = torch.arange(9).double()
    alpha, beta, theta = (p.detach()[:, None, None] for p in enc.parameters())
    # Their code counts from the query to the key, so that its theta has the other sign.
    away = positions - positions[:, None] - ((-theta).exp() - theta.exp())
    want = -((away.abs() + 1e-5) ** beta) * alpha.exp()
    found = enc.bias(*torch.zeros(2, 1, 3, 9, 8, dtype=torch.float64), *[torch.arange(9)] * 2)
    close(found[0].tril(), want.tril(), 1e-6)


def test_bam_begins_without_a_preference_and_holds_alibi() -> None:
    distance = torch.arange(50)
    assert (BAM(2).distance_bias(distance) == -1).all()
    line = BAM(1, alpha=math.log(0.25), beta=1.0).distance_bias(distance)[0].detach()
    close(line, -0.25 * distance, 1e-5)
    far = BAM(1, beta=-1.0).distance_bias(distance)[0].detach()
    assert (far.diff() > 0).all()  # the less a key is near, the less it is held back


def test_lerope_is_mistral_large_4s() -> None:
    numbers, enc = golden("lerope"), encoding("lerope", head_dim=16, num_heads=2)
    with torch.no_grad():
        enc.get_parameter("alpha").copy_(numbers["alpha"])
    positions = numbers["positions"]
    (cos, sin), _ = enc.prepare(positions, positions).tables
    close(cos[0, 0], numbers["cos"], 2e-5)  # their phases are float32
    close(sin[0, 0], numbers["sin"], 2e-5)


def test_lerope_begins_as_rope_and_refuses_what_rounds_its_wavelengths() -> None:
    q, k = torch.randn(2, 1, 2, 6, 16).unbind()
    places, sizes = torch.arange(6), {"head_dim": 16, "num_heads": 2, "original_length": 64}
    for more in ("", "+yarn"):
        ours, theirs = (encoding(f"{name}{more}", **sizes) for name in ("lerope", "rope"))
        assert torch.equal(ours.rotate(q, k, places, places)[0],
                           theirs.rotate(q, k, places, places)[0])  # fmt: skip
    with pytest.raises(ValueError, match="lerope.*resonance"):
        encoding("lerope+resonance", **sizes)


def test_relative_content_is_inklings() -> None:
    numbers, places = golden("relative_content"), torch.arange(9)
    enc = RelativeContent(2, 8, d_rel=4, reach=5).double()
    with torch.no_grad():
        enc.profiles.copy_(numbers["profiles"])
        enc.weight.copy_(torch.eye(8))  # the layer's input holds what they project it to
    state = enc.key_state(numbers["states"].flatten(-2))
    q = torch.zeros(2, 2, 9, 8, dtype=torch.float64)
    close(enc.bias(q, q, places, places, state).tril(), numbers["bias"])
    close(enc.bias(q[:, :, -1:], q, places[-1:], places, state), numbers["bias"][:, :, -1:])


def test_relative_content_looks_no_further_than_it_was_trained() -> None:
    assert RelativeContent(2, 8).reach == RelativeContent(2, 8, original_length=4096).reach == 1024
    assert RelativeContent(2, 8, original_length=64).reach == 64
    for spec, reach in (
        ("window:48", 48), ("window:48+sinks:2", 1024), ("chunk:32+window:48", 32),
        ("window:4096", 1024), ("sink", 1024),
    ):  # fmt: skip
        enc = encoding(f"relative_content+{spec}", head_dim=16, num_heads=2, original_length=2048)
        assert [m.reach for m in enc.modules() if isinstance(m, RelativeContent)] == [reach]


@pytest.mark.parametrize("name", ["path", "relative_content"])
def test_what_looks_at_the_layers_input_asks_for_it(name: str) -> None:
    q = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ValueError, match="layer_input"):
        attend(encoding(name, head_dim=8, num_heads=2), q, q, q)
