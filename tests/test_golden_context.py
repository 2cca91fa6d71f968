"""FIRE, CoPE and FoX against what the authors' code computed."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from golden_tools import GOLDEN, golden
from torch import Tensor

from pe.attention import attend
from pe.encodings import encoding
from pe.encodings.cope import CoPE
from pe.encodings.fire import FIRE
from pe.encodings.fox import FoX


def about(method: str) -> dict[str, Any]:
    with np.load(GOLDEN / f"{method}.npz") as arrays:
        return dict(json.loads(str(arrays["params_json"])))


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, check_dtype=False)


def causal(bias: Tensor) -> Tensor:
    return bias.detach().tril()


# ---------------------------------------------------------------- FIRE

FIRE_CASES = [f"{kind}_h{heads}" for kind in ("default", "small", "negc") for heads in (4, 8, 12)]


def fire(case: str, dtype: torch.dtype) -> FIRE:
    options, arrays = about("fire")["cases"][case], golden("fire")
    heads, width = arrays[f"W2__{case}"].shape
    enc = FIRE(heads, mlp_width=width, threshold=options["init_L"], eps=options["eps"])
    enc.to(dtype)
    with torch.no_grad():
        enc.c.fill_(options["c"])
        enc.multiplier.fill_(options["L_multiplier"])
        enc.hidden_weight.copy_(arrays[f"W1__{case}"])
        enc.hidden_bias.copy_(arrays[f"b1__{case}"])
        enc.head_weight.copy_(arrays[f"W2__{case}"])
        enc.head_bias.copy_(arrays[f"b2__{case}"])
    return enc


def fire_bias(enc: FIRE, queries: Tensor, keys: Tensor) -> Tensor:
    q = torch.zeros(1, enc.num_heads or 1, len(queries), 8, dtype=enc.c.dtype)
    found = enc.bias(q, q, queries.long(), keys.long())
    assert found.dtype == enc.c.dtype
    return found[0].detach()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("case", FIRE_CASES)
def test_fire_is_the_authors(case: str, dtype: torch.dtype) -> None:
    arrays, enc = golden("fire"), fire(case, dtype)
    tolerance = about("fire")["tol"][str(dtype).removeprefix("torch.")]
    for length in (16, 40):
        places = torch.arange(length)
        close(fire_bias(enc, places, places).tril(), arrays[f"bias__{case}_L{length}"], tolerance)
        share = enc.share(places, places, dtype).detach().tril()
        close(share, arrays[f"normdist__{case.split('_')[0]}_L{length}"], tolerance)
    queries, keys = arrays["far_query_positions"], arrays["far_key_positions"]
    close(fire_bias(enc, queries, keys), arrays[f"bias_far__{case}"], tolerance)


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_fire_is_the_authors_at_positions_with_gaps(heads: int) -> None:
    arrays, enc = golden("fire"), fire(f"small_h{heads}", torch.float64)
    places = arrays[f"randpos__h{heads}"]
    close(fire_bias(enc, places, places).tril(), arrays[f"bias_randpos__h{heads}"], 1e-6)


def test_fire_begins_as_the_listing() -> None:
    enc = encoding("fire", head_dim=8, num_heads=4, original_length=2048)
    assert isinstance(enc, FIRE)
    options = about("fire")["cases"]["default_h4"]
    assert enc.c.item() == pytest.approx(options["c"])
    assert enc.multiplier.item() == options["L_multiplier"]
    assert (enc.threshold, enc.eps) == (options["init_L"], options["eps"])
    assert enc.hidden_weight.shape == (options["mlp_width"], 1)


# ---------------------------------------------------------------- CoPE

COPE_CASES = [f"n{npos}_h{heads}" for npos in (3, 8, 64) for heads in (4, 8)]


def cope(case: str, **options: Any) -> CoPE:
    arrays = golden("cope")
    width, npos = arrays[f"pos_emb__{case}"].shape
    enc = CoPE(width, npos=npos, **options).double()
    with torch.no_grad():
        enc.table.copy_(arrays[f"pos_emb__{case}"].t())
    return enc


@pytest.mark.parametrize("case", COPE_CASES)
def test_cope_counts_and_reads_as_the_authors(case: str) -> None:
    arrays, enc = golden("cope"), cope(case, divide=False)
    q, k = arrays[f"q__{case}"], arrays[f"k__{case}"]
    gates = enc.gates(q, k)
    close(causal(gates), arrays[f"gates__{case}"].tril(), 1e-9)
    assert torch.equal(gates, gates.tril())
    counts = enc.counts(gates)
    close(causal(counts), arrays[f"pos__{case}"].tril(), 1e-9)
    term = enc.bias(q, k, torch.arange(16), torch.arange(16))
    close(causal(term), arrays[f"cope_logits__{case}"].tril(), 1e-9)
    logits = q @ k.mT / math.sqrt(q.shape[-1]) + term
    hidden = ~torch.ones(16, 16, dtype=torch.bool).tril()
    weights = logits.masked_fill(hidden, float("-inf")).softmax(-1)
    close(weights.detach(), arrays[f"attn__{case}"], 1e-9)


@pytest.mark.parametrize("case", COPE_CASES)
@pytest.mark.parametrize("backend", ["dense", "sdpa"])
@pytest.mark.parametrize("divide", [True, False])
def test_cope_is_the_authors_and_the_listing(case: str, backend: str, divide: bool) -> None:
    """The authors' code divides the term by sqrt(d) unless told not to; the listing does not."""
    arrays, enc = golden("cope"), cope(case, divide=divide)
    q, k, v = (arrays[f"{x}__{case}"] for x in "qkv")
    out = attend(enc, q, k, v, torch.arange(16), torch.arange(16), backend=backend)
    want = arrays[f"out_official_default_div__{case}" if divide else f"out__{case}"]
    close(out.detach(), want, about("cope")["tol"])


# ---------------------------------------------------------------- FoX


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_fox_adds_gates_up_as_the_authors(heads: int) -> None:
    arrays, enc, tolerance = golden("fox"), FoX(heads, 6).double(), about("fox")["tol"]
    q, k, v = (arrays[f"{x}__h{heads}"].transpose(1, 2) for x in "qkv")
    state = arrays[f"log_fgate__h{heads}"].transpose(1, 2)[..., None]
    places, x = torch.arange(16), q.new_zeros(len(q), 16, 6)
    bias = enc.bias(q, k, places, places, state)
    close(causal(bias), arrays[f"bias__h{heads}"], tolerance)
    for backend in ("dense", "sdpa"):
        enc.key_state = lambda x: state  # type: ignore[method-assign]
        out = attend(enc, q, k, v, places, places, backend=backend, layer_input=x)
        close(out.detach().transpose(1, 2), arrays[f"out__h{heads}"], tolerance)


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_fox_takes_gates_from_the_layer_input_as_the_authors(heads: int) -> None:
    arrays, enc = golden("fox"), FoX(heads, 6).double()
    with torch.no_grad():
        enc.weight.copy_(arrays[f"proj_W__h{heads}"])
        enc.beta.copy_(arrays[f"proj_b__h{heads}"])
    state = enc.key_state(arrays[f"proj_x__h{heads}"])
    q = torch.zeros(2, heads, 16, 8, dtype=torch.float64)
    bias = enc.bias(q, q, torch.arange(16), torch.arange(16), state)
    close(causal(bias), arrays[f"proj_bias__h{heads}"], about("fox")["tol"])
