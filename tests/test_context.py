"""FIRE, CoPE and FoX: what they promise besides the numbers of their authors."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from model_tools import Largest, close, small, tokens
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from transformers import DynamicCache

from pe.attention import attend
from pe.encodings import Encoding, encoding
from pe.encodings.cope import CoPE
from pe.encodings.core import query_rows
from pe.encodings.fire import FIRE
from pe.encodings.fox import FoX, running_sum

SIZES: dict[str, Any] = {"head_dim": 16, "num_heads": 4, "num_kv_heads": 2, "hidden_size": 64}
BLOCKWISE = pytest.mark.parametrize("name", ["fire", "cope"])


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def build(name: str, **options: Any) -> Any:
    """Learned numbers are drawn, and moved off zeros."""
    enc = encoding(name, original_length=24, **(SIZES | options))
    enc.reset_parameters(torch.Generator().manual_seed(3))
    with torch.no_grad():
        for index, parameter in enumerate(enc.parameters()):
            parameter.add_(0.1 * drawn(*parameter.shape, seed=index))
    return enc


# ---------------------------------------------------------------- blocks of query rows


@BLOCKWISE
@pytest.mark.parametrize("queries", [40, 7, 1])
@pytest.mark.parametrize("rows", [False, True])
def test_blocks_give_what_one_piece_gives(
    monkeypatch: pytest.MonkeyPatch, name: str, queries: int, rows: bool
) -> None:
    """Forward and backward, for one row of positions and for several."""
    enc = build(name).double()
    q = drawn(2, 4, queries, 16, dtype=torch.float64).requires_grad_()
    k = drawn(2, 2, 40, 16, seed=1, dtype=torch.float64).requires_grad_()
    places = torch.arange(40)
    places = torch.stack((places, (places - 5).clamp(min=0))) if rows else places
    toward = drawn(2, 4, queries, 40, seed=2, dtype=torch.float64).tril(40 - queries)
    wanted = [q, k, *enc.parameters()]

    def run() -> list[Tensor]:
        bias = enc.bias(q, k, places[..., 40 - queries :], places)
        slopes = torch.autograd.grad((bias * toward).sum(), wanted, allow_unused=True)
        given = [slope for slope in slopes if slope is not None]
        assert len(given) >= 2
        with torch.no_grad():
            again = enc.bias(q, k, places[..., 40 - queries :], places)
        return [bias.detach().tril(40 - queries), again.tril(40 - queries), *given]

    monkeypatch.setattr(query_rows, "NUMBERS", 10**9)
    whole = run()
    for numbers in (1, 20_000):  # a row at a time; a few
        monkeypatch.setattr(query_rows, "NUMBERS", numbers)
        for found, want in zip(run(), whole, strict=True):
            torch.testing.assert_close(found, want, rtol=1e-12, atol=1e-12)


@BLOCKWISE
def test_no_more_than_the_bias_itself_is_held(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """FIRE's hidden layer over all pairs of 4,096 tokens would be 2 GB."""
    monkeypatch.setattr(query_rows, "NUMBERS", 2**17)
    length, enc = 256, build(name)
    q, k = drawn(1, 4, length, 16).requires_grad_(), drawn(1, 2, length, 16, seed=1)
    with Largest() as largest:
        enc.bias(q, k, torch.arange(length), torch.arange(length)).square().sum().backward()
    assert largest.elements == 4 * length * length


# ---------------------------------------------------------------- FIRE


def fire_matrix(enc: FIRE, length: int) -> Tensor:
    q = torch.zeros(1, 4, length, 16, dtype=torch.float64)
    return enc.bias(q, q, torch.arange(length), torch.arange(length))[0].detach()


def test_fire_is_a_function_of_distance_up_to_the_threshold_and_not_beyond() -> None:
    enc = FIRE(4, threshold=24).double()
    matrix = fire_matrix(enc, 60)
    for distance in range(20):
        values = matrix.diagonal(-distance, 1, 2)  # (H, queries from `distance` on)
        until = 25 - distance  # queries 0..24
        close(values[:, :until], values[:, :1].expand(-1, until), atol=1e-12)
        if distance:
            assert (values[:, until:] - values[:, :1]).abs().max() > 1e-3
    diagonal = matrix.diagonal(0, 1, 2)
    close(diagonal, diagonal[:, :1].expand_as(diagonal), atol=1e-12)


