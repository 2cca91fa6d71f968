"""The decoder: what each argument does to its logits, saving, compiling, refusing.

One encoding per combination of traits: what each encoding keeps is checked by its laws.
"""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from model_tools import (
    KINDS,
    LENGTH,
    NAMES,
    Largest,
    close,
    encoding_of,
    gradients,
    small,
    tokens,
)
from torch import Tensor, nn
from transformers import DynamicCache

from pe.attention import attend
from pe.attention.choose import compute
from pe.conformance.subject import same_draw
from pe.encodings import list_encodings
from pe.model import PEConfig, PEForCausalLM, PEModel

EACH_KIND = pytest.mark.parametrize("name", KINDS)
RELATIVE = [n for n in KINDS if encoding_of(n).relative]


@EACH_KIND
def test_no_token_sees_the_future(name: str) -> None:
    model, ids = small(name), tokens(2, 12)
    changed = ids.clone()
    changed[:, 7] = (changed[:, 7] + 5) % 60 + 1
    a, b = model(ids).logits, model(changed).logits
    assert torch.equal(a[:, :7], b[:, :7])
    assert (a[:, 7:] - b[:, 7:]).abs().amax(-1).min() > 1e-4


@EACH_KIND
def test_order_matters_except_to_nope(name: str) -> None:
    # One layer: with two, even NoPE knows order from the causal mask.
    model, ids = small(name, num_hidden_layers=1), tokens(1, 9)
    swapped = ids.clone()
    swapped[:, [1, 4]] = ids[:, [4, 1]]
    moved = (model(ids).logits[:, -1] - model(swapped).logits[:, -1]).abs().max() > 1e-3
    assert bool(moved) == (name not in ("nope", "ssmax", "head_scale"))


ORDER_ONLY = ("nope", "head_scale", "cope", "fox", "path", "stickbreaking")
"""Relative encodings that look at the order of tokens, if at all, and not at their positions."""


@pytest.mark.parametrize("name", RELATIVE)
def test_shifting_position_ids_changes_nothing(name: str) -> None:
    model, ids = small(name), tokens(2, 20)
    here = model(ids, position_ids=torch.arange(20)).logits
    close(model(ids).logits, here, atol=1e-6)
    close(model(ids, position_ids=torch.arange(20) + 5000).logits, here)
    each = torch.stack((torch.arange(20), torch.arange(20) + 777))
    close(model(ids, position_ids=each).logits, here)
    if name not in ORDER_ONLY:
        spread = model(ids, position_ids=torch.arange(20) * 3).logits
        assert (spread - here).abs().max() > 1e-2


@pytest.mark.parametrize("name", RELATIVE)
def test_masked_documents_need_no_restart_where_only_distance_matters(name: str) -> None:
    model, lengths = small(name), (5, 1, 14)
    parts = [tokens(2, n, seed=n) for n in lengths]
    documents = torch.cat([torch.full((2, n), i) for i, n in enumerate(lengths)], 1)
    apart = model(torch.cat(parts, 1), document_ids=documents, use_cache=False).logits
    close(apart, torch.cat([model(part).logits for part in parts], 1))


@EACH_KIND
def test_eager_equals_sdpa(name: str) -> None:
    fast, slow = small(name), small(name, attn_implementation="eager")
    slow.load_state_dict(fast.state_dict())
    assert fast.model.layers[0].attention.backend is not slow.model.layers[0].attention.backend
    ids = tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    results = []
    for model in (fast, slow):
        out = model(ids, labels=ids, attention_mask=mask)
        out.loss.backward()
        results.append((out.logits[mask.bool()], gradients(model)))
    close(*(logits for logits, _ in results))
    for key, gradient in results[0][1].items():
        close(gradient, results[1][1][key])


