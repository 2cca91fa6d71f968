"""Biases of the distance: ALiBi, T5, KERPLE and Sandwich against published code, and as matrices.

tests/golden holds what the authors' or transformers' code computed in float64, up to distances of
100,000.
"""

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
from pe.attention.dense import dense_attention
from pe.encodings import Encoding, encoding
from pe.encodings.alibi import alibi_slopes
from pe.encodings.core.distance import DistanceBias, distances
from pe.encodings.t5 import T5, bucket_starts

NAMES = ("alibi", "t5", "kerple_log", "kerple_power", "sandwich")
EVERY = pytest.mark.parametrize("name", NAMES)
KERNELS = {"kerple_log": "log", "kerple_power": "pow"}


def tolerance(method: str, dtype: str = "float64") -> float:
    with np.load(GOLDEN / f"{method}.npz") as arrays:
        found = json.loads(str(arrays["params_json"]))["tol"]
    return float(found[dtype] if isinstance(found, dict) else found)


def build(name: str, heads: int, **options: Any) -> DistanceBias:
    enc = encoding(name, head_dim=8, num_heads=heads, **options)
    assert isinstance(enc, DistanceBias)
    return enc


def zeros(enc: Encoding, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Queries of as many heads as the encoding has."""
    return torch.zeros(1, enc.num_heads or 1, length, 8, dtype=dtype)


def causal(enc: Encoding, length: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """(H, T, T), 0 above the diagonal."""
    q, positions = zeros(enc, length, dtype), torch.arange(length)
    matrix = enc.bias(q, q, positions, positions)
    assert matrix is not None
    assert matrix.dtype == dtype
    return matrix[0].detach().tril()


def far(enc: Encoding, distance: Tensor) -> Tensor:
    """(H, n): a query so far on that keys lie at all these distances behind it."""
    q = zeros(enc, 1)
    here = distance.max()
    values = enc.bias(q, q, here[None], here - distance)
    assert values is not None
    return values[0, :, 0].detach()


def close(a: Tensor, b: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


# ---------------------------------------------------------------- ALiBi


@pytest.mark.parametrize("heads", [*range(1, 21), 24, 32, 40, 64])
def test_slopes_are_the_authors_for_any_number_of_heads(heads: int) -> None:
    """Also where the number is no power of two."""
    close(alibi_slopes(heads), golden("alibi")[f"slopes__h{heads}"], 1e-15)
    assert torch.equal(build("alibi", heads).get_buffer("slopes"), alibi_slopes(heads))


def test_slopes_between_powers_of_two_are_appended_and_not_sorted() -> None:
    assert alibi_slopes(6).tolist() == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert alibi_slopes(12)[8:].log2().tolist() == pytest.approx([-0.5, -1.5, -2.5, -3.5])


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_alibi_is_the_authors(heads: int) -> None:
    arrays, enc = golden("alibi"), build("alibi", heads)
    want = arrays[f"bias_causal__h{heads}_L16"]
    close(causal(enc, 16), want, tolerance("alibi"))
    close(causal(enc, 16, torch.float32).double(), want, tolerance("alibi", "float32"))
    close(far(enc, arrays["far_distances"]), arrays[f"bias_far__h{heads}"], tolerance("alibi"))
    q, k, v = (arrays[f"{x}__h{heads}"] for x in "qkv")
    for backend in ("dense", "sdpa"):
        out = attend(enc, q, k, v, torch.arange(16), torch.arange(16), backend=backend)
        close(out, arrays[f"attn_out__h{heads}"], tolerance("alibi"))


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_one_row_of_slopes_times_positions_is_the_same_after_softmax(heads: int) -> None:
    """BLOOM adds slope x key position, one row for all queries; pads count for nothing."""
    arrays, enc = golden("alibi"), build("alibi", heads)
    row = arrays[f"bloom_alibi__h{heads}_L16"].double()  # (B, H, 1, T)
    mask = arrays["bloom_mask"].bool()
    positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
    q, k = (arrays[f"{x}__h{heads}"].expand(2, -1, -1, -1) for x in "qk")
    bias = enc.bias(q, k, positions, positions)
    assert bias is not None
    visible = torch.ones(16, 16, dtype=torch.bool).tril() & mask[:, None, None, :]
    logits = q @ k.mT / math.sqrt(8)
    ours, theirs = (
        (logits + b).masked_fill(~visible, -1e9).softmax(-1)[mask[:, None].expand(2, heads, 16)]
        for b in (bias, row)
    )
    close(ours, theirs, 1e-6)


# ---------------------------------------------------------------- T5


BUCKETS = [(32, 128), (32, 256), (64, 256), (16, 64)]


@pytest.mark.parametrize(("buckets", "most"), BUCKETS)
def test_buckets_are_those_of_transformers(buckets: int, most: int) -> None:
    arrays = golden("t5_relative_bias")
    config, lookup = f"nb{buckets}_md{most}", T5(4, 32, buckets, most).buckets
    near = arrays[f"bucket_causal__{config}"]
    assert torch.equal(lookup(torch.arange(len(near))), near)
    assert torch.equal(lookup(arrays["far_distances"]), arrays[f"bucket_causal_far__{config}"])
    ahead = arrays[f"bucket_causal_future__{config}"]
    behind = distances(torch.zeros(1).long(), torch.arange(1, 1 + len(ahead)))[0]
    assert torch.equal(lookup(behind), ahead)


def test_the_last_bucket_begins_at_113_and_not_at_128() -> None:
    starts = bucket_starts(32, 128)
    assert starts.tolist() == [
        *range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113,
    ]  # fmt: skip
    bias = build("t5", 4).distance_bias(torch.tensor([98, 112, 113, 128, 100_000]))
    assert torch.equal(bias[:, 2:], bias[:, 2:3].expand(4, 3))
    assert (bias[:, 1] != bias[:, 2]).all()


def with_table(heads: int) -> DistanceBias:
    enc = build("t5", heads).double()
    with torch.no_grad():
        enc.get_parameter("table").copy_(golden("t5_relative_bias")[f"table__h{heads}"])
    return enc


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_t5_is_that_of_transformers(heads: int) -> None:
    arrays, enc = golden("t5_relative_bias"), with_table(heads)
    exact = tolerance("t5_relative_bias")
    close(causal(enc, 40), arrays[f"bias__h{heads}_L40"].tril(), exact)
    close(far(enc, arrays["far_distances"]), arrays[f"bias_far__h{heads}"], exact)
    q = zeros(enc, 1)
    last = enc.bias(q, q, torch.tensor([39]), torch.arange(40))
    assert last is not None
    close(last[0], arrays[f"bias_lastquery__h{heads}_L40"], exact)


@pytest.mark.parametrize("heads", [4, 8])
def test_t5_attention_with_and_without_the_division_by_sqrt_d(heads: int) -> None:
    """huggingface/transformers#46946: T5 does not divide; `attend` and the model do by default."""
    arrays, enc = golden("t5_relative_bias"), with_table(heads)
    q, k, v = (arrays[f"{x}__h{heads}"] for x in "qkv")
    positions = torch.arange(40)
    scaled = attend(enc, q, k, v, positions, positions)
    close(scaled, arrays[f"attn_out_scaled__h{heads}"], tolerance("t5_relative_bias"))
    plain = dense_attention(q, k, v, scale=1.0, bias=enc.bias(q, k, positions, positions))
    close(plain, arrays[f"attn_out_unscaled__h{heads}"], tolerance("t5_relative_bias"))


def test_t5_draws_its_table_with_the_spread_of_the_embeddings() -> None:
    enc = encoding("t5", head_dim=64, num_heads=64, hidden_size=400)
    enc.reset_parameters(torch.Generator().manual_seed(0))
    assert float(enc.get_parameter("table").detach().std()) == pytest.approx(1 / 20, rel=0.05)
    assert not enc.per_layer


# ---------------------------------------------------------------- KERPLE


def with_raw(name: str, heads: int) -> DistanceBias:
    enc = build(name, heads).double()
    with torch.no_grad():
        for parameter in ("p", "a"):
            raw = golden("kerple")[f"{KERNELS[name]}_{parameter}_raw__h{heads}"]
            enc.get_parameter(parameter).copy_(raw)
    return enc


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("heads", "length"), [(4, 40), (8, 16), (12, 16)])
def test_kerple_is_the_authors_from_the_values_before_their_clamp(
    name: str, heads: int, length: int
) -> None:
    arrays, enc, kernel = golden("kerple"), with_raw(name, heads), KERNELS[name]
    want = arrays[f"{kernel}_bias__h{heads}_L{length}"]
    close(causal(enc, length), want, tolerance("kerple"))
    close(causal(enc.float(), length, torch.float32).double(), want, 2e-6)
    enc = with_raw(name, heads)
    want = arrays[f"{kernel}_bias_far__h{heads}"]
    close(far(enc, arrays["far_distances"]), want, tolerance("kerple"))


