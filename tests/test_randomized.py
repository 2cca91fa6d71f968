"""Positions drawn anew in each forward pass: their distribution, and what a model makes of them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from model_tools import LENGTH, small, tokens
from test_additive import close, golden, rows, stated
from tiny_training import assert_same_weights, killed_after, tiny, write_corpus
from torch import Tensor
from transformers import DynamicCache

from pe._seed import seed_torch
from pe.encodings import Prepared, encoding
from pe.encodings.alibi import ALiBi, alibi_slopes
from pe.encodings.core.additive import Additive
from pe.encodings.randomized import Randomized
from pe.model import PEForCausalLM
from pe.runs import Run
from pe.training.train import train

SUMS = ["randomized", "alibi+randomized", "sinusoidal+randomized", "yarn+randomized"]


def placed(n: int, most: int = 2048, seed: int = 0) -> Tensor:
    seed_torch(seed)
    where = torch.arange(n)
    return Randomized(max_position=most).prepare(where, where).k_positions


# ---------------------------------------------------------------- the draw


def test_positions_are_distinct_sorted_and_below_the_largest() -> None:
    for n in (1, 2, 24, 2047, 2048):
        places = placed(n)
        assert (places.diff() > 0).all()
        assert places[0] >= 0
        assert places[-1] < 2048
    assert torch.equal(placed(2048), torch.arange(2048)), "as many tokens as places"


def test_positions_have_the_mean_and_spread_of_an_ordered_sample() -> None:
    draws = torch.stack([placed(24, seed=s) for s in range(3000)]).double()
    mean = golden("randomized")["expected_sorted_position_mean"]
    spread = golden("randomized")["expected_sorted_position_std"]
    k = torch.arange(1, 25).double()
    close(mean, k * 2049 / 25 - 1, 1e-9)
    assert ((draws.mean(0) - mean).abs() < 5 * spread / math.sqrt(3000)).all()
    torch.testing.assert_close(draws.std(0), spread, rtol=0.08, atol=0)


def test_every_subset_is_as_likely_as_any_other() -> None:
    counts = torch.zeros(5, 5)
    for seed in range(2000):
        a, b = placed(2, most=5, seed=seed).tolist()
        counts[a, b] += 1
    found = counts[counts > 0]
    assert len(found) == 10
    assert (found - 200).abs().max() < 5 * math.sqrt(200 * 0.9)


def test_one_draw_serves_queries_keys_and_all_rows() -> None:
    where = torch.arange(12)
    padded = (where - 5).clamp(min=0)
    both = torch.stack((where, padded))
    found = Randomized(max_position=500).prepare(both[:, -3:], both)
    assert torch.equal(found.q_positions, found.k_positions[:, -3:])
    assert torch.equal(found.k_positions[1, 5:], found.k_positions[0, :7])
    same = Randomized(max_position=500).prepare(where, where)
    assert same.q_positions is same.k_positions, "so that RoPE makes one pair of tables"


def test_the_generator_of_torch_decides() -> None:
    assert torch.equal(placed(24, seed=4), placed(24, seed=4))
    assert not torch.equal(placed(24, seed=4), placed(24, seed=5))


def test_more_tokens_than_places_are_refused() -> None:
    with pytest.raises(ValueError, match="no position 8: longest position 7"):
        placed(9, most=8)
    with pytest.raises(ValueError, match="max_position: expected .* at least 64, got 63"):
        encoding("randomized", head_dim=16, num_heads=2, original_length=64, max_position=63)
    with pytest.raises(ValueError, match="needs original_length, or the option max_position"):
        encoding("randomized", head_dim=16, num_heads=2)
    enc = encoding("randomized", head_dim=16, num_heads=2, original_length=64)
    assert enc.max_positions == 1024
    empty = torch.zeros(0, dtype=torch.long)
    assert enc.prepare(empty, empty).k_positions.numel() == 0


def test_a_table_must_reach_as_far_as_tokens_are_moved() -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 2, "original_length": 64}
    with pytest.raises(ValueError, match=r"randomized moves .* of learned is 63.*table_size"):
        encoding("learned+randomized", **sizes)
    assert encoding("learned+randomized", **sizes, max_position=64).max_positions == 64
    assert encoding("learned+randomized", **sizes, table_size=1024).max_positions == 1024


# ---------------------------------------------------------------- against the authors


@pytest.mark.parametrize("draw", range(3))
def test_sinusoidal_at_random_positions_is_the_authors(draw: int) -> None:
    arrays, exact = golden("randomized"), stated("randomized")["tol"]
    enc = encoding("sinusoidal", head_dim=16, num_heads=1, layout="concat")
    assert isinstance(enc, Additive)
    close(rows(enc, arrays[f"positions__{draw}"]), arrays[f"encodings__{draw}"], exact)
    close(rows(enc, 64), arrays["table_rows_0_64"], exact)


@pytest.mark.parametrize("heads", [4, 8, 12])
def test_alibi_at_random_positions_in_both_definitions(heads: int) -> None:
    arrays, exact = golden("randomized"), stated("randomized")["tol"]
    enc = ALiBi(heads)
    slopes = arrays[f"slopes__h{heads}"]
    close(alibi_slopes(heads), slopes, exact)
    q, where = torch.zeros(1, heads, 24, 8, dtype=torch.float64), torch.arange(24)

    def behind(positions: Tensor) -> Tensor:
        return enc.bias(q, q, positions, positions)[0].tril()

    close(behind(arrays["positions__0"]), arrays[f"causal_random_alibi__h{heads}"], exact)
    # The authors' encoders look both ways and mark the past by half a step.
    half = 0.5 * slopes[:, None, None] * torch.ones(24, 24).double().tril(-1)
    close(behind(where) + half, arrays[f"bidir_alibi__h{heads}_L24"].tril(), exact)
    # Their randomized ALiBi replaces the distance k by the k-th of a sorted sample: it stays the
    # same along diagonals, and is no difference of positions. Ours is `causal_random_alibi`.
    steps = torch.cat((torch.zeros(1).long(), arrays[f"noisy_alibi_sample__h{heads}"]))
    distance = steps[(where[:, None] - where).clamp(min=0)]
    noisy = enc.distance_bias(distance).tril() + half
    close(noisy, arrays[f"noisy_alibi_bidir__h{heads}"].tril(), exact)


def test_every_randomized_array_is_compared() -> None:
    families = {key.split("__")[0] for key in golden("randomized")}
    assert families == {
        "table_rows_0_64", "positions", "encodings", "slopes", "bidir_alibi",
        "causal_random_alibi", "noisy_alibi_bidir", "noisy_alibi_sample",
        "expected_sorted_position_mean", "expected_sorted_position_std",
    }  # fmt: skip


# ---------------------------------------------------------------- in sums


def test_alone_it_brings_rope_and_with_others_it_does_not() -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 2, "original_length": 64}

    def parts(spec: str, **more: Any) -> list[str]:
        whole = encoding(spec, **sizes, **more).get_submodule("parts")
        return [type(p).__name__ for p in whole.children()]

    assert parts("randomized", theta=500.0) == ["RoPE", "Randomized"]
    assert parts("randomized+yarn") == ["RoPE", "Randomized"]
    assert parts("randomized+alibi") == ["Randomized", "ALiBi"]
    with pytest.raises(ValueError, match="nope means no encoding"):
        encoding("randomized+nope", **sizes)


@pytest.mark.parametrize("other", ["rope", "alibi", "sinusoidal"])
def test_the_others_see_the_moved_positions(other: str) -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 2, "original_length": 64}
    both, alone = encoding(f"{other}+randomized", **sizes), encoding(other, **sizes)
    where, moved = torch.arange(24), placed(24, most=1024, seed=0)
    torch.manual_seed(0)
    found = both.prepare(where, where)
    assert torch.equal(found.k_positions, moved)
    q = torch.randn(1, 2, 24, 16)
    x = torch.randn(1, 24, 32)
    at: Prepared = alone.prepare(moved, moved)
    for a, b in zip(both.rotate(q, q, *found[:3]), alone.rotate(q, q, *at[:3]), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(both.embed(x, found.q_positions), alone.embed(x, moved))
    bias, want = both.bias(q, q, *found[:2]), alone.bias(q, q, moved, moved)
    assert (bias is None) == (want is None) == (other != "alibi")
    if bias is not None and want is not None:
        assert torch.equal(bias, want)


# ---------------------------------------------------------------- in a model


def logits(model: PEForCausalLM, ids: Tensor, seed: int = 0, **more: Any) -> Tensor:
    torch.manual_seed(seed)
    with torch.no_grad():
        found: Tensor = model(ids, **({"use_cache": False} | more)).logits
    return found


@pytest.mark.parametrize("name", SUMS)
def test_a_model_draws_in_each_call_and_a_seed_fixes_it(name: str) -> None:
    model, ids = small(name), tokens(2, LENGTH)
    first = logits(model, ids)
    assert torch.equal(logits(model, ids), first)
    assert (logits(model, ids, seed=1) - first).abs().max() > 1e-3
    changed = ids.clone()
    changed[:, 7] = (changed[:, 7] + 5) % 60 + 1
    assert torch.equal(logits(model, changed)[:, :7], first[:, :7]), "no token sees the future"


@pytest.mark.parametrize("name", SUMS)
def test_a_left_padded_row_gets_the_draw_of_the_batch(name: str) -> None:
    model, ids = small(name), tokens(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    whole = logits(model, ids, attention_mask=mask)
    assert torch.isfinite(whole).all()
    assert torch.equal(whole[1:], logits(model, ids)[1:])
    shorter = torch.cat((ids[:1, 7:], ids[1:, :7]), 1)  # as long, so that as many are drawn
    close(whole[0, 7:], logits(model, shorter)[0, : LENGTH - 7], 2e-4)


@pytest.mark.parametrize("name", SUMS)
def test_each_layer_draws_anew_and_embeddings_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[Tensor] = []
    real = Randomized.prepare

    def recorded(self: Randomized, *given: Any) -> Prepared:
        result = real(self, *given)
        found.append(result.k_positions)
        return result

    monkeypatch.setattr(Randomized, "prepare", recorded)
    logits(small(name, num_hidden_layers=3), tokens(2, LENGTH))
    assert len(found) == 3
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


@pytest.mark.parametrize("name", ["randomized", "sinusoidal+randomized"])
def test_compiled_in_one_graph_and_equal_to_eager(name: str) -> None:
    model, ids = small(name, num_hidden_layers=1).train(), tokens(2, 16)

    def step(ids: Tensor, labels: Tensor) -> Tensor:
        return model(ids, shift_labels=labels).loss  # type: ignore[no-any-return]

    torch._dynamo.reset()
    torch.manual_seed(3)
    want = step(ids, ids)
    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(ids, ids), want)
    torch.manual_seed(4)
    other = compiled(ids, ids).detach()
    assert (other - want.detach()).abs() > 1e-6, "the draw is no constant of a graph"


def test_a_compiled_table_refuses_what_it_has_no_row_for() -> None:
    model = small("learned", pe_options={"table_size": 16}).train()
    compiled = torch.compile(model, backend="eager")
    compiled(tokens(1, 16), shift_labels=tokens(1, 16))
    with pytest.raises(ValueError, match="longest position 15"):
        compiled(tokens(1, 17), shift_labels=tokens(1, 17))


@pytest.mark.parametrize("name", ["randomized", "alibi+randomized"])
def test_decoding_through_a_cache_redraws_for_all_keys(name: str) -> None:
    model, ids = small(name, num_hidden_layers=1), tokens(2, LENGTH)
    cache = DynamicCache()
    logits(model, ids[:, :-1], use_cache=True, past_key_values=cache)
    step = logits(model, ids[:, -1:], use_cache=True, past_key_values=cache)
    close(step[:, -1], logits(model, ids)[:, -1], 2e-4)


def test_embeddings_at_random_places_are_not_cached() -> None:
    """The next call draws again, and a new token could stand before an old one."""
    model, ids = small("sinusoidal+randomized"), tokens(2, LENGTH)
    with pytest.raises(ValueError, match="in each call.*pass use_cache=False"):
        model(ids, use_cache=True)
    out = model(ids)
    assert all(out.get(key) is None for key in ("cache", "past_key_values"))


@pytest.mark.parametrize("name", SUMS)
def test_generation_and_loading(name: str, tmp_path: Path) -> None:
    model, ids = small(name), tokens(2, 9)
    model.save_pretrained(tmp_path)
    loaded = PEForCausalLM.from_pretrained(tmp_path)
    torch.manual_seed(0)
    want = model.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    torch.manual_seed(0)
    again = loaded.generate(ids, max_new_tokens=12, min_new_tokens=12, do_sample=False)
    assert want.shape == (2, 21)
    assert torch.equal(again, want)


def test_a_model_refuses_more_tokens_than_places() -> None:
    model = small("randomized", pe_options={"max_position": LENGTH})
    logits(model, tokens(1, LENGTH))
    with pytest.raises(ValueError, match=f"longest position {LENGTH - 1}"):
        logits(model, tokens(1, LENGTH + 1))


@pytest.mark.parametrize("name", ["randomized", "sinusoidal+randomized"])
def test_a_run_that_was_killed_draws_what_it_would_have_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Nor does it matter what else drew numbers before, or how often the run was validated."""
    corpus = write_corpus(tmp_path / "corpus")
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "cache"))
    chosen = {"pe": name, "steps": 12, "pe_options": {"max_position": 100}}
    plain = train(Run(tmp_path / "plain", tiny(corpus, **chosen)), quiet=True)
    torch.manual_seed(77)
    run = Run(tmp_path / "killed", tiny(corpus, **chosen, validate_every=2))
    killed_after(run, 7)
    train(run, quiet=True)
    assert run.read()["training"]["resumes"] == 1
    assert_same_weights(run, plain)
