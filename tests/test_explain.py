"""pe.explain: layers, training lengths, methods, settings and mistakes of known configurations."""

import copy
import importlib
import json
import math
import re
import shlex
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import pe
from pe.cli import main, token_count
from pe.pretrained.layers import read_layers
from pe.pretrained.picture import layer_rows
from pe.pretrained.read import read

LLAMA = {
    "model_type": "llama", "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4,
}  # fmt: skip
LLAMA31 = LLAMA | {
    "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3",
    },
}  # fmt: skip
QWEN3 = {
    "model_type": "qwen3", "max_position_embeddings": 40960, "rope_theta": 1000000, "head_dim": 128,
    "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 4,
}  # fmt: skip
SMOLLM3 = {
    "model_type": "smollm3", "max_position_embeddings": 65536, "rope_theta": 5000000.0,
    "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 8,
    "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0],
}  # fmt: skip
GPT_OSS = {
    "model_type": "gpt_oss", "max_position_embeddings": 131072, "rope_theta": 150000,
    "head_dim": 64, "hidden_size": 2880, "num_attention_heads": 64, "num_hidden_layers": 4,
    "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 2,
    "rope_scaling": {
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "truncate": False,
        "original_max_position_embeddings": 4096, "rope_type": "yarn",
    },
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152, "num_attention_heads": 4,
    "num_hidden_layers": 6, "sliding_window": 512, "max_position_embeddings": 32768,
    "rope_theta": 1000000, "rope_local_base_freq": 10000,
}  # fmt: skip
LLAMA4 = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "max_position_embeddings": 10485760, "rope_theta": 500000.0,
        "attention_chunk_size": 8192, "head_dim": 128, "hidden_size": 5120,
        "num_attention_heads": 40, "num_hidden_layers": 4, "no_rope_layers": [],
        "rope_scaling": {
            "factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
    },
}  # fmt: skip
PHI3 = {
    "model_type": "phi3", "max_position_embeddings": 4096, "rope_theta": 10000.0,
    "original_max_position_embeddings": 4096, "hidden_size": 3072, "num_attention_heads": 32,
    "num_hidden_layers": 2,
}  # fmt: skip
PHI35 = PHI3 | {
    "max_position_embeddings": 131072,
    "rope_scaling": {
        "type": "longrope", "short_factor": [1.0 + i / 50 for i in range(48)],
        "long_factor": [1.0 + i for i in range(48)],
    },
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "max_position_embeddings": 163840, "rope_theta": 10000,
    "qk_rope_head_dim": 64, "num_hidden_layers": 2,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
        "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
    },
}  # fmt: skip
OLMO3 = {
    "model_type": "olmo3", "max_position_embeddings": 65536, "rope_theta": 500000,
    "hidden_size": 4096, "num_attention_heads": 32, "num_hidden_layers": 4, "sliding_window": 4096,
    "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192,
        "attention_factor": 1.2079441541679836, "beta_fast": 32, "beta_slow": 1,
    },
}  # fmt: skip
ALL = {
    "llama": LLAMA, "llama31": LLAMA31, "qwen3": QWEN3, "smollm3": SMOLLM3, "gpt_oss": GPT_OSS,
    "gemma3": GEMMA3, "llama4": LLAMA4, "phi3": PHI3, "phi35": PHI35, "deepseek": DEEPSEEK,
    "olmo3": OLMO3,
}  # fmt: skip


def warned(configuration, length=None):
    return {warning.name for warning in pe.explain(configuration, length).warnings}


# What layers do


def test_layers_without_rotation_are_seen():
    rotating, none = pe.explain(SMOLLM3).kinds
    assert rotating.layers == (0, 1, 2, 4, 5, 6)
    assert (none.layers, none.does.position, none.does.rope) == ((3, 7), "none", None)


def test_a_flag_that_says_the_opposite_of_its_name_is_explained():
    assert any("no_rope_layers has 1" in note for note in pe.explain(SMOLLM3).notes)


def test_windows_and_sinks_are_seen():
    windowed, full = pe.explain(GPT_OSS).kinds
    assert (windowed.does.attention, windowed.does.reach) == ("sliding", 128)
    assert full.does.reach is None
    assert windowed.does.sink
    assert full.does.sink