def test_the_golden_parameters_reach_beyond_their_bounds() -> None:
    """Otherwise the test above would say nothing about the clamp."""
    arrays = golden("kerple")
    raw = {k: torch.cat([v for n, v in arrays.items() if n.startswith(k)])
           for k in ("log_p_raw", "log_a_raw", "pow_p_raw", "pow_a_raw")}  # fmt: skip
    assert all(values.min() < 0.01 for values in raw.values())
    assert raw["pow_p_raw"].max() > 2


@pytest.mark.parametrize("name", KERNELS)
def test_kerple_has_its_own_parameters_in_each_layer_drawn_from_their_ranges(name: str) -> None:
    enc = build(name, 500)
    assert enc.per_layer
    p, a = enc.get_parameter("p"), enc.get_parameter("a")
    assert 0 <= p.min() < 0.1 < 1.9 < p.max() <= 2
    assert 0 <= a.min() < 0.1 < 0.9 < a.max() <= 1


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("start", "out"), [(-0.3, 1), (0.01, 1), (2.0, -1), (2.3, -1)])
def test_a_kerple_parameter_beyond_its_bound_can_come_back(
    name: str, start: float, out: int
) -> None:
    enc = build(name, 2)
    p = enc.get_parameter("p")
    with torch.no_grad():
        p.fill_(start)
        enc.get_parameter("a").fill_(0.5)
    for sign in (1, -1):
        enc.zero_grad()
        # More p is more penalty, so this gradient is positive for sign 1: a step makes p smaller.
        (-sign * enc.distance_bias(torch.arange(9))).sum().backward()
        gradient = p.grad
        assert gradient is not None
        stopped = sign == out and not (start >= 2 and name == "kerple_log")  # no upper bound there
        assert bool((gradient == 0).all()) == stopped
        assert stopped or (gradient.sign() == sign).all()
    assert torch.equal(p, torch.full((2,), start)), "what is stored is never overwritten"


