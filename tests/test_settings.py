"""What is asked for is what is built: every setting is used or refused, the nearest being named."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import pe
from pe.encodings import encoding
from pe.evaluation.factors import cells, refuse_unused_options
from pe.model import PEConfig, PEForCausalLM, PEModel
from pe.model.config import FIELDS, GENERATION_DEFAULTS, TRANSFORMERS_FIELDS

SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip


# ---------------------------------------------------------------- fields of a configuration


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rope_theta": 5e5}, r"rope_theta: an option of 'rope'; give pe_options={'theta': 500000"),
        ({"partial_rotary_factor": 0.5}, "pe_options={'rotary_fraction': 0.5}"),
        ({"pe": "yarn", "factor": 8.0}, "factor: an option of 'yarn'; give pe_options={'factor'"),
        ({"sliding_window": 4096}, "no field 'sliding_window'; it would have no effect"),
        ({"no_rope_layers": [1, 0]}, "no field 'no_rope_layers'"),
        ({"rope_scaling": {"factor": 8.0}}, "no field 'rope_scaling'.*go into pe_options"),
        ({"qk_nrom": True}, "no field 'qk_nrom' .did you mean 'qk_norm'"),
        ({"hiden_size": 5}, "no field 'hiden_size' .did you mean 'hidden_size'"),
        ({"temperature": 0.5}, "temperature: set it in the model's generation_config"),
        ({"num_key_value_heads": 0}, "num_key_value_heads: expected .* at least 1, got 0"),
        ({"attention_backend": "sdap"}, "unknown attention backend 'sdap' .did you mean 'sdpa'"),
        ({"num_attention_heads": 5}, "hidden_size 32 does not divide into 5 heads; give head_dim"),
        ({"pe_options": {"original_length": 8}}, "'rope' does not use original_length"),
    ],
    ids=str,
)
def test_a_field_that_would_have_no_effect_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PEConfig(**(SMALL | fields))


def test_transformers_own_fields_pass() -> None:
    """Those of the installed release, and what older files list of generation."""
    generic = {k: v for k, v in PreTrainedConfig().to_dict().items() if k in TRANSFORMERS_FIELDS}
    assert {"dtype", "architectures", "id2label", "return_dict"} <= set(generic)
    PEConfig(**(SMALL | generic))
    PEConfig(**(SMALL | {k: v for k, v in GENERATION_DEFAULTS.items() if k not in FIELDS}))
    ids = {name: 1 for name in vars(GenerationConfig()) if name.endswith("_token_id")}
    assert PEConfig(**(SMALL | ids)).eos_token_id == 1


def test_a_head_may_be_wider_than_its_share_of_the_embeddings(tmp_path: Path) -> None:
    """As in Qwen3-0.6B: 1,024 channels, 16 heads of 128."""
    config = PEConfig(**SMALL, head_dim=16, num_key_value_heads=2, joint_norm="qk", qk_norm=True)
    assert config.head_dim == 16
    model = PEForCausalLM(config).eval()
    layer = model.model.layers[0].attention
    assert layer.qkv_proj.weight.shape == (64 + 2 * 32, 32)
    assert layer.o_proj.weight.shape == (32, 64)
    ids = torch.arange(24)[None]
    model.save_pretrained(tmp_path)
    again = PEForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, model(ids).logits)
        assert torch.allclose(pe.convert(model, "alibi")(ids).logits, model(ids).logits) is False
    assert PEConfig(**SMALL).head_dim == 8


def test_a_saved_configuration_reloads_unchanged(tmp_path: Path) -> None:
    options = {"factor": 8.0, "truncate": False}
    config = PEConfig(**SMALL, pe="yarn", pe_options=options, eos_token_id=3, softmax_scale=0.3)
    PEForCausalLM(config).save_pretrained(tmp_path)
    again = PEConfig.from_pretrained(tmp_path)
    for name in (*FIELDS, "eos_token_id"):
        assert getattr(again, name) == getattr(config, name), name
    assert PEConfig(**again.to_dict()).to_dict() == again.to_dict()


def test_overrides_at_loading_are_checked_as_at_building(tmp_path: Path) -> None:
    PEForCausalLM(PEConfig(**SMALL)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no field 'hiden_size'"):
        PEConfig.from_pretrained(tmp_path, hiden_size=5)
    with pytest.raises(ValueError, match="unknown encoding 'rpoe'"):
        PEForCausalLM.from_pretrained(tmp_path, pe="rpoe")
    for model_type in (PEForCausalLM, PEModel, AutoModelForCausalLM):
        with pytest.raises(ValueError, match="rope_theta: an option of 'rope'; give pe_options="):
            model_type.from_pretrained(tmp_path, rope_theta=5e5)
    with pytest.raises(ValueError, match="no field 'hiden_size'"):
        PEForCausalLM.from_pretrained(tmp_path, hiden_size=5)
    with pytest.raises(ValueError, match="hidden_size: a field of the configuration"):
        PEForCausalLM(PEConfig(**SMALL), hidden_size=64)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, pe_options={"theta": 5e5})
    assert model.model.encodings[0].theta == 5e5


def test_a_built_models_configuration_cannot_say_something_else() -> None:
    model = PEForCausalLM(PEConfig(**SMALL))
    for name, value in (("pe", "alibi"), ("qk_norm", True), ("max_position_embeddings", 99)):
        with pytest.raises(ValueError, match=f"{name}: a model was built with this configuration"):
            setattr(model.config, name, value)
    with pytest.raises(ValueError, match="rope_theta: an option of 'rope'"):
        model.config.rope_theta = 5e5
    model.config.length_temperature = 0.1  # which the model follows
    model.config.use_cache = False  # as transformers' Trainer does
    model.resize_token_embeddings(70)
    assert model.config.vocab_size == 70
    assert "_built" not in model.config.to_dict()
    assert copy.deepcopy(model.config).changed(pe="alibi").pe == "alibi"


def test_trainer_smooths_the_labels_of_the_next_tokens(tmp_path: Path) -> None:
    model = PEForCausalLM(PEConfig(**SMALL))
    tokens = torch.randint(0, model.config.vocab_size, (2, 8))
    options = TrainingArguments(
        str(tmp_path), label_smoothing_factor=0.1, report_to=[], use_cpu=True
    )
    loss = Trainer(model, options).compute_loss(model, {"input_ids": tokens, "labels": tokens})
    logits = model(tokens).logits[:, :-1].flatten(0, 1)
    expected = cross_entropy(logits, tokens[:, 1:].flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, expected)


def test_a_folder_of_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    """Its weights have other names, so the result would be a model with random attention."""
    other = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        vocab_size=50,
    )  # fmt: skip
    LlamaForCausalLM(other).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a model of type 'llama', and 'pe-decoder' was expected"):
        PEForCausalLM.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="expected a PEConfig, got a LlamaConfig"):
        PEModel(other)


# ---------------------------------------------------------------- options of encodings


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("yarn", {"mscale": 1.0}, "mscale_all_dim: mscale and mscale_all_dim have an effect toget"),
        ("yarn", {"mscale_all_dim": 1.0}, "mscale: mscale and mscale_all_dim have an effect"),
        ("yarn", {"mscale": 1.0, "mscale_all_dim": 0.0}, "mscale_all_dim: expected .* above 0"),
        ("yarn", {"attention_factor": 1.5, "mscale": 1.0, "mscale_all_dim": 1.0},
         "mscale: attention_factor is m itself"),
        ("yarn", {"factor": None}, "option factor: expected float, got None"),
        ("yarn", {"original_max_position_embeddings": 8}, "it is called 'original_length' here"),
        ("rope", {"rope_theta": 5e5}, "it is called 'theta' here"),
        ("longrope", {"long_factor": [2.0] * 8}, "factor: expected the extended length"),
        ("longrope", {"short_factor": [1.0] * 8}, "factor: expected the extended length"),
        ("longrope", {"factor": None}, "option factor: expected float, got None"),
        ("longrope", {"long_factor": [2.0] * 8, "magnitude": 1.2, "dynamic": True}, "factor: exp"),
        ("irope", {"attn_scale": 0.0, "floor_scale": 4}, "floor_scale: with attn_scale 0"),
        ("irope", {"qk_norm": False, "norm_eps": 1e-6}, "norm_eps: without qk_norm"),
        ("fope", {"keep_zero": True, "dropped": "ones"}, "dropped: with keep_zero"),
    ],
    ids=str,
)  # fmt: skip
def test_an_option_without_effect_is_refused(name: str, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        encoding(name, head_dim=16, num_heads=2, original_length=64, **options)


def test_longrope_takes_m_in_place_of_the_factor() -> None:
    options = {"original_length": 64, "long_factor": [2.0] * 8, "magnitude": 1.2}
    enc: Any = encoding("longrope", head_dim=16, num_heads=2, **options)
    assert enc.spectrum(torch.arange(9)).magnitude == 1.2


@pytest.mark.parametrize("spec", ["llama3", "irope+llama3"])
def test_llama3_divides_what_lies_below_where_both_bounds_are_one(spec: str) -> None:
    """Llama-4-Scout's block: 29 of 64 frequencies are divided by 16, as by transformers."""
    block = {"factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0}
    enc: Any = encoding(spec, head_dim=128, num_heads=8, original_length=8192, theta=5e5, **block)
    base: Any = encoding("rope", head_dim=128, num_heads=8, theta=5e5)
    ratio = base.inv_freq / enc.inv_freq
    assert torch.equal(ratio.round().unique(), torch.tensor([1.0, 16.0], dtype=torch.float64))
    assert int((ratio > 8).sum()) == 29
    parameters = block | {
        "rope_type": "llama3", "rope_theta": 5e5, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    theirs = LlamaConfig(
        hidden_size=1024, num_attention_heads=8, head_dim=128, rope_parameters=parameters,
        max_position_embeddings=131072,
    )  # fmt: skip
    inv_freq, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    torch.testing.assert_close(enc.inv_freq.float(), inv_freq, rtol=3e-7, atol=0)


def test_options_of_an_extension_that_match_no_cell_are_refused() -> None:
    wanted, lengths = cells(["pi"], [2.0, "length"]), ([256, 1024], 256)
    refuse_unused_options({"pi@2": {"theta": 1e4}, "pi@4": {"theta": 1e4}}, wanted, *lengths)
    with pytest.raises(ValueError, match="unknown cell in options 'pi@2.0' .did you mean 'pi@2'"):
        refuse_unused_options({"pi@2.0": {"theta": 1e4}}, wanted, *lengths)


def test_an_unknown_encoding_that_looks_like_a_class_is_told_how_one_is_named() -> None:
    for name in ("mine.Root", "Root", "test_settings"):
        with pytest.raises(ValueError, match="a class of your own is module:Class"):
            encoding(name, head_dim=8, num_heads=2)
    with pytest.raises(ValueError, match="choose from: [a-z0-9_, ]+$"):
        encoding("rpoe", head_dim=8, num_heads=2)


@pytest.mark.parametrize(
    ("spec", "named"), [("learned", "learned"), ("learned+alibi", "learned"), ("clex", "clex")]
)
def test_a_position_too_far_names_the_part_that_has_none(spec: str, named: str) -> None:
    enc = encoding(spec, head_dim=16, num_heads=2, original_length=8)
    q, places = torch.zeros(1, 2, 1, 16), torch.tensor([8 * 16])
    match = f"^'{named}' has no position 128"
    with pytest.raises(pe.encodings.PositionError, match=match):
        enc.embed(torch.zeros(1, 1, 32), places) if enc.embeds else enc.rotate(q, q, places, places)


def test_a_sum_keeps_as_many_numbers_of_each_token_as_its_parts() -> None:
    sizes: dict[str, Any] = {"head_dim": 16, "num_heads": 4, "hidden_size": 64}
    for spec, size in (("rope+fox", 1), ("rope+alibi", 0), ("fox+cope", 1)):
        enc = encoding(spec, original_length=8, **sizes)
        state = enc.key_state(torch.zeros(1, 5, 64))
        assert enc.state_size == size == (0 if state is None else state.shape[-1])


def test_options_of_a_built_models_encoding_are_read_and_not_written(tmp_path: Path) -> None:
    """At save they would name another encoding than the weights were used with."""
    factors = {"long_factor": [2.0] * 4, "short_factor": [1.0] * 4, "factor": 2.0}
    config = PEConfig(**SMALL, pe="longrope", pe_options=factors)
    config.pe_options["factor"] = 4.0  # nothing was built yet
    model = PEForCausalLM(config)
    options = model.config.pe_options
    for change in (
        lambda: options.__setitem__("factor", 8.0),
        lambda: options.update(factor=8.0),
        lambda: options.setdefault("theta", 1.0),
        lambda: options.pop("factor"),
        lambda: options.__delitem__("factor"),
        lambda: options.__ior__({"factor": 8.0}),
        lambda: options.popitem(),
        lambda: options.clear(),
    ):
        with pytest.raises(ValueError, match="pe_options: a model was built with this"):
            change()
    with pytest.raises(TypeError, match="item assignment"):
        options["long_factor"][0] = 3.0
    model.save_pretrained(tmp_path)
    saved = PEConfig.from_pretrained(tmp_path).pe_options
    assert saved == factors | {"factor": 4.0}
    assert copy.deepcopy(options) == pickle.loads(pickle.dumps(options)) == saved
    copy.copy(options)["factor"] = 8.0
    assert options["factor"] == 4.0
    assert PEModel(model.config).config.pe_options == options
    assert pe.convert(model, "longrope", factor=8.0).config.pe_options["factor"] == 8.0