def test_layer_types_have_their_own_bases():
    windowed, full = pe.explain(GEMMA3).kinds
    assert (windowed.does.rope.base, full.does.rope.base) == (10000.0, 1000000.0)


def test_the_temperature_of_layers_without_rotation_is_shown_as_a_formula():
    _, none = pe.explain(LLAMA4).kinds
    assert none.does.temperature == "queries × (1 + 0.1 ln(1 + ⌊(p + 1) / 8192⌋))"


# Training lengths


@pytest.mark.parametrize(
    ("configuration", "tokens", "original"),
    [
        (LLAMA, 4096, 4096), (LLAMA31, 131072, 8192), (GPT_OSS, 131072, 4096),
        (PHI35, 131072, 4096), (QWEN3, 32768, 32768),
        (QWEN3 | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 32768}}, 131072, 32768),
    ],
)  # fmt: skip
def test_training_length_and_the_length_before_scaling(configuration, tokens, original):
    training = pe.explain(configuration).training
    assert (training.tokens, training.original) == (tokens, original)
    assert training.certain


def test_a_length_that_is_a_default_of_transformers_is_not_certain():
    bare = {key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}
    training = pe.explain(bare).training
    assert not training.certain
    assert "default" in training.how


def test_a_live_configuration_and_a_model_are_read_as_the_file_is():
    config = LlamaConfig(**copy.deepcopy(LLAMA31))  # transformers writes into its arguments
    assert pe.explain(config).kinds == pe.explain(LLAMA31).kinds
    small = LlamaConfig(hidden_size=64, num_attention_heads=2, num_hidden_layers=1, vocab_size=32,
                        intermediate_size=64)  # fmt: skip
    assert pe.explain(LlamaForCausalLM(small)).main.head_dim == 32


# Frequencies and methods


def test_frequencies_that_never_completed_a_turn():
    explanation = pe.explain(LLAMA, 16384)
    first = explanation.never_completed[0]
    assert first == math.ceil(128 * math.log(4096 / (2 * math.pi)) / (2 * math.log(10000)))
    assert explanation.never_completed == tuple(range(first, 64))
    assert explanation.first_unseen == 4096


def test_methods_that_leave_no_new_angle():
    explanation = pe.explain(LLAMA, 16384)
    unseen = {method.name: method.unseen for method in explanation.methods}
    assert unseen["as_it_is"] == 18
    assert unseen["ntk"] == unseen["dynamic_ntk"] == 17
    assert {unseen[name] for name in ("yarn", "longrope", "pi", "abf", "window")} == {0}


def test_the_first_new_angle_is_where_a_slow_frequency_passes_its_largest_of_training():
    explanation = pe.explain(LLAMA, 16384)
    ntk = explanation.method("ntk")
    seen = torch.tensor([f.radians for f in explanation.frequencies]) * 4096
    slow = list(explanation.never_completed)
    angles = torch.tensor(ntk.inv_freq)
    assert (angles[slow] * (ntk.first_unseen - 1) < seen[slow]).all()
    assert (angles[slow] * ntk.first_unseen >= seen[slow] * (1 - 1e-6)).any()


def test_static_yarn_says_that_it_changes_short_prompts():
    explanation = pe.explain(QWEN3, 131072)
    assert explanation.advice.method == "yarn"
    assert explanation.advice.factor == 4.0
    assert "short prompts" in explanation.advice.short_texts
    assert explanation.method("yarn").short_texts == "changed"
    assert explanation.method("yarn_dynamic").short_texts == "unchanged"


def test_temperature_enters_logits_squared():
    yarn = pe.explain(LLAMA, 16384).method("yarn")
    assert yarn.logits == pytest.approx((0.1 * math.log(4) + 1) ** 2)


def test_latent_attention_has_a_temperature_of_the_whole_logits():
    further = pe.explain(DEEPSEEK, 655360).method("further")
    before, after = (0.1 * math.log(s) + 1 for s in (40, 160))
    assert further.attention_factor == pytest.approx(1.0)
    assert further.logits == pytest.approx((after / before) ** 2)