# ---------------------------------------------------------------- Sandwich


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(("heads", "length"), [(4, 40), (8, 16), (12, 16)])
def test_sandwich_is_the_published_formula(heads: int, length: int, width: int) -> None:
    arrays, exact = golden("sandwich"), tolerance("sandwich")
    enc = build("sandwich", heads, width=width)
    want = arrays[f"bias_nemo__h{heads}_d{width}_L{length}"]
    close(causal(enc, length), want, exact)
    close(causal(enc, length, torch.float32).double(), want, 1e-6)
    far_want = arrays[f"bias_nemo_far__h{heads}_d{width}"]
    close(far(enc, arrays["far_distances"]), far_want, exact)
    plain = build("sandwich", heads, width=width, centred=False)
    plain_want = arrays[f"bias_i0_uncentered__h{heads}_d{width}_L{length}"]
    close(causal(plain, length), plain_want.tril(), exact)


def test_sandwich_is_a_product_of_sinusoidal_encodings() -> None:
    enc = build("sandwich", 4, width=32, centred=False)
    inverse = 10_000 ** (-torch.arange(16, dtype=torch.float64) / 16)
    phase = torch.arange(50).double()[:, None] * inverse
    rows = torch.cat((phase.sin(), phase.cos()), -1)
    scale = 4 / (8 * torch.arange(1, 5).double())
    close(causal(enc, 50), (scale[:, None, None] * (rows @ rows.T)).tril(), 1e-12)