def test_fire_asks_its_network_for_nothing_beyond_training() -> None:
    """From the threshold on every query spans the same shares, 0 to 1."""
    enc, places = FIRE(4, original_length=24), torch.arange(100_000)
    for query in (24, 25, 1000, 99_999):
        share = enc.share(torch.tensor([query]), places[: query + 1], torch.float64)[0].detach()
        assert float(share[-1]) == 0
        assert float(share[0]) == pytest.approx(1, abs=1e-5)
        assert (share.diff() < 0).all()


def test_fire_has_the_authors_threshold_or_the_training_length() -> None:
    assert FIRE(4).threshold == 512
    assert FIRE(4, original_length=2048).threshold == 512
    assert FIRE(4, original_length=256).threshold == 256
    assert FIRE(4, original_length=256, threshold=1000).threshold == 1000
    for options in ({"threshold": 0.0}, {"c": -0.1}, {"eps": 0.0}, {"mlp_width": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            encoding("fire", **SIZES, **options)


def test_fire_moves_its_threshold_by_queries_below_it_only() -> None:
    enc = FIRE(4, threshold=24)
    slopes = {}
    for name, places in (("below", torch.arange(20)), ("above", torch.arange(25, 45))):
        bias = enc.bias(torch.zeros(1, 4, 20, 16), torch.zeros(1, 4, 20, 16), places, places)
        (slopes[name],) = torch.autograd.grad(bias.tril().square().sum(), [enc.multiplier])
    assert slopes["below"].abs() > 0
    assert slopes["above"] == 0


def test_fire_begins_as_linear_layers_do() -> None:
    enc = encoding("fire", head_dim=8, num_heads=64)
    for name, most in (("hidden_weight", 1.0), ("hidden_bias", 1.0), ("head_weight", 32**-0.5),
                       ("head_bias", 32**-0.5)):  # fmt: skip
        largest = enc.get_parameter(name).detach().abs().max().item()
        assert 0.8 * most < largest <= most


# ---------------------------------------------------------------- CoPE


def test_cope_begins_without_any_encoding() -> None:
    q, k, v = (drawn(2, h, 9, 16, seed=h) for h in (4, 2, 2))
    places = torch.arange(9)
    fresh, nope = encoding("cope", original_length=24, **SIZES), encoding("nope", **SIZES)
    assert torch.equal(
        *(attend(e, q, k, v, places, places, backend="dense") for e in (fresh, nope))
    )


def test_cope_counts_the_query_itself_and_nothing_ahead_of_it() -> None:
    enc = CoPE(4, npos=64)
    open_, shut = torch.tensor([40.0, 0, 0, 0]), torch.tensor([-40.0, 0, 0, 0])
    k = torch.stack([open_, shut, shut, open_, shut, open_, open_])[None, None]
    q = torch.tensor([1.0, 0, 0, 0]).expand(1, 1, 7, 4)
    counts = enc.counts(enc.gates(q, k))[0, 0]
    close(counts[6], torch.tensor([4.0, 3, 3, 3, 2, 2, 1]))  # itself is the first
    close(counts[4, :5], torch.tensor([2.0, 1, 1, 1, 0]))  # two lie ahead and are not counted
    close(counts[2, :3], torch.tensor([1.0, 0, 0]))
    assert float(CoPE(4, npos=3).counts(enc.gates(q, k)).max()) == 2  # no more than the table has


def test_cope_reads_between_two_rows() -> None:
    enc, q = CoPE(4, npos=5), drawn(1, 1, 1, 4)
    with torch.no_grad():
        enc.table.copy_(drawn(5, 4, seed=1))
    rows = (q[0, 0] @ enc.table.t())[0]
    found = enc.read(q, torch.tensor([0.0, 1.25, 3.5, 4.0])[None, None, None])[0, 0, 0]
    want = (rows[0], 0.75 * rows[1] + 0.25 * rows[2], 0.5 * (rows[3] + rows[4]), rows[4])
    close(found, torch.stack(want), atol=1e-6)


def test_cope_looks_at_order_and_not_at_position_numbers() -> None:
    """Positions that begin again at each document say nothing about who came first."""
    enc, q, k = build("cope"), drawn(2, 4, 12, 16), drawn(2, 2, 12, 16, seed=1)
    one = torch.arange(12)
    reset = torch.cat((torch.arange(5), torch.arange(7)))
    assert torch.equal(enc.bias(q, k, one, one), enc.bias(q, k, reset, reset))
    gates = enc.gates(q, k)
    assert torch.equal(gates, gates.tril())


def test_cope_sees_queries_and_keys_before_rotation() -> None:
    rope, cope = encoding("rope", **SIZES), build("cope")
    both = build("cope+rope")
    with torch.no_grad():
        for mine, other in zip(both.parameters(), cope.parameters(), strict=True):
            mine.copy_(other)
    q, k, places = drawn(1, 4, 9, 16), drawn(1, 2, 9, 16, seed=1), torch.arange(9)
    assert torch.equal(both.bias(q, k, places, places), cope.bias(q, k, places, places))
    for a, b in zip(both.rotate(q, k, places, places), rope.rotate(q, k, places, places),
                    strict=True):  # fmt: skip
        assert torch.equal(a, b)


def test_cope_counts_as_far_as_it_was_trained_unless_told() -> None:
    assert encoding("cope", original_length=24, **SIZES).get_parameter("table").shape == (25, 16)
    assert encoding("cope", npos=64, **SIZES).get_parameter("table").shape == (64, 16)
    with pytest.raises(ValueError, match="needs original_length, or the option npos"):
        encoding("cope", **SIZES)
    with pytest.raises(ValueError, match="npos: expected a finite number of at least 2, got 1"):
        encoding("cope", npos=1, **SIZES)


# ---------------------------------------------------------------- FoX


def fox_bias(enc: FoX, state: Tensor, queries: int | None = None) -> Tensor:
    heads, length = state.shape[1:3]
    places, q = torch.arange(length), torch.zeros(1, heads, queries or length, 16)
    return enc.bias(q, q, places[length - q.shape[2] :], places, state).detach()


def test_fox_with_equal_gates_is_alibi() -> None:
    alibi = encoding("alibi", **SIZES)
    slopes = alibi.get_buffer("slopes").float()
    state = -slopes[None, :, None, None].expand(1, 4, 30, 1)
    q, places = torch.zeros(1, 4, 30, 16), torch.arange(30)
    want = alibi.bias(q, q, places, places)
    assert want is not None
    close(fox_bias(build("fox"), state).tril(), want.tril(), atol=1e-5)


def test_fox_leaves_out_the_keys_own_gate() -> None:
    state = torch.tensor([-1.0, -10.0, -100.0])[None, None, :, None].expand(1, 4, 3, 1)
    found = fox_bias(build("fox"), state)[0, 0].tril()
    assert found.tolist() == [[0, 0, 0], [-10, 0, 0], [-110, -100, 0]]


def test_fox_tells_neighbours_apart_far_into_a_text() -> None:
    """At 100,000 tokens the running sum is near -70,000, where float32 steps are 0.008 wide."""
    state = drawn(1, 4, 100_000, 1).abs().neg()
    found = fox_bias(build("fox"), state, queries=1)[0, :, 0]
    exact = state[0, :, :, 0].double().flip(-1).cumsum(-1).flip(-1)  # from each key to the end
    want = torch.cat((exact[:, 1:], torch.zeros(4, 1)), -1)
    torch.testing.assert_close(found.double(), want, rtol=3e-7, atol=1e-7)
    rounded = state[0, :, :, 0].cumsum(-1)
    assert ((rounded[:, -1:] - rounded).double() - want)[:, -50:].abs().max() > 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fox_keeps_gates_in_float32(dtype: torch.dtype) -> None:
    enc, x = build("fox").to(dtype), drawn(2, 9, 64).to(dtype)
    state = enc.key_state(x)
    assert state.dtype == torch.float32
    logits = x.double() @ enc.weight.double().t() + enc.beta.double()
    close(state[..., 0].double(), logits.sigmoid().log().transpose(1, 2), atol=1e-5)


def test_fox_needs_the_layers_input() -> None:
    q, k, x = drawn(1, 4, 6, 16), drawn(1, 2, 6, 16, seed=1), drawn(1, 6, 64, seed=2)
    places = torch.arange(6)
    for enc in (build("fox"), encoding("fox+rope", **SIZES)):
        with pytest.raises(ValueError, match="pass layer_input to pe.attend"):
            attend(enc, q, k, k, places, places)
        out = attend(enc, q, k, k, places, places, layer_input=x)
        assert out.shape == (1, 4, 6, 16)


@pytest.mark.parametrize("length", [1, 127, 128, 129, 300, 20_000])
def test_fox_adds_its_gates_up_without_a_scan(length: int) -> None:
    # torch 2.11 cannot compile one for CUDA next to what comes before it, where nothing is learned.
    x = -drawn(2, 3, length).double().abs().requires_grad_()
    found, want = running_sum(x), x.cumsum(-1)
    close(found, want, atol=1e-9)
    weights = drawn(2, 3, length).double()
    (mine,) = torch.autograd.grad((found * weights).sum(), x)
    (other,) = torch.autograd.grad((want * weights).sum(), x)
    close(mine, other, atol=1e-9)
    graph = make_fx(running_sum)(x.detach()).graph
    assert not any("cumsum" in str(node.target) for node in graph.nodes)


def test_fox_begins_where_it_is_told() -> None:
    x = drawn(4, 50, 64)
    for gate_bias, gate in ((0.0, 0.5), (5.0, 0.9933)):
        enc = encoding("fox", gate_bias=gate_bias, **SIZES)
        state = enc.key_state(x)
        assert state is not None
        assert float(state.detach().exp().mean()) == pytest.approx(gate, abs=0.02)
        assert float(enc.get_parameter("weight").detach().std()) == pytest.approx(0.02, rel=0.2)
    for name, value in (("gate_bias", math.inf), ("gate_std", -1.0)):
        with pytest.raises(ValueError, match=name):
            build("fox", **{name: value})


# ---------------------------------------------------------------- what a cache keeps of each token


@pytest.mark.parametrize("name", ["fox", "fox+rope", "cope+rope", "fox+cope"])
def test_caches_can_be_cropped_reordered_and_multiplied(name: str) -> None:
    """Gates go with the keys they belong to; all of it in rows that are padded."""
    model, ids = small(name), tokens(3, 15)
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    other = tokens(3, 4, seed=9)
    with torch.no_grad():
        cache = DynamicCache()
        model(ids, attention_mask=mask, past_key_values=cache)
        cache.crop(-5)
        assert cache.get_seq_length() == 10
        assert {layer.keys.shape[-2] for layer in cache.layers if layer.is_initialized} == {10}
        turned = torch.tensor([2, 0, 1])
        cache.reorder_cache(turned)
        cache.batch_repeat_interleave(2)
        kept = torch.tensor([0, 2, 5])
        cache.batch_select_indices(kept)
        rows = turned.repeat_interleave(2)[kept]
        text = torch.cat((ids[rows, :10], other), 1)
        seen = torch.cat((mask[rows, :10], torch.ones_like(other)), 1)
        got = model(other, attention_mask=seen, past_key_values=cache).logits
        want = model(text, attention_mask=seen, use_cache=False).logits[:, 10:]
        close(got, want)
        cache.reset()
        again = model(ids, attention_mask=mask, past_key_values=cache).logits
        close(
            again[mask.bool()], model(ids, attention_mask=mask, use_cache=False).logits[mask.bool()]
        )


def test_what_fox_keeps_of_a_token_is_one_number_a_head() -> None:
    model, ids = small("fox"), tokens(2, 9)
    cache = model(ids, use_cache=True).past_key_values
    states = cache.layers[2:]
    assert [tuple(layer.keys.shape) for layer in states] == [(2, 4, 9, 1)] * 2
    assert [layer.values.numel() for layer in states] == [0, 0]
    assert {layer.keys.dtype for layer in states} == {torch.float32}


def test_fox_keeps_float32_gates_beside_bfloat16_keys() -> None:
    model, ids = small("fox").to(torch.bfloat16), tokens(1, 9)
    cache = model(ids, use_cache=True).past_key_values
    assert [layer.keys.dtype for layer in cache.layers] == [torch.bfloat16] * 2 + [
        torch.float32
    ] * 2


@pytest.mark.parametrize("name", ["fox+rope", "cope+rope"])
@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 3}])
def test_sums_generate_with_a_cache_as_without(name: str, settings: dict[str, Any]) -> None:
    model, ids = small(name), tokens(2 if "prompt_lookup_num_tokens" not in settings else 1, 12)
    mask = torch.ones_like(ids)
    if len(ids) > 1:
        mask[0, :5] = 0
    more: dict[str, Any] = {"max_new_tokens": 14, "min_new_tokens": 14, "do_sample": False}
    got = model.generate(ids, attention_mask=mask, **more, **settings)
    settings = {key: value for key, value in settings.items() if key == "num_beams"}
    want = model.generate(ids, attention_mask=mask, use_cache=False, **more, **settings)
    assert torch.equal(got, want)


def test_every_layer_has_its_own() -> None:
    for name in ("fire", "cope", "fox"):
        model = small(name)
        found: list[Encoding] = list(model.model.encodings)  # type: ignore[arg-type]
        assert len(found) == 2
        ours = {id(p) for enc in found for p in enc.parameters()}
        assert len(ours) == 2 * len(list(found[0].parameters()))