def test_a_model_that_is_scaled_already_is_scaled_further_in_the_same_way():
    explanation = pe.explain(GPT_OSS, 262144)
    assert [method.name for method in explanation.methods] == ["as_it_is", "further", "window"]
    assert explanation.advice.factor == 64.0
    assert "its makers trained" in explanation.advice.why


def test_an_attention_factor_that_follows_from_the_factor_follows_the_larger_one():
    explanation = pe.explain(OLMO3, 131072)
    assert explanation.method("further").attention_factor == pytest.approx(0.1 * math.log(16) + 1)


def test_nothing_has_to_change_where_all_rotation_is_inside_windows():
    explanation = pe.explain(LLAMA4)
    assert explanation.advice.method is None
    assert explanation.first_unseen is None
    assert "windows" not in warned(LLAMA4)


def test_longrope_beyond_its_factors_gets_no_settings():
    explanation = pe.explain(PHI35)
    assert explanation.settings == {}
    assert "pe.search_longrope" in explanation.advice.why


# What is printed


@pytest.mark.parametrize("name", ALL)
def test_the_text_fits_a_terminal_of_80_columns(name):
    """A table that a terminal wraps cannot be read, and Markdown tables have no line breaks."""
    text = pe.explain(ALL[name] | {"num_hidden_layers": 48} | MANY.get(name, {})).markdown()
    assert max(map(len, text.splitlines())) <= 80


MANY = {
    "smollm3": {"no_rope_layers": [1, 1, 1, 0] * 12},
    "gpt_oss": {"layer_types": ["sliding_attention", "full_attention"] * 24},
}
"""What has one entry per layer of 48."""


def test_lists_of_factors_fill_lines():
    text = pe.explain(PHI3, 16384).markdown()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert len(text.splitlines()) < 160
    block = re.search(r"```json\n(.*?)```", text, re.S)
    assert json.loads(block[1]) == pe.explain(PHI3, 16384).settings["longrope"].transformers


def test_what_queries_and_sinks_do_is_below_the_table():
    assert "- layers 0-3: a learned sink in each head." in pe.explain(GPT_OSS).markdown()
    assert "- layer 3: queries × (1 + 0.1 ln(" in pe.explain(LLAMA4).markdown()


def test_explaining_a_file_of_older_settings_warns_of_nothing(recwarn):
    pe.explain(LLAMA31)
    assert [str(warning.message) for warning in recwarn] == []


# Settings


@pytest.mark.parametrize("name", ALL)
def test_settings_give_transformers_the_frequencies_of_the_method(name):
    explanation = pe.explain(ALL[name])
    for chosen, settings in explanation.settings.items():
        method = explanation.method(chosen)
        config = AutoConfig.for_model(**_merged(ALL[name], settings.transformers))
        config = config.get_text_config(decoder=True)
        key = explanation.layer_type
        block = config.rope_parameters[key] if key else config.rope_parameters
        if block["rope_type"] == "default":
            width = explanation.main.width
            exponent = torch.arange(0, width, 2, dtype=torch.float32) / width
            theirs, attention = 1.0 / block["rope_theta"] ** exponent, 1.0
        else:
            theirs, attention = ROPE_INIT_FUNCTIONS[block["rope_type"]](
                config, torch.device("cpu"), seq_len=explanation.length,
                **({"layer_type": key} if key else {}),
            )  # fmt: skip
        torch.testing.assert_close(theirs.double(), torch.tensor(method.inv_freq).double(),
                                   rtol=2e-6, atol=0)  # fmt: skip
        assert attention == pytest.approx(method.attention_factor, rel=1e-9)
        assert settings.difference < 1e-5


def _merged(raw, settings):
    """``raw`` with ``settings`` put in, as somebody would edit the file."""
    merged = dict(raw)
    for key, value in settings.items():
        inside = key == "text_config"
        merged[key] = _merged(raw[key], value) if inside else value
    merged.pop("rope_scaling", None)
    return merged


ENCODINGS = {"yarn": "yarn", "pi": "pi", "ntk": "ntk", "longrope": "longrope"}


