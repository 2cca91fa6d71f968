"""Every model type of the installed transformers, from default configurations, no models.

transformers' frequencies are those of ``compute_default_rope_parameters`` in its modelling files.
Hundreds of these files have the same function, so one module per distinct text is imported.
"""

import ast
import importlib
import re
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pe.pretrained import families
from pe.pretrained.layers import nested_keys, read_layers
from pe.pretrained.read import read

CPU = torch.device("cpu")
MODELS = Path(transformers.__file__).parent / "models"


@cache
def decoders():
    """By model type, the decoder's configuration object; and why each other type is refused."""
    transformers.logging.set_verbosity_error()
    found, refused = {}, {}
    for kind in sorted(CONFIG_MAPPING.keys()):
        try:
            whole = CONFIG_MAPPING[kind]()
        except Exception as error:  # a default that transformers itself refuses
            refused[kind] = f"default: {error}"
            continue
        try:
            config = read(whole).config
            found[config.model_type] = config, read_layers(config)
        except ValueError as error:
            refused[kind] = str(error)
    return found, refused


def rotating():
    return {kind: (config, layers) for kind, (config, layers) in decoders()[0].items()
            if any(layer.rope for layer in layers)}  # fmt: skip


@cache
def source(config_class):
    """The text of a configuration's modelling file, "" where there is none."""
    name = config_class.__module__.split(".")[-2]
    path = MODELS / name / f"modeling_{name}.py"
    return path.read_text() if path.exists() else ""


@cache
def functions(config_class):
    """(class, text) of each ``compute_default_rope_parameters`` for a text model."""
    found = []
    for node in ast.parse(source(config_class)).body:
        if isinstance(node, ast.ClassDef) and node.name.endswith("RotaryEmbedding"):
            for item in node.body:
                named = isinstance(item, ast.FunctionDef)
                if named and item.name == "compute_default_rope_parameters":
                    found.append((node.name, "\n".join(map(ast.unparse, item.body[1:]))))
    return [(name, text) for name, text in found if not re.search("Vision|Audio|DiT|SaProt", name)]


_COMPUTED = {}


def compute(config_class, name, text):
    """The function of that text, from the first module that has it."""
    if text not in _COMPUTED:
        path = config_class.__module__.replace("configuration_", "modeling_")
        _COMPUTED[text] = getattr(importlib.import_module(path), name)
    return _COMPUTED[text].compute_default_rope_parameters


def test_most_types_of_decoders_are_known_and_others_are_refused_in_one_line():
    refused = decoders()[1]
    assert len(rotating()) > 150
    assert all("\n" not in reason for reason in refused.values() if "default:" not in reason)


def test_frequencies_are_those_of_transformers_for_every_type_that_rotates():
    compared = 0
    for kind, (config, layers) in rotating().items():
        if config.is_heterogeneous:
            config.allow_global_per_layer_attribute_access = True
        ropes = {layer.attention: layer.rope for layer in layers if layer.rope}
        for attention, rope in ropes.items():
            keys = nested_keys(config)
            key = next((k for k in keys if k.removesuffix("_attention") == attention), None)
            options = {"layer_type": key} if key else {}
            if keys and not key:
                continue  # DeepSeek V4 names its blocks otherwise
            theirs = []
            if rope.kind in ROPE_INIT_FUNCTIONS:
                theirs.append(ROPE_INIT_FUNCTIONS[rope.kind](config, device=CPU, **options))
            else:
                for name, text in functions(type(config)):
                    function = compute(type(config), name, text)
                    theirs.append(function(config, device=CPU, **options))
            if not theirs:
                continue
            ours = rope.spectrum()
            gaps = []
            for inv_freq, attention_factor in theirs:
                # vision-language types may sort frequencies by their axis
                mine, other = ours.inv_freq.sort().values, inv_freq.double().sort().values
                if mine.shape == other.shape:
                    gap = (mine - other).abs() / mine.clamp(min=1e-30)
                    gaps.append(max(float(gap.max()), abs(attention_factor - ours.magnitude)))
            assert gaps, kind
            assert min(gaps) < 1e-5, (kind, attention, gaps)
            compared += 1
    assert compared > 150


def expected_layout(config, text):
    if getattr(config, "rope_interleave", None) is not None and "rope_interleave" in text:
        return "interleaved" if config.rope_interleave else "half"
    if "view_as_complex" in text or "rotate_every_two" in text:
        return "interleaved"
    if re.search(r"= apply_rotary_pos_emb_interleave\(", text):
        return "interleaved"
    for name in ("rotate_half_llm", "rotate_half"):
        body = re.search(rf"def {name}\(.*?(?=\n\S)", text, re.S)
        if body and (name == "rotate_half_llm" or "rotate_half_llm" not in text):
            return "interleaved" if "::2" in body[0] else "half"
    return "half"