@pytest.mark.parametrize("name", list_encodings())
def test_attentions_are_the_probabilities_of_the_usual_path(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding, and then of a cache; values of 1 and 0 make any path give its probabilities."""
    model, ids = small(name), tokens(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    cut = 8 if model.model.cacheable else 12

    def calls(**more: Any) -> list[Any]:
        cache = DynamicCache() if model.model.cacheable else None
        results = []
        for part in (slice(0, cut), slice(cut, 12)):
            if part.start < part.stop:
                with torch.no_grad(), same_draw():
                    results.append(
                        model(ids[:, part], attention_mask=mask[:, : part.stop],
                              past_key_values=cache, use_cache=cache is not None, **more)
                    )  # fmt: skip
        return results

    usual: list[Tensor] = []

    def recorded(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
        usual.append(compute(q, k, torch.eye(k.shape[2]).expand(*k.shape[:3], -1), *rest))
        return compute(q, k, v, *rest)

    with monkeypatch.context() as patch:
        patch.setattr("pe.model.layers.compute", recorded)
        fast = calls()
    dense = calls(output_attentions=True)
    assert all(out.get("attentions") is None for out in fast)
    assert [len(out.attentions) for out in dense] == [2] * len(fast)
    for a, b in zip(fast, dense, strict=True):
        close(b.logits, a.logits)
    for a, b in zip(usual, [x for out in dense for x in out.attentions], strict=True):
        close(b, a, atol=1e-5)


def test_attentions_by_configuration_and_in_generation() -> None:
    model, ids = small("alibi", attn_implementation="eager", output_attentions=True), tokens(1, 5)
    assert [x.shape for x in model(ids).attentions] == [(1, 4, 5, 5)] * 2
    out = small("alibi").generate(
        ids, max_new_tokens=2, min_new_tokens=2, do_sample=False, output_attentions=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    assert [step[1].shape[2:] for step in out.attentions] == [(5, 5), (1, 6)]


def test_dropout_acts_on_embeddings_and_on_what_blocks_add_in_training_only() -> None:
    model, ids = small("rope", dropout=0.25), tokens(4, 20)
    assert torch.equal(model(ids).logits, small("rope")(ids).logits)
    zeros = []
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.register_forward_hook(
                lambda m, given, out: zeros.append(((out == 0) & (given[0] != 0)).float().mean())
            )
    model.train()
    first, second = model(ids).logits, model(ids).logits
    assert not torch.equal(first, second)
    assert len(zeros) == 2 * (1 + 2 * 2), "the embeddings, and attention and SwiGLU of two layers"
    assert all(0.2 < share < 0.3 for share in zeros)


@pytest.mark.parametrize("name", [*KINDS, "randomized"])
def test_activation_checkpointing_changes_no_loss_and_no_gradient(name: str) -> None:
    model, ids = small(name, dropout=0.1).train(), tokens(2, 16)
    calls = []
    model.model.layers[0].mlp.register_forward_hook(lambda *_: calls.append(1))
    results = []
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(3)
        loss = model(ids, shift_labels=ids).loss
        loss.backward()
        results.append((loss, gradients(model)))
        model.gradient_checkpointing_enable()
    assert len(calls) == 3, "once, and twice with checkpointing"
    (loss, want), (again, got) = results
    assert torch.equal(loss, again)
    assert want.keys() == got.keys()
    for key, gradient in want.items():
        torch.testing.assert_close(got[key], gradient, atol=1e-6, rtol=1e-5)


def test_activation_checkpointing_refuses_a_cache_in_training_alone() -> None:
    model, ids = small("rope").train(), tokens(1, 4)
    model.gradient_checkpointing_enable()
    with pytest.raises(ValueError, match="activation checkpointing .* pass use_cache=False"):
        model(ids, use_cache=True)
    with torch.no_grad():
        assert model(ids, use_cache=True).past_key_values.get_seq_length() == 4
    assert model.eval()(ids).past_key_values.get_seq_length() == 4


def test_logits_to_keep() -> None:
    model, ids = small("rope"), tokens(2, 12)
    whole = model(ids).logits
    close(model(ids, logits_to_keep=3).logits, whole[:, -3:], atol=1e-5)
    close(model(ids, logits_to_keep=torch.tensor([0, 5])).logits, whole[:, [0, 5]], atol=1e-5)


def test_embeddings_in_place_of_tokens() -> None:
    model, ids = small("rope"), tokens(2, 12)
    assert torch.equal(
        model(inputs_embeds=model.get_input_embeddings()(ids)).logits, model(ids).logits
    )


def test_the_head_is_tied() -> None:
    model = small("rope")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    names = [n for n, _ in model.named_parameters()]
    assert "lm_head.weight" not in names


@EACH_KIND
def test_encodings_share_every_weight_they_have_in_common(name: str) -> None:
    other = dict(small("nope", seed=5).named_parameters())
    mine = dict(small(name, seed=5).named_parameters())
    common = [n for n in mine if ".encodings." not in n]
    assert set(common) == set(other)
    for key in common:
        assert torch.equal(mine[key], other[key])
    different = dict(small(name, seed=6).named_parameters())
    assert not torch.equal(mine["model.norm.weight"] + 1, different["model.norm.weight"])
    assert not torch.equal(
        mine["model.layers.0.mlp.up_proj.weight"], different["model.layers.0.mlp.up_proj.weight"]
    )


def test_grouped_queries_equal_repeated_keys() -> None:
    for name in KINDS:
        # PaTH's projection has factors where every head has its own keys, unless a rank is given.
        rank = {"pe_options": {"rank": 0}} if name == "path" else {}
        grouped, full = small(name, **rank), small(name, num_key_value_heads=4, **rank)
        weights = grouped.state_dict()
        for i in range(2):
            key = f"model.layers.{i}.attention.qkv_proj.weight"
            q, k, v = weights[key].split([64, 32, 32])
            k, v = (x.view(2, 16, 64).repeat_interleave(2, 0).flatten(0, 1) for x in (k, v))
            weights[key] = torch.cat((q, k, v))
        for key, value in full.state_dict().items():
            if ".encodings." in key:
                mine = weights[key]
                if mine.shape != value.shape:  # of two key heads, and now of four
                    mine = mine.unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
                weights[key] = mine
        full.load_state_dict(weights)
        ids = tokens(2, 15)
        with same_draw():
            want = full(ids).logits
        with same_draw():
            close(grouped(ids).logits, want)


CONTENT_DEPENDENT = [n for n in NAMES if encoding_of(n).content_dependent]


@pytest.mark.parametrize("name", CONTENT_DEPENDENT)
def test_a_bias_of_the_logits_sees_the_models_own_scale(name: str) -> None:
    ids, factor = tokens(2, 30), 1.5
    model, larger = small(name), small(name, softmax_scale=factor / 4)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.attention.qkv_proj.weight[:64] *= factor  # the queries of four heads of 16
    close(larger(ids).logits, model(ids).logits)
    warm = small(name, num_hidden_layers=1, length_temperature=0.8)
    weights = warm(ids, output_attentions=True).attentions[0]
    for seen in (LENGTH + 1, 30):
        scale = (1 + 0.8 * math.log(seen / LENGTH)) / 4
        fixed = small(name, num_hidden_layers=1, softmax_scale=scale)
        want = fixed(ids, output_attentions=True).attentions[0]
        close(weights[:, :, seen - 1], want[:, :, seen - 1])


def test_qk_norm_makes_logits_blind_to_the_size_of_queries() -> None:
    ids = tokens(1, 12)
    for qk_norm in (False, True):
        model = small("rope", qk_norm=qk_norm, rms_norm_eps=1e-12)
        before = model(ids).logits
        with torch.no_grad():
            for layer in model.model.layers:
                layer.attention.qkv_proj.weight[:96] *= 3  # queries and keys, not values
        same = (model(ids).logits - before).abs().max() < 1e-3
        assert bool(same) == qk_norm


WHOLE = ["rope", "alibi", "fox", "longrope", "sinusoidal"]
"""One for each hook that a model calls."""


def test_saving_and_loading_in_another_process(tmp_path: Path) -> None:
    """The logits of a loaded model, by a program that knows only pe.model.

    In the same process it is a law for every encoding.
    """
    for name in WHOLE:
        model, ids = small(name), tokens(2, 2 * LENGTH)
        model.save_pretrained(tmp_path / name)
        torch.save({"ids": ids, "logits": model(ids).logits}, tmp_path / name / "expected.pt")
    code = """
import sys, torch, pe.model
print(*{"pandas", "datasets", "matplotlib", "papermill"} & set(sys.modules), "begun")
from transformers import AutoModel, AutoModelForCausalLM
for name in sys.argv[2:]:
    here = f"{sys.argv[1]}/{name}"
    saved = torch.load(here + "/expected.pt")
    want = saved["logits"]
    model = AutoModelForCausalLM.from_pretrained(here)
    assert torch.equal(model(saved["ids"]).logits, want), name
    assert model.lm_head.weight is model.model.embed_tokens.weight
    half = AutoModelForCausalLM.from_pretrained(here, dtype=torch.bfloat16)
    buffers = dict(half.named_buffers())
    for key, value in model.named_buffers():
        assert value.dtype == buffers[key].dtype and torch.equal(value, buffers[key]), (name, key)
    got = half(saved["ids"]).logits
    assert got.dtype == torch.bfloat16
    error = (got.float() - want).abs().mean() / want.abs().mean()
    assert error < 0.05, (name, error)
    base = AutoModel.from_pretrained(here)
    logits = base(saved["ids"]).last_hidden_state @ base.embed_tokens.weight.T
    torch.testing.assert_close(logits, want, msg=name)
print("datasets" in sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path), *WHOLE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["begun", "False"], "importing pe.model brings none of these"
    assert "MISSING" not in done.stderr
    assert "UNEXPECTED" not in done.stderr


@EACH_KIND
def test_a_model_from_its_configuration_is_initialised(name: str) -> None:
    """huggingface/transformers#45902: also when it is built on the meta device first."""
    config = small(name).config
    with torch.device("meta"):
        model = PEForCausalLM(config)
    model.to_empty(device="cpu")
    for (key, a), (_, b) in zip(model.named_buffers(), small(name).named_buffers(), strict=True):
        assert torch.equal(a, b), key
    fresh = PEForCausalLM(config)
    assert all(torch.isfinite(p).all() for p in fresh.parameters())
    assert 0.01 < float(fresh.model.embed_tokens.weight.detach().std()) < 0.04


@pytest.mark.parametrize("name", WHOLE)
def test_a_compiled_training_step_equals_the_eager_one(name: str) -> None:
    """Forward and backward of a whole model."""
    model = small(name, num_hidden_layers=1).train()
    ids = tokens(2, 16)

    def step(ids: Tensor, labels: Tensor) -> Tensor:
        return model(ids, shift_labels=labels).loss  # type: ignore[no-any-return]

    torch._dynamo.reset()
    want = step(ids, ids)
    want.backward()
    eager = gradients(model)
    model.zero_grad()
    # fullgraph: a graph break raises, and names its reason
    loss = torch.compile(step, backend="aot_eager", fullgraph=True)(ids, ids)
    loss.backward()
    torch.testing.assert_close(loss, want)
    for key, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, eager[key], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in WHOLE])
