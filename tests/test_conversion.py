"""Another encoding for a trained model: what changes, what must not, and what DroPE's code does."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from model_tools import LENGTH, close, small, tokens
from torch import Tensor
from transformers import AutoModelForCausalLM

import pe
from pe.encodings import Encoding, FrequencyTransform, list_encodings, lookup
from pe.model import PEConfig, PEForCausalLM
from pe.model.convert import convert
from pe.model.layers import LayerInputs

GOLDEN = Path(__file__).parent / "golden"
TRANSFORMS = [n for n in list_encodings() if issubclass(lookup(n), FrequencyTransform)]


def weights(model: torch.nn.Module, encodings: bool = False) -> dict[str, Tensor]:
    """Copies of all parameters, or of all but the encoding's."""
    return {
        name: p.detach().clone()
        for name, p in model.named_parameters()
        if encodings or "encodings" not in name
    }


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@torch.no_grad()
def logits(model: PEForCausalLM, length: int = 2 * LENGTH, **inputs: Any) -> Tensor:
    found: Tensor = model(tokens(2, length), use_cache=False, **inputs).logits
    return found


@pytest.mark.parametrize("name", list_encodings())
def test_dropping_equals_the_nope_model_with_the_same_weights(name: str) -> None:
    model = small(name)
    before, state = weights(model), {k: v.clone() for k, v in model.state_dict().items()}
    dropped = convert(model, "nope")
    nope = small("nope", seed=1)  # other weights, until they are loaded
    nope.load_state_dict({k: v for k, v in state.items() if "encodings" not in k})
    assert torch.equal(logits(dropped), logits(nope))
    assert_same(weights(dropped, encodings=True), before)
    assert dropped.config.pe == "nope"
    assert dropped.config.pe_options == {}
    # The model that was given is as it was.
    assert model.config.pe == name
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("name", TRANSFORMS)
def test_every_frequency_transform_zero_shot_equals_the_model_built_with_it(name: str) -> None:
    options = {"theta": 500.0, "layout": "interleaved", "rotary_fraction": 0.5}
    model = small("rope", pe_options=options)
    longer = convert(model, name)
    assert longer.config.pe_options == options
    assert_same(weights(longer), weights(model))
    built = PEForCausalLM(longer.config).eval()
    built.load_state_dict(longer.state_dict())
    assert torch.equal(logits(longer), logits(built))


def test_a_factor_reaches_the_frequencies() -> None:
    model = small("rope")
    assert torch.equal(logits(convert(model, "yarn", factor=1.0)), logits(model))
    assert not torch.allclose(logits(convert(model, "yarn", factor=4.0)), logits(model), atol=1e-2)
    assert convert(model, "yarn", factor=4.0).config.pe_options == {"factor": 4.0}


def test_options_are_kept_where_both_encodings_have_the_part() -> None:
    model = small("yarn", pe_options={"factor": 2.0, "theta": 500.0})
    assert convert(model, "yarn", factor=8.0).config.pe_options == {"factor": 8.0, "theta": 500.0}
    assert convert(model, "rope").config.pe_options == {"theta": 500.0}
    assert convert(model, "rope", theta=7.0).config.pe_options == {"theta": 7.0}
    assert convert(model, "pope").config.pe_options == {"theta": 500.0}  # it rotates as well
    assert convert(model, "nope").config.pe_options == {}


def test_learned_parameters_stay_where_both_encodings_have_them() -> None:
    model = small("pope")
    again = convert(model, "pope", theta=500.0)
    assert_same(weights(again, encodings=True), weights(model, encodings=True))
    fresh = convert(small("rope"), "pope", delta_init="uniform", seed=3)
    deltas = [p for n, p in fresh.named_parameters() if "encodings" in n]
    same = convert(small("rope"), "pope", delta_init="uniform", seed=3)
    other = convert(small("rope"), "pope", delta_init="uniform", seed=4)
    assert deltas
    assert all(bool(d.lt(0).all()) for d in deltas)
    assert_same(weights(fresh, encodings=True), weights(same, encodings=True))
    assert not torch.equal(deltas[0], next(p for n, p in other.named_parameters() if "delta" in n))