def test_the_constant_that_centres_sandwich_is_all_but_invisible_to_softmax() -> None:
    """Both forms order distances alike; only the fastest cosine differs."""
    centred, plain = (build("sandwich", 4, centred=c) for c in (True, False))
    distance = torch.arange(200)
    difference = centred.distance_bias(distance) - plain.distance_bias(distance)
    scale = 4 / (8 * torch.arange(1, 5).double())[:, None]
    slowest, fastest = (distance / 10_000.0).cos(), distance.double().cos()
    close(difference, scale * (slowest - fastest - 64), 1e-9)


# ---------------------------------------------------------------- as matrices


@EVERY
@pytest.mark.parametrize("rows", [False, True])
@pytest.mark.parametrize("step", [1, 3, 1000])
def test_looking_values_up_and_computing_each_give_the_same(
    name: str, rows: bool, step: int
) -> None:
    """Values and gradients, for positions with and without gaps, ahead of the query and behind."""
    enc = build(name, 3)
    positions = torch.arange(40) * step + torch.arange(40) % 2
    if rows:
        positions = torch.stack((positions, (positions - 7 * step).clamp(min=0)))
    behind = distances(positions[..., -9:], positions)
    weight = torch.randn(3, *behind.shape, generator=torch.Generator().manual_seed(0))
    found = []
    for values in (enc._matrix(behind, torch.float32), enc.distance_bias(behind).float()):
        enc.zero_grad()
        if values.requires_grad:
            (values * weight).sum().backward()
        found.append([values.detach(), *(p.grad for p in enc.parameters())])
    for looked_up, computed in zip(*found, strict=True):
        assert looked_up is not None
        assert looked_up.shape == computed.shape
        torch.testing.assert_close(looked_up, computed, rtol=1e-4, atol=1e-4)


@EVERY
def test_no_position_at_all_and_far_positions_with_gaps(name: str) -> None:
    enc, none = build(name, 3), torch.zeros(0, dtype=torch.long)
    q = torch.zeros(1, 3, 0, 8)
    assert enc.bias(q, q, none, torch.arange(5)).shape == (1, 3, 0, 5)
    here = torch.tensor([0, 2**40])
    q = torch.zeros(1, 3, 2, 8)
    far = enc.bias(q, q, here, here)  # a table up to there would not fit anywhere
    assert far is not None
    assert torch.isfinite(far).all()


@EVERY
def test_all_of_it_compiles(name: str) -> None:
    """Under torch.compile nothing looks at the positions' values."""
    enc, positions = build(name, 2), torch.arange(12)
    q = torch.randn(1, 2, 12, 8)
    compiled = torch.compile(lambda q, p: enc.bias(q, q, p, p), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q, positions), enc.bias(q, q, positions, positions))


@EVERY
def test_biases_stay_float32_in_a_half_model(name: str) -> None:
    enc = build(name, 3)
    with torch.no_grad():
        for parameter in enc.parameters():
            parameter.copy_(parameter.bfloat16())
    q, positions = torch.zeros(1, 3, 4, 8), torch.tensor([0, 300, 301, 5001])
    before = enc.bias(q, q, positions, positions)
    assert before is not None
    half = enc.to(torch.bfloat16).bias(q.bfloat16(), q.bfloat16(), positions, positions)
    assert half is not None
    assert half.dtype == torch.float32
    assert torch.equal(half, before)


@EVERY
def test_nothing_is_added_for_the_token_itself_but_by_t5(name: str) -> None:
    bias = build(name, 4).distance_bias(torch.tensor([0, 1, 2, 4000]))
    assert bool((bias[:, 0] == 0).all()) == (name != "t5")
    if name != "t5":
        assert (bias[:, 1:] < 0).all()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("t5", {"num_buckets": 1}, "num_buckets: expected .* at least 2, got 1"),
        ("t5", {"max_distance": 16}, "max_distance: expected .* at least 17, got 16"),
        ("sandwich", {"width": 7}, "width: expected an even number, .*; got 7"),
        ("sandwich", {"width": 0}, "width: expected .* at least 2, got 0"),
        ("alibi", {"slope": 1}, "'alibi' has no option 'slope'"),
    ],
)
def test_wrong_options_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build(name, 4, **options)