def test_pairing_is_that_of_each_modelling_file():
    wrong = {}
    for kind, (config, layers) in rotating().items():
        text = source(type(config))
        layout = next(layer.rope.layout for layer in layers if layer.rope)
        if text and layout != expected_layout(config, text):
            wrong[kind] = layout
    assert wrong == {}


def test_what_a_type_reads_is_known_from_its_modelling_file():
    for kind, (config, _) in rotating().items():
        if not (text := source(type(config))):
            continue
        assert ("partial_rotary_factor" in text) == (kind in families.PARTIAL), kind
        assert ("ntk_alpha" in text) == (kind in families.FIXED_ALPHA), kind
        assert ("rope_parameters[layer_type]" in text) == bool(nested_keys(config)), kind


def test_sinks_are_those_of_each_modelling_file():
    known = families.SINKS | families.SINKS_IN_WINDOWS
    for kind, (config, layers) in rotating().items():
        has = bool(re.search(r"self\.(sinks|learnable_sink)\b", source(type(config))))
        assert has == (kind in known), kind
        assert any(layer.sink for layer in layers) == (kind in known), kind


CONDITIONAL = re.compile(r"\n +if (?P<test>[^\n]*):[^\n]*\n(?:[^\n]*\n)?[^\n]*= apply_rotary")


ELSEWHERE = {
    "cohere_compass_text",  # its default configuration has no rotary settings
    "idefics",  # cross-attention to images
    "evolla",  # in its encoder of proteins
    "kyutai_speech_to_text",  # in its depth decoder
    "moshi",
}
"""Types whose condition is about something else than a layer of the text decoder."""


def test_types_that_rotate_some_layers_only_are_known():
    missing = {}
    by_rule = families.ROTATE_WINDOWED | families.ROTATE_WINDOWED_IF_ANY
    for kind, (config, layers) in decoders()[0].items():
        match = CONDITIONAL.search(source(type(config)))
        if match is None or "rope_interleave" in match["test"]:
            continue
        by_settings = any(
            hasattr(config, name)
            for name in ("no_rope_layers", "layer_rope_theta", "position_embedding_type",
                         "use_mem_rope", "alibi")
        )  # fmt: skip
        nested = None in (getattr(config, "rope_parameters", None) or {}).values()
        recurrent = any(layer.position == "recurrent" for layer in layers)
        unknown = not (kind in by_rule or by_settings or nested or recurrent)
        if unknown and kind not in ELSEWHERE:
            missing[kind] = match["test"]
    assert missing == {}


def test_latent_attention_scales_logits_where_the_modelling_file_does():
    for kind, (config, layers) in rotating().items():
        if "yarn_apply_mscale" in source(type(config)):
            assert next(layer.rope for layer in layers if layer.rope).latent, kind


@pytest.mark.parametrize("kind", ["smollm3", "gemma3_text", "deepseek_v4", "mimo_v2_flash"])
def test_layers_of_a_type_cover_the_model(kind):
    config, layers = decoders()[0][kind]
    assert len(layers) == config.num_hidden_layers
    assert all(layer.position in ("rotation", "none") for layer in layers)


SMALL = {
    "hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 32, "head_dim": 8,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 8, "vocab_size": 32,
    "sliding_window": 8, "attention_chunk_size": 8, "moe_intermediate_size": 16, "num_experts": 2,
    "num_local_experts": 2, "n_routed_experts": 2, "num_experts_per_tok": 1, "num_dense_layers": 1,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


@pytest.mark.parametrize(
    "kind",
    ["smollm3", "llama4_text", "cohere2", "exaone4", "kolibri1", "afmoe", "flint", "granite_swa"],
)
def test_layers_that_rotate_are_those_of_a_tiny_model(kind, monkeypatch):
    """Of types that rotate some layers only: which layers call the rotation."""
    small = {k: v for k, v in SMALL.items() if hasattr(CONFIG_MAPPING[kind](), k)}
    config = CONFIG_MAPPING[kind](**small)
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config).eval()
    called, here = set(), [-1]
    module = importlib.import_module(type(model).__module__)
    names = [n for n in vars(module) if n.startswith("apply_rotary")]
    assert names

    def counted(function):
        def call(*args, **kwargs):
            called.add(here[0])
            return function(*args, **kwargs)

        return call

    for name in names:
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    for index, layer in enumerate(model.model.layers):
        layer.register_forward_pre_hook(lambda *_, index=index: here.__setitem__(0, index))
        for part in layer.modules():  # some keep the function as an attribute
            for name in names:
                if name in vars(part):
                    setattr(part, name, counted(getattr(part, name)))
    with torch.no_grad():
        model(torch.arange(3, 23)[None])
    layers = read_layers(config)
    assert called == {index for index, layer in enumerate(layers) if layer.rope}
    assert called