def test_every_encoding_compiles_into_one_graph(name: str) -> None:
    """A graph break in a layer would leave the pieces around it uncompiled."""
    (enc, *_) = small(name).train().model.encodings
    x, positions = torch.randn(2, 16, 64), torch.arange(16)

    def layer(x: Tensor) -> Tensor:
        with_positions = enc.embed(x, positions)
        q, k, v = (
            with_positions.unflatten(-1, (4, 16)).transpose(1, 2)[:, :heads] for heads in (4, 2, 2)
        )
        return attend(enc, q, k, v, positions, positions, layer_input=x)

    torch._dynamo.reset()
    torch.manual_seed(2)  # CLEX draws a factor in training
    want = layer(x)
    torch.manual_seed(2)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), want)


def test_autocast_trains_in_bfloat16_and_stays_close() -> None:
    for name in KINDS:
        model, ids = small(name, std=0.05).train(), tokens(4, 32)
        exact = model(ids, shift_labels=ids).loss
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(ids, shift_labels=ids).loss
        loss.backward()
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(exact.item(), rel=5e-3)
        assert all(g.dtype == torch.float32 for g in gradients(model).values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "give exactly one of input_ids and inputs_embeds"),
        ({"input_ids": tokens(1, 4), "inputs_embeds": torch.zeros(1, 4, 64)}, "exactly one of"),
        ({"input_ids": tokens(1, 4), "attenion_mask": 1}, "did you mean 'attention_mask'"),
        ({"input_ids": tokens(1, 4), "attention_mask": torch.ones(1, 1, 4, 4)},
         r"attention_mask: expected \(1, 4\), past tokens included, got \(1, 1, 4, 4\)"),
        ({"input_ids": tokens(1, 4), "attention_mask": torch.ones(1, 3)}, "attention_mask: expec"),
        ({"input_ids": tokens(1, 4), "position_ids": torch.ones(1, 4)},
         "position_ids: expected a tensor of whole numbers, got torch.float32"),
        ({"input_ids": tokens(1, 4), "position_ids": torch.arange(3)},
         r"position_ids: expected \(4,\) or \(1, 4\), one position per token, got \(3,\)"),
        ({"input_ids": tokens(1, 4), "position_ids": torch.arange(4) - 2},
         "position_ids: expected 0 or more, got -2"),
        ({"input_ids": tokens(1, 4), "attention_mask": torch.zeros(1, 4) - torch.inf},
         "attention_mask: expected whole numbers or booleans, 0 at padding, got torch.float32"),
        ({"input_ids": tokens(2, 4), "attention_mask": torch.ones(3, 4).long()},
         r"attention_mask: expected \(2, 4\), past tokens included, got \(3, 4\)"),
        ({"input_ids": tokens(1, 4), "document_ids": torch.zeros(4).long()},
         r"document_ids: expected \(1, 4\), got \(4,\)"),
        ({"input_ids": tokens(1, 4).float()}, "input_ids: expected .* whole numbers, got torch.fl"),
        ({"input_ids": tokens(1, 4)[0]}, r"expected input_ids \(batch, tokens\).* got \(4,\)"),
        ({"input_ids": tokens(1, 0)}, r"with one token or more, got \(1, 0\)"),
        ({"inputs_embeds": torch.zeros(1, 4, 7)}, r"\(batch, tokens, 64\).*, got \(1, 4, 7\)"),
        ({"input_ids": tokens(1, 4), "past_key_values": ((1, 2),)},
         "past_key_values: expected a cache .* DynamicCache, got a tuple"),
        ({"input_ids": tokens(1, 4), "past_key_values": DynamicCache(), "cache": DynamicCache()},
         "past_key_values and cache are the same argument"),
        ({"input_ids": tokens(1, 4), "labels": tokens(1, 3)}, r"labels: expected \(1, 4\), one"),
        ({"input_ids": tokens(1, 4), "logits_to_keep": -1}, "logits_to_keep: expected 0 or more"),
        ({"input_ids": tokens(1, 4), "position_ids": torch.arange(4) + 9, "use_cache": True},
         "with a cache, positions are those counted"),
        ({"input_ids": tokens(1, 4), "document_ids": torch.zeros(1, 4), "use_cache": True},
         "document_ids cannot be combined with a cache"),
        ({"input_ids": tokens(1, 4), "output_hidden_states": True}, "output_hidden_states: this"),
    ],
)  # fmt: skip
def test_what_the_model_refuses(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        small("rope")(**arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"pe": "rpoe"}, "did you mean 'rope'"),
        ({"pe": "yarn", "pe_options": {"fcator": 4.0}}, "did you mean 'factor'"),
        ({"hidden_size": 65}, "hidden_size 65 does not divide into 4 heads"),
        ({"num_key_value_heads": 3}, "not a multiple of num_key_value_heads 3"),
        ({"hidden_size": 20}, "head_dim 5 .* even head_dim"),
        ({"hidden_size": 64.0}, "hidden_size: expected int, got 64.0"),
        ({"qk_norm": "no"}, "qk_norm: expected bool, got 'no'"),
        ({"length_temperature": math.nan}, "length_temperature: expected a finite number, got nan"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps: expected a finite number of at least 0.0, got"),
        ({"pe_options": "theta=2"}, "pe_options: expected dict, got 'theta=2'"),
        ({"dropout": 1.0}, "dropout: expected a probability from 0 to less than 1, got 1.0"),
        ({"pe": "rope", "pe_options": {"head_dim": 8}}, "head_dim follows from the model"),
    ],
)
def test_what_the_configuration_refuses(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PEConfig(**arguments)


def test_a_configuration_survives_its_json(tmp_path: Path) -> None:
    config = PEConfig(pe="yarn", pe_options={"factor": 8.0, "original_length": 32}, qk_norm=True)
    config.save_pretrained(tmp_path)
    again = PEConfig.from_pretrained(tmp_path)
    fields = ("pe", "pe_options", "qk_norm", "head_dim", "max_position_embeddings")
    assert [getattr(again, f) for f in fields] == [getattr(config, f) for f in fields]
    ramp = PEModel(again).encodings[0].transforms[0]
    assert (ramp.original_length, ramp.factor) == (32, 8.0)


@EACH_KIND
def test_a_training_step_makes_no_square_of_the_length(name: str) -> None:
    model, ids = small(name).train(), tokens(1, 512)
    q, k, where = torch.zeros(1, 4, 1, 16), torch.zeros(1, 2, 1, 16), torch.zeros(1).long()
    for module in model.model.encodings:
        state = module.key_state(torch.zeros(1, 1, 64))
        if module.bias(q, k, where, where, state) is not None:
            pytest.skip("a bias is a matrix")
    with Largest() as largest:
        model(ids, shift_labels=ids).loss.backward()
    assert 0 < largest.elements < 512 * 512