class Left(Encoding):
    """Two parts with the same inner modules, which must not be taken for one another."""

    rotates = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))


class Right(Left):
    """The other."""


def test_parts_are_told_apart_wherever_they_stand() -> None:
    left, right = f"{__name__}:Left", f"{__name__}:Right"
    model = small(f"{left}+{right}")
    turned = convert(model, f"{right}+rope+{left}")
    own = {type(p): p for p in model.model.encodings[0].parts}  # type: ignore[union-attr]
    found = {type(p): p for p in turned.model.encodings[0].parts}  # type: ignore[union-attr]
    for cls in (Left, Right):
        assert_same(weights(found[cls]), weights(own[cls]))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("pope", "yarn", "'yarn' changes the frequencies of 'rope'.* trained with 'pope'"),
        ("nope", "yarn", "convert it to 'rope', train it, then convert it to 'yarn'"),
        ("rope", "yarm", "unknown encoding 'yarm'"),
        ("rope", "rope+pope", "both rotate"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(before: str, after: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(small(before), after)


def test_wrong_options_are_refused() -> None:
    model = small("rope")
    with pytest.raises(ValueError, match="'yarn' has no option 'factr'.*'factor'"):
        convert(model, "yarn", factr=2.0)
    with pytest.raises(ValueError, match="unknown joint_norm 'v'"):
        convert(model, "nope", joint_norm="v")
    with pytest.raises(ValueError, match="softmax_scale: expected a finite number above 0"):
        convert(model, "nope", softmax_scale=-1.0)
    for wrong in (0, -1, 64.5, "64", True):
        with pytest.raises(ValueError, match=f"context_length: .* at least 1, got {wrong!r}"):
            convert(model, "yarn", context_length=wrong)  # type: ignore[arg-type]
    for wrong in (-1, "a", 2**63):
        with pytest.raises(ValueError, match=f"seed: expected a whole number .*, got {wrong!r}"):
            convert(model, "t5", seed=wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a model of pe.model, not a Linear"):
        convert(torch.nn.Linear(2, 2), "nope")  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("name", "options"), [("learned", {"table_size": 48}), ("cope", {"npos": 5})]
)
def test_an_option_that_would_lose_what_was_learned_is_refused(name: str, options: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: table of shape .* it would be lost; give "):
        convert(small(name), name, **options)
    convert(convert(small(name), "nope"), name, **options)


def test_a_window_keeps_what_was_learned_if_the_spec_says_how_much() -> None:
    """The default reach of relative content follows from the window."""
    model = small("relative_content")
    with pytest.raises(ValueError, match=r"profiles of shape .* may follow from a window"):
        convert(model, "relative_content+window:8")
    new = convert(model, f"relative_content(reach={LENGTH})+window:8")
    before, after = (
        [p for name, p in m.named_parameters() if name.endswith("profiles")] for m in (model, new)
    )
    assert before
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_generation_uses_a_cache_where_the_new_encoding_allows_one() -> None:
    ids, arguments = tokens(1, 5), {"max_new_tokens": 3, "do_sample": False}
    drawing = convert(small("nope"), "sinusoidal+randomized")
    assert drawing.generate(ids, **arguments).shape == (1, 8)
    back = convert(drawing, "nope")
    assert back.generation_config.use_cache is not False
    assert torch.equal(back.generate(ids, **arguments), small("nope").generate(ids, **arguments))


def test_another_training_length_keeps_the_length_that_extension_counts_from() -> None:
    model = small("rope")
    longer = convert(model, "yarn", factor=4.0, context_length=4 * LENGTH)
    assert longer.config.max_position_embeddings == 4 * LENGTH
    assert longer.config.pe_options == {"factor": 4.0, "original_length": LENGTH}
    assert torch.equal(logits(longer), logits(convert(model, "yarn", factor=4.0)))
    assert convert(model, "rope", context_length=4 * LENGTH).config.pe_options == {}


def test_a_conversion_keeps_mode_type_and_random_state() -> None:
    model = small("rope").to(torch.bfloat16)
    model.train()
    state = torch.get_rng_state()
    new = convert(model, "yarn")
    assert torch.equal(torch.get_rng_state(), state)
    assert new.training
    assert {p.dtype for p in new.parameters()} == {torch.bfloat16}
    assert not convert(model.eval(), "nope").training
    head = new.get_output_embeddings().weight
    assert head is new.get_input_embeddings().weight  # tied as before


def test_a_decoder_without_head_converts_too() -> None:
    model = small("rope").model
    ids = tokens(2, 30)
    new = convert(model, "nope")
    expected = convert(small("rope"), "nope").model(ids).last_hidden_state
    assert torch.equal(new(ids).last_hidden_state, expected)


def test_a_loaded_checkpoint_converts_and_the_result_loads(tmp_path: Path) -> None:
    small("rope", pe_options={"theta": 500.0}).save_pretrained(tmp_path / "before")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "before")
    new = pe.convert(loaded, "nope", joint_norm="qk", softmax_scale=0.3, length_temperature=0.4)
    new.save_pretrained(tmp_path / "after")
    again, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "after", output_loading_info=True
    )
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert again.config.pe == "nope"
    assert torch.equal(logits(again), logits(new))
    assert not torch.allclose(logits(new), logits(convert(loaded, "nope")), atol=1e-2)


def test_a_converted_model_generates_the_same_with_and_without_a_cache() -> None:
    model = convert(small("rope"), "nope", joint_norm="qk", length_temperature=0.5)
    ids = tokens(1, LENGTH - 2)
    settings = {"max_new_tokens": 8, "do_sample": False}
    cached = model.generate(ids, **settings)
    assert torch.equal(model.generate(ids, use_cache=False, **settings), cached)


# The variants of DroPE's code.


@cache
def golden() -> dict[str, Tensor]:
    with np.load(GOLDEN / "drope.npz") as arrays:
        return {k: torch.from_numpy(arrays[k]) for k in arrays if k != "meta_json"}


CONFIGURATIONS = json.loads((GOLDEN / "drope.json").read_text())["configs"]


def attention_of(model: PEForCausalLM) -> Any:
    return model.model.layers[0].attention


def rope_model() -> PEForCausalLM:
    """One layer whose attention has the golden weights."""
    config = PEConfig(
        pe="rope", vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
    )  # fmt: skip
    model = PEForCausalLM(config).eval()
    g = golden()
    with torch.no_grad():
        attention_of(model).qkv_proj.weight.copy_(torch.cat((g["Wq"], g["Wk"], g["Wv"])))
        attention_of(model).o_proj.weight.copy_(g["Wo"])
    return model


@torch.no_grad()
def attention_output(model: PEForCausalLM) -> Tensor:
    x, positions = golden()["hidden"], torch.arange(16)
    enc = model.model.encodings[0]
    shared = LayerInputs(enc.prepare(positions, positions), None, None)  # type: ignore[operator]
    found: Tensor = attention_of(model)(x, enc, shared, None)[0]
    return found


def test_before_dropping_the_layer_is_the_golden_rope_layer() -> None:
    close(attention_output(rope_model()), golden()["rope_before__out_f32"], atol=1e-6)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_dropped_layers_agree_with_drope(name: str) -> None:
    variant = name.removesuffix("_softmax_scale")
    norm = variant.removesuffix("nope").removesuffix("_norm_")
    scale = CONFIGURATIONS[name]["scaling"] if name.endswith("_softmax_scale") else None
    new = convert(rope_model(), "nope", joint_norm=norm or None, softmax_scale=scale)
    torch.testing.assert_close(
        attention_output(new), golden()[f"{name}__out_f32"], atol=1e-6, rtol=1e-5
    )
    assert attention_of(new).scale == pytest.approx(CONFIGURATIONS[name]["scaling"])


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_logits_and_probabilities_agree_with_drope(name: str) -> None:
    """In float64, from the converted layer's own projections and norms."""
    variant = name.removesuffix("_softmax_scale")
    norm = variant.removesuffix("nope").removesuffix("_norm_")
    new = convert(rope_model(), "nope", joint_norm=norm or None).double()
    layer = attention_of(new)
    with torch.no_grad():
        q, k, _ = layer.qkv_proj(golden()["hidden"].double()).split(layer.widths, dim=-1)
        q, k = layer.joint_q_norm(q)[0], layer.joint_k_norm(k)[0]
    q = q.view(16, 4, 8).transpose(0, 1)
    k = k.view(16, 2, 8).transpose(0, 1).repeat_interleave(2, dim=0)
    found = q @ k.mT
    torch.testing.assert_close(
        found, golden()[f"{variant}__logits_unscaled_f64"], atol=1e-9, rtol=1e-9
    )
    causal = torch.ones(16, 16, dtype=torch.bool).tril()
    scaled = (found * CONFIGURATIONS[name]["scaling"]).masked_fill(~causal, -torch.inf)
    torch.testing.assert_close(
        scaled.softmax(-1).float(), golden()[f"{name}__attn_probs_f32"][0], atol=1e-6, rtol=1e-5
    )


def test_the_norm_is_over_all_heads_together_and_starts_at_one() -> None:
    layer = attention_of(convert(rope_model(), "nope", joint_norm="qk"))
    assert layer.joint_q_norm.weight.shape == (32,)
    assert layer.joint_k_norm.weight.shape == (16,)
    assert bool((layer.joint_q_norm.weight == 1).all() and (layer.joint_k_norm.weight == 1).all())


def test_a_norm_that_the_model_has_is_kept_with_its_weights() -> None:
    model = small("rope", joint_norm="qk", qk_norm=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    new = convert(model, "nope", joint_norm="q")
    kept, own = weights(new), weights(model)
    assert new.config.qk_norm
    assert set(own) - set(kept) == {
        f"model.layers.{i}.attention.joint_k_norm.weight" for i in range(2)
    }
    assert_same(kept, {k: own[k] for k in kept})


# The temperature by length.


def test_temperature_is_one_inside_the_training_length_and_grows_with_the_logarithm() -> None:
    model = small("nope")
    warm = convert(model, "nope", length_temperature=0.5)
    assert torch.equal(logits(warm, LENGTH), logits(model, LENGTH))
    assert not torch.allclose(logits(warm)[:, -1], logits(model)[:, -1], atol=1e-4)
    factor = warm.model._temperature(torch.tensor([[[1, LENGTH, 4 * LENGTH]]]))
    assert factor is not None
    close(factor[0, 0], 1 + 0.5 * torch.tensor([0.0, 0.0, 4.0]).clamp(min=1).log())
    assert model.model._temperature(torch.arange(3)) is None


def test_temperature_multiplies_logits_as_a_softmax_scale_would() -> None:
    """The last token of 4 L sees logits times 1 + c ln 4; two layers would mix other rows in."""
    model = small("nope", num_hidden_layers=1)
    length = 4 * LENGTH
    factor = 1 + 0.5 * float(torch.tensor(4.0).log())
    scale = factor / model.config.head_dim**0.5
    warm = convert(model, "nope", length_temperature=0.5)
    fixed = convert(model, "nope", softmax_scale=scale)
    close(logits(warm, length)[:, -1], logits(fixed, length)[:, -1], atol=1e-4)


def test_temperature_counts_the_tokens_of_a_padded_row() -> None:
    model = convert(small("rope"), "nope", length_temperature=0.5)
    ids = tokens(1, 2 * LENGTH)
    padded = torch.cat((torch.zeros(1, 7, dtype=torch.long), ids), dim=1)
    mask = torch.ones_like(padded)
    mask[:, :7] = 0
    with torch.no_grad():
        alone = model(ids).logits[:, -1]
        beside = model(padded, attention_mask=mask).logits[:, -1]
    close(beside, alone)