@pytest.mark.parametrize("method", ENCODINGS)
def test_methods_are_this_packages_encodings(method):
    explanation = pe.explain(LLAMA, 16384)
    options = {"original_length": 4096} if method in ("yarn", "longrope") else {}
    encoding = pe.encoding(
        ENCODINGS[method], head_dim=128, num_heads=32, theta=10000.0, factor=4.0, **options
    )
    spectrum = encoding.frequencies(torch.tensor(16384))
    shown = explanation.method(method)
    torch.testing.assert_close(
        spectrum.inv_freq, torch.tensor(shown.inv_freq, dtype=torch.float64), rtol=1e-12, atol=0
    )
    assert float(spectrum.magnitude) == pytest.approx(shown.attention_factor)


@pytest.mark.parametrize("name", ["llama", "llama31", "qwen3", "gpt_oss", "gemma3", "olmo3"])
def test_the_older_form_leads_to_the_same_layers(name):
    explanation = pe.explain(ALL[name])
    settings = explanation.settings[explanation.advice.method]
    older = pe.explain(_merged(ALL[name], {}) | settings.older)
    newer = pe.explain(_merged(ALL[name], {}) | settings.transformers)
    assert "rope_parameters" not in settings.older
    for one, other in zip(older.kinds, newer.kinds, strict=True):
        ours, theirs = one.does.rope.spectrum(2**18), other.does.rope.spectrum(2**18)
        assert torch.equal(ours.inv_freq, theirs.inv_freq)
        assert ours.magnitude == theirs.magnitude


def test_settings_keep_the_base_and_leave_windowed_layers_alone():
    settings = pe.explain(GEMMA3).settings["yarn"].transformers["rope_parameters"]
    assert settings["full_attention"]["rope_type"] == "yarn"
    assert settings["full_attention"]["rope_theta"] == 1000000
    assert settings["sliding_attention"] == {"rope_type": "default", "rope_theta": 10000}


def test_dynamic_settings_leave_the_length_that_transformers_counts_from():
    settings = pe.explain(QWEN3, 131072).settings["dynamic_ntk"]
    assert settings.transformers["max_position_embeddings"] == 32768
    assert settings.vllm is None


def test_a_type_that_takes_no_yarn_gets_its_frequencies_as_longrope():
    explanation = pe.explain(PHI3, 16384)
    assert explanation.advice.method == "longrope"
    assert "refuses" in explanation.no_settings["yarn"]
    block = explanation.settings["longrope"].transformers["rope_parameters"]
    assert block["short_factor"] == [1.0] * 48
    assert block["long_factor"][-1] == pytest.approx(4.0)


def test_vllm_gets_a_whole_block_as_json():
    line = pe.explain(QWEN3, 131072).settings["yarn"].vllm
    assert vllm_overrides(line) == {
        "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1000000, "factor": 4.0,
            "original_max_position_embeddings": 32768,
        }
    }  # fmt: skip
    assert line.startswith("vllm serve MODEL --max-model-len 131072 \\\n--hf-overrides '")


def test_settings_of_a_decoder_inside_are_put_inside():
    gemma = {"model_type": "gemma3", "text_config": GEMMA3,
             "vision_config": {"model_type": "siglip_vision_model"}}  # fmt: skip
    settings = pe.explain(gemma).settings["yarn"]
    assert set(settings.transformers) == {"text_config"}
    assert vllm_overrides(settings.vllm).keys() == {"text_config"}


def vllm_overrides(command):
    """What a shell makes of the command's option."""
    words = shlex.split(command.replace("\\\n", " "))
    assert (len(words), words[5]) == (7, "--hf-overrides")
    return json.loads(words[6])


# Mistakes


def scaled(base=LLAMA, **block):
    return base | {"max_position_embeddings": 16384, "rope_scaling": {"rope_type": "yarn"} | block}


def test_a_missing_original_length_is_named():
    assert "original length missing" in warned(scaled(factor=4.0))
    assert warned(scaled(factor=4.0, original_max_position_embeddings=4096)) == set()


def test_a_factor_below_the_one_trained_in_is_named():
    lowered = GPT_OSS | {"rope_scaling": GPT_OSS["rope_scaling"] | {"factor": 8.0}}
    assert "factor below the one trained in" in warned(lowered)
    assert "factor below the one trained in" not in warned(GPT_OSS)


def test_a_scaling_trained_in_that_is_lost_is_named():
    for block in ({"rope_type": "default"}, {"rope_type": "linear", "factor": 64.0}):
        lost = GPT_OSS | {"rope_scaling": block}
        assert "scaling trained in is lost" in warned(lost)
    assert "scaling trained in is lost" not in warned(GPT_OSS)


def test_a_lost_base_is_named():
    lost = {key: value for key, value in LLAMA31.items() if key != "rope_theta"}
    assert "base lost" in warned(lost)
    bare = {key: value for key, value in LLAMA.items() if key != "rope_theta"}
    assert warned(bare) == {"base not stated"}


def test_yarn_over_windowed_layers_is_named():
    qwen = {
        "model_type": "qwen2", "max_position_embeddings": 131072, "rope_theta": 1e6,
        "hidden_size": 64, "num_attention_heads": 1, "num_hidden_layers": 4,
        "use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 2,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    }  # fmt: skip
    assert "yarn over windowed layers" in warned(qwen)
    assert warned(qwen | {"use_sliding_window": False}) == set()
    assert "yarn over windowed layers" not in warned(GPT_OSS)


def test_an_attention_factor_that_acts_twice_is_named():
    block = DEEPSEEK["rope_scaling"]
    assert "attention_factor twice" not in warned(DEEPSEEK)
    twice = DEEPSEEK | {"rope_scaling": block | {"attention_factor": 1.37}}
    assert "attention_factor twice" in warned(twice)


def test_a_dynamic_scaling_that_starts_too_late_is_named():
    late = LLAMA | {
        "max_position_embeddings": 16384,
        "rope_scaling": {"type": "dynamic", "factor": 4.0,
                         "original_max_position_embeddings": 4096},
    }  # fmt: skip
    assert "dynamic counts from the longest length" in warned(late)


def test_a_factor_that_does_not_fit_the_lengths_is_named():
    short = scaled(factor=2.0, original_max_position_embeddings=4096)
    assert "factor and lengths disagree" in warned(short)


def test_a_truncate_that_transformers_does_not_read_is_named():
    block = OLMO3["rope_scaling"] | {"truncate": False}
    assert "truncate is not read" in warned(OLMO3 | {"rope_scaling": block})
    untouched = pe.explain(OLMO3).main.spectrum().inv_freq
    assert torch.equal(pe.explain(OLMO3 | {"rope_scaling": block}).main.spectrum().inv_freq,
                       untouched)  # fmt: skip


def test_fields_that_transformers_does_not_read_are_named():
    misspelt = scaled(factor=4.0, original_max_position_embeddings=4096, beta_fats=64)
    (mistake,) = pe.explain(misspelt).warnings
    assert mistake.name == "field not read"
    assert "did you mean 'beta_fast'" in mistake.text
    partial = LLAMA | {"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}
    assert warned(partial) == {"field not read"}
    assert pe.explain(partial).main.width == 128
    hunyuan = {"model_type": "hunyuan_v1_dense", "num_hidden_layers": 1, "rope_theta": 1e4,
               "max_position_embeddings": 4096}  # fmt: skip
    alpha = {"rope_scaling": {"type": "dynamic", "factor": 1.0, "alpha": 1000.0}}
    assert warned(hunyuan | alpha) == set()
    assert pe.explain(hunyuan | alpha).main.kind == "ntk_alpha"
    assert warned(LLAMA | alpha) == {"field not read"}
    assert pe.explain(LLAMA | alpha).main.kind == "dynamic"


def test_a_decoder_whose_fields_are_outside_is_read_as_stated():
    old = {"model_type": "qwen2_5_vl", "hidden_size": 3584, "num_attention_heads": 28,
           "num_hidden_layers": 2, "max_position_embeddings": 128000, "rope_theta": 5e5,
           "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}  # fmt: skip
    explanation = pe.explain(old)
    assert explanation.main.base == 5e5
    assert explanation.training.certain
    assert explanation.warnings == ()


def test_a_window_of_a_type_that_has_none_is_not_shown():
    assert pe.explain(LLAMA | {"sliding_window": 512}).kinds[0].does.reach is None
    mistral = LLAMA | {"model_type": "mistral", "sliding_window": 512}
    assert pe.explain(mistral).kinds[0].does.reach == 512


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "glm4", "modernbert-decoder"])
@pytest.mark.parametrize(
    "scaling",
    [
        {}, {"rope_type": "yarn", "factor": 4.0, "truncate": None},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ],
)  # fmt: skip
def test_frequencies_are_those_of_transformers_rotary_module(kind, scaling):
    """The original length is outside the block, and the share of a head too."""
    raw = {"model_type": kind, "hidden_size": 64, "num_attention_heads": 2, "rope_theta": 5e4,
           "num_hidden_layers": 1, "max_position_embeddings": 4096, "rope_scaling": scaling,
           "original_max_position_embeddings": 1024}  # fmt: skip
    config = read(raw).config
    rope = read_layers(config)[0].rope
    name = type(config).__module__.replace("configuration", "modeling")
    module = importlib.import_module(name)
    rotary = next(v for k, v in vars(module).items() if k.endswith("RotaryEmbedding"))(config)
    theirs = getattr(rotary, "inv_freq", None)
    theirs = rotary.full_attention_inv_freq if theirs is None else theirs
    torch.testing.assert_close(rope.spectrum().inv_freq, theirs.double(), rtol=2e-6, atol=0)


def test_the_pairing_is_named_in_the_text():
    assert "half-split" in pe.explain(LLAMA).markdown()
    glm = {"model_type": "glm", "num_hidden_layers": 1, "max_position_embeddings": 8192,
           "rope_theta": 1e4}  # fmt: skip
    assert pe.explain(glm).main.layout == "interleaved"
    assert "interleaved" in pe.explain(glm).markdown()


def test_phi_35_moe_has_its_own_factor_on_cosines_and_sines():
    scaling = PHI35["rope_scaling"] | {"short_mscale": 1.243, "long_mscale": 1.243}
    raw = PHI35 | {"model_type": "phimoe", "rope_scaling": scaling}
    assert "field not read" not in warned(raw)
    assert pe.explain(raw).main.spectrum().magnitude == 1.243
    with pytest.raises(ValueError, match=r"short_mscale 1\.243 and long_mscale 1\.5 differ"):
        pe.explain(raw | {"rope_scaling": scaling | {"long_mscale": 1.5}})


# What is refused, in one line


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"model_type": "bert"}, "no decoder of text"),
        ({"model_type": "modernbert"}, "no decoder of text"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"model_type": "gpt2"}, "no layer of 'gpt2' rotates"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"model_type": "mamba"}, "no attention"),
        ({"model_type": "kimi_linear"}, "no layer of 'kimi_linear' rotates"),
        ({"model_type": "lama"}, "did you mean 'llama'"),
        ({"hidden_size": 3}, "no model_type"),
        (LLAMA | {"rope_scaling": {"type": "yarnn", "factor": 2.0}}, "did you mean 'yarn'"),
        (LLAMA | {"rope_scaling": {"type": "linear"}}, "needs factor"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 0.25}}, "expected 1 or more"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": "4"}}, "expected a number"),
        (LLAMA | {"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4.0}},
         "contradict each other"),
        (LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 4.0},
                  "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "contradict each other"),
        (LLAMA | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
         "contradict each other"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 8192}}, "is more than"),
        (PHI35 | {"rope_scaling": PHI35["rope_scaling"] | {"long_factor": [1.0]}}, "48"),
        (PHI35 | {"rope_scaling": PHI35["rope_scaling"] | {"long_factor": [0.0] * 48}},
         "long_factor, pair 0"),
        (PHI35 | {"rope_scaling": PHI35["rope_scaling"] | {"type": "su"}},
         "write 'longrope', today's name, in place of 'su'"),
        (LLAMA | {"rope_theta": 1.0}, "expected more than 1"),
        (LLAMA | {"rope_theta": "x"}, "expected a number"),
        (LLAMA | {"partial_rotary_factor": 3.0}, "at most 1"),
        (LLAMA | {"max_position_embeddings": -5}, "2 or more"),
        (LLAMA | {"num_attention_heads": 0}, "by zero"),
        (LLAMA | {"num_hidden_layers": 0}, "num_hidden_layers 0: expected"),
        (LLAMA | {"head_dim": 0}, "head_dim 0: expected"),
        (LLAMA | {"model_type": "mistral", "sliding_window": -1}, "sliding_window -1: expected"),
        (LLAMA | {"rope_parameters": {"rope_type": None, "rope_theta": 1e4}}, "write 'default'"),
        (LLAMA | {"rope_scaling": {"type": "su", "short_factor": [1.0] * 64,
                                   "long_factor": [1.0] * 64}}, "write 'longrope'"),
        (LLAMA | {"rope_scaling": {"type": "ntk", "factor": 4.0}},
         "choose from: default, linear, dynamic, proportional"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
         "reads one block for all layers"),
        (LLAMA | {"model_type": "gemma4_text",
                  "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
         "reads one for each of"),
        (LLAMA | {"partial_rotary_factor": 0.5, "rope_scaling": {"type": "linear", "factor": 2.0}},
         "'llama' rotates 128 channels"),
        (scaled(factor=4.0, mscale="1"), "mscale: expected a number"),
        (scaled(factor=4.0, truncate="false"), "expected true or false"),
        (scaled(factor=4.0, original_max_position_embeddings=None), "is null"),
        (scaled(factor=4.0, original_max_position_embeddings=4096.5), "a whole number"),
        (scaled(factor=4.0, original_max_position_embeddings=4096)
         | {"original_max_position_embeddings": 2048}, "outside the block contradict"),
        (LLAMA | {"rope_scaling": {"type": "longrope", "short_factor": 1.0, "long_factor": 2.0}},
         "expected a list of numbers"),
        (LLAMA | {"rope_scaling": {"type": "axial"}}, "axes of an image"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0,
                                   "original_max_position_embeddings": 0}}, "above 0"),
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1, "beta_slow": 9}},
         "configuration: beta_fast"),
        ({"model_type": "pe-decoder"}, "a model of this package"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(configuration, message):
    with pytest.raises(ValueError, match=r".") as error:
        pe.explain(configuration)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("length", [1, 4096])
def test_a_length_within_the_training_length_is_refused(length):
    with pytest.raises(ValueError, match="within the training length 4,096"):
        pe.explain(LLAMA, length)


@pytest.mark.parametrize("length", ["16384", 16384.5, 16384.0])
def test_a_length_that_is_no_whole_number_is_refused(length):
    with pytest.raises(
        ValueError, match=f"length: expected a whole number of tokens, got {length!r}"
    ):
        pe.explain(LLAMA, length)


def test_a_factor_that_is_larger_than_a_length_needs_is_named_with_the_one_that_covers_it():
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    with pytest.raises(ValueError, match="factor 2 covers it"):
        pe.explain(QWEN3 | {"rope_scaling": scaling}, 65536)


def test_a_dynamic_configuration_needs_nothing():
    dynamic = LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 1.0}}
    explanation = pe.explain(dynamic, 16384)
    assert explanation.advice.method is None
    assert "by itself" in explanation.advice.why


def test_something_else_than_a_model_is_refused():
    with pytest.raises(ValueError, match="expected a path"):
        pe.explain(3)


def test_code_of_a_checkpoint_is_never_run(tmp_path):
    (tmp_path / "modeling_own.py").write_text("raise SystemExit('executed')")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "modeling_own.Own"}}
    (tmp_path / "config.json").write_text(json.dumps(own))
    with pytest.raises(ValueError, match="never run"):
        pe.explain(tmp_path)


# Paths and the command


def test_a_dictionary_is_left_as_it_was():
    before = copy.deepcopy(LLAMA31)
    pe.explain(LLAMA31)
    assert before == LLAMA31


def test_a_folder_and_a_file_are_the_same(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert pe.explain(tmp_path) == pe.explain(str(tmp_path / "config.json"))


def test_paths_that_are_no_configuration_are_refused(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        pe.explain("meta-llama/Llama-3.1-8B")
    with pytest.raises(ValueError, match="found 0 gguf files"):
        pe.explain(tmp_path)
    (tmp_path / "config.json").write_text("weights")
    with pytest.raises(ValueError, match=r"expected a config\.json"):
        pe.explain(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ValueError, match="expected a dictionary"):
        pe.explain(tmp_path)


def test_without_the_gguf_package_the_message_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match="pip install 'gguf"):
        pe.explain(tmp_path)


def test_the_command_prints_markdown_json_and_settings(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert main(["explain", str(tmp_path), "--length", "131072"]) == 0
    text = capsys.readouterr().out
    assert '"original_max_position_embeddings": 32768' in text
    assert "Static settings act at every length" in text
    assert "| layers" in text
    assert main(["explain", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model_type"] == "qwen3"
    assert main(["explain", str(tmp_path), "--method", "pi"]) == 0
    assert '"linear"' in capsys.readouterr().out


def test_the_command_refuses_in_one_line(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3))
    assert main(["explain", str(tmp_path), "--length", "100"]) == 2
    assert main(["explain", str(tmp_path), "--json", "--method", "pi"]) == 2
    assert main(["explain", str(tmp_path), "--method", "yarn_dynamic"]) == 2
    assert main(["explain", str(tmp_path), "--method", "yran"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("pe explain: ") for line in lines] == [True] * 4
    assert "--json has no effect with --method pi" in lines[1]
    assert "did you mean 'yarn'" in lines[3]
    for text in ("128kk", "-1", "0", "k", "1.5k", "long"):
        assert main(["explain", str(tmp_path), "--length", text]) == 2
        assert "such as 131072 or 128k" in capsys.readouterr().err


def test_a_length_may_be_written_in_thousands():
    texts = ("131072", "131,072", "131_072", "128k", "128K")
    assert {token_count(text) for text in texts} == {131072}
    assert token_count("1m") == 1048576


def test_the_picture_shows_every_method_but_the_window(tmp_path):
    explanation = pe.explain(LLAMA, 16384)
    _, below = explanation.figure().axes
    titles = {text.get_text() for text in below.get_legend().get_texts()}
    assert titles == {method.title for method in explanation.methods if method.name != "window"}
    assert explanation.save_figure(tmp_path / "a.svg").read_text().startswith("<?xml")
    assert explanation.save_figure(tmp_path / "a.png").stat().st_size > 1000


def test_the_picture_shows_what_layers_see_where_they_differ():
    rows, length = layer_rows(pe.explain(GEMMA3).kinds)
    assert length == 2048
    assert [row.spans for row in rows] == [[(1536, 2048)]] * 5 + [[(0, 2048)]]
    assert rows[0].title == "RoPE, base 10,000, sliding 512"
    rows, length = layer_rows(pe.explain(LLAMA4).kinds)
    assert (len(rows), rows[0].spans) == (4, [(24576, 32768)]), "one period, its last chunk"
    assert rows[3].title == "NoPE"
    assert layer_rows(pe.explain(LLAMA).kinds) == ([], 0)


def test_the_page_shows_what_the_command_prints_and_its_python_runs(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[1] / "book" / "explain.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    shown = re.search(r"^:caption: config\.json\n\n(.*?)^```$", page, re.M | re.S)
    Path("config.json").write_text(shown[1])
    console = re.search(r"^````console\n\$ pe (.*?)\n(.*?)^````$", page, re.M | re.S)
    assert main(console[1].split()) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    assert printed == console[2].rstrip().splitlines()
    names = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S):
        exec(block, names)
    assert names["explanation"].advice.factor == 4.0


def test_the_page_names_every_mistake():
    page = (Path(__file__).parents[1] / "book" / "explain.md").read_text("utf-8")
    text = (Path(pe.__file__).parent / "pretrained" / "mistakes.py").read_text("utf-8")
    names = set(re.findall(r'name="([a-z_ ]+)"', text))
    assert len(names) > 8
    for name in names:
        assert f"| {name} |" in page, name
