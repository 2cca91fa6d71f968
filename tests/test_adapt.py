"""pe.adapt: encodings in decoders of transformers, with every weight as it was."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from model_tools import small
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BloomConfig,
    BloomForCausalLM,
    Gemma3ForConditionalGeneration,
    LlamaConfig,
    LlamaForCausalLM,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import pe
from pe.encodings import list_encodings
from pe.model import PEForCausalLM
from pe.pretrained.adapt import Adapted, _compare, _logits
from pe.pretrained.load import load

SIZES: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 16}
GEMMA4 = {
    "global_head_dim": 16, "vocab_size_per_layer_input": 97, "hidden_size_per_layer_input": 4,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "qwen2": {}, "qwen3": {"head_dim": 8}, "mistral": {"sliding_window": 16},
    "smollm3": {"no_rope_layers": [1, 0]}, "gemma3_text": WINDOWS | {"head_dim": 8},
    "phi3": {"sliding_window": None}, "olmo": {}, "olmo2": {}, "olmo3": WINDOWS,
    "gpt_neox": {"rotary_pct": 0.5}, "cohere2": WINDOWS, "glm": {"head_dim": 8},
    "gpt_oss": WINDOWS | {"head_dim": 8, "num_local_experts": 2, "num_experts_per_tok": 1},
}  # fmt: skip


def host(kind: str = "llama", **more: Any) -> Any:
    """A model with random weights, norms among them: some families only differ by these."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind](**(SIZES | more)))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module")
def llama() -> Any:
    return host()


def tokens(length: int = 40) -> Tensor:
    return torch.randint(3, 97, (2, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: Any, ids: Tensor, **more: Any) -> Tensor:
    return model(ids, **more).logits


def generated(model: Any, **more: Any) -> Tensor:
    """Greedy continuations of two prompts, the first padded on the left."""
    mask = torch.ones_like(tokens())
    mask[0, :7] = 0
    return model.generate(tokens(), attention_mask=mask, max_new_tokens=6, do_sample=False, **more)


@pytest.mark.parametrize("kind", FAMILIES)
def test_a_models_own_settings_through_hooks_change_no_logit(kind: str) -> None:
    model = host(kind, **FAMILIES[kind])
    before = {name: p.clone() for name, p in model.state_dict().items()}
    hooked = pe.adapt(model, plain=False)
    assert isinstance(hooked, Adapted)
    torch.testing.assert_close(logits(hooked, tokens()), logits(model, tokens()), rtol=0, atol=1e-6)
    assert torch.equal(generated(hooked), generated(model))
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, before[name])
        assert hooked.state_dict()[name].data_ptr() == parameter.data_ptr(), "shared, not copied"


@pytest.mark.parametrize("kind", FAMILIES)
def test_yarn_as_a_setting_and_through_hooks_gives_the_same_logits(kind: str) -> None:
    model = host(kind, **FAMILIES[kind])
    factor = 64 if kind == "gpt_oss" else 4  # more than it was trained with
    plain, hooked = (pe.adapt(model, "yarn", factor=factor, plain=p) for p in (None, False))
    if kind == "gpt_oss":  # its layers with windows share the setting, and keep what they have
        assert isinstance(plain, Adapted)
    else:
        assert type(plain) is type(model)
    have, want = logits(plain, tokens()), logits(hooked, tokens())
    torch.testing.assert_close(have, want, rtol=0, atol=1e-6)
    assert (logits(model, tokens()) - want).abs().max() > 1e-7


SPECS = [
    *list_encodings(), "rope+window:8", "rope+alibi", "rope, nope", "yarn+resonance",
    "nope+window:8+sinks:2",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_any_encoding_gives_the_same_logits_with_a_cache_and_beside_padding(
    spec: str, llama: Any
) -> None:
    model, ids = pe.adapt(llama, spec), tokens()
    if any(enc.random for enc in getattr(model.model, "pe_encodings", ())):
        assert logits(model, ids).isfinite().all()  # each call draws other positions
        return
    whole = logits(model, ids, use_cache=False)
    with torch.no_grad():
        first = model(ids[:, :20], use_cache=True)
        cache = first.get("cache", first.get("past_key_values"))
        steps = [first.logits]
        for start in (20, 25, 26):
            stop = {20: 25, 25: 26, 26: 40}[start]
            steps.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=2e-6)
    mask = torch.ones_like(ids)
    mask[0, :7] = 0
    places = (mask.cumsum(-1) - 1).clamp(min=0)
    padded = logits(model, ids, attention_mask=mask, position_ids=places)
    torch.testing.assert_close(padded[0, 7:], logits(model, ids[:1, 7:])[0], rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    ("kind", "spec"), [("gemma3_text", "fox"), ("gpt_oss", "cope"), ("gpt_oss", "alibi+fox")]
)
def test_an_encoding_on_a_hosts_windows_is_the_same_beyond_them_with_a_cache(
    kind: str, spec: str
) -> None:
    """Of windows of 16 tokens the cache keeps 15, and 40 are read."""
    model, ids = pe.adapt(host(kind, **FAMILIES[kind]), spec, layers=(0, 1)), tokens()
    whole = logits(model, ids, use_cache=False)
    with torch.no_grad():
        first = model(ids[:, :20], use_cache=True)
        cache = first.get("cache", first.get("past_key_values"))
        steps = [first.logits]
        for start, stop in ((20, 25), (25, 26), (26, 40)):
            steps.append(model(ids[:, start:stop], past_key_values=cache, use_cache=True).logits)
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=2e-6)
    assert [layer.keys.shape[-2] for layer in cache.layers[:2]] == [15, 40]


def test_beams_and_windows_decode_as_without_a_cache(llama: Any) -> None:
    model = pe.adapt(llama, "rope+window:8, fox")
    cached = generated(model, num_beams=2)
    assert torch.equal(cached, generated(model, num_beams=2, use_cache=False))


def test_dropping_the_rotation_leaves_a_bag_of_earlier_tokens() -> None:
    model = pe.adapt(host(num_hidden_layers=1), "nope")
    ids = tokens(12)[:1]
    swapped = ids[:, [1, 0, 3, 2, *range(4, 12)]]
    torch.testing.assert_close(
        logits(model, ids)[:, -1], logits(model, swapped)[:, -1], rtol=0, atol=1e-6
    )


def test_a_change_of_frequencies_loads_without_this_package(tmp_path: Path, llama: Any) -> None:
    adapted = pe.adapt(llama, "yarn", length=256)
    adapted.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["rope_parameters"]["rope_type"] == "yarn"
    assert config["rope_parameters"]["factor"] == 4
    assert config["max_position_embeddings"] == 256
    again = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, tokens()), logits(adapted, tokens()))


@pytest.mark.parametrize(
    ("spec", "options", "kind"),
    [
        ("pi", {"factor": 2}, "linear"), ("ntk", {"factor": 4}, "default"),
        ("rope", {"theta": 1e6}, "default"), ("llama3", {"factor": 8}, "llama3"),
        ("dynamic_ntk", {}, "dynamic"), ("longrope", {"factor": 4}, "longrope"),
    ],
)  # fmt: skip
def test_methods_become_transformers_settings(
    spec: str, options: dict[str, Any], kind: str, llama: Any
) -> None:
    plain = pe.adapt(llama, spec, plain=True, **options)
    assert plain.config.rope_parameters["rope_type"] == kind
    hooked = pe.adapt(llama, spec, plain=False, **options)
    have, want = logits(plain, tokens()), logits(hooked, tokens())
    torch.testing.assert_close(have, want, rtol=0, atol=1e-6)


def test_an_adapted_model_saves_and_loads_with_what_it_learned(tmp_path: Path, llama: Any) -> None:
    model = pe.adapt(llama, "rope+fire, t5")
    with torch.no_grad():
        for parameter in model.model.pe_encodings.parameters():
            parameter.add_(0.25)
    want = logits(model, tokens())
    model.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "pe-adapted"
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, tokens()), want)
    assert again.pe_adaptation == model.pe_adaptation
    back = pe.adapt(again, plain=False)  # its host's own settings
    torch.testing.assert_close(logits(back, tokens()), logits(llama, tokens()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_hooks_work_in_bfloat16_and_under_autocast(kind: str) -> None:
    model = host(kind, **FAMILIES[kind])
    hooked, exact = pe.adapt(model, plain=False), logits(model, tokens())
    with torch.autocast("cpu", torch.bfloat16):
        for one in (model, hooked, pe.adapt(model, "rope+alibi")):
            assert logits(one, tokens()).dtype == torch.bfloat16
        torch.testing.assert_close(logits(hooked, tokens()).float(), exact, rtol=0.1, atol=0.03)
    half = pe.adapt(model.bfloat16(), plain=False)
    torch.testing.assert_close(logits(half, tokens()).float(), exact, rtol=0.1, atol=0.03)
    assert generated(half).shape == (2, 46)


def test_a_decoder_of_text_and_images_is_saved_and_loads_with_both_auto_classes(
    tmp_path: Path,
) -> None:
    text = CONFIG_MAPPING["gemma3_text"](**SIZES, **FAMILIES["gemma3_text"]).to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "image_size": 28, "patch_size": 14}  # fmt: skip
    images = {"mm_tokens_per_image": 4, "image_token_index": 90, "boi_token_index": 91,
              "eoi_token_index": 92}  # fmt: skip
    config = CONFIG_MAPPING["gemma3"](text_config=text, vision_config=vision, **images)
    model = pe.adapt(AutoModelForImageTextToText.from_config(config).eval(), "nope")
    model.save_pretrained(tmp_path)
    for auto in (AutoModelForImageTextToText, AutoModelForCausalLM):
        again = auto.from_pretrained(tmp_path).eval()
        assert type(again).__name__ == "Gemma3ForConditionalGeneration"
        assert torch.equal(logits(again, tokens()), logits(model, tokens()))
    with pytest.raises(StrictDataclassError, match="load the folder with AutoModelForCausalLM"):
        Gemma3ForConditionalGeneration.from_pretrained(tmp_path, attn_implementation="sdpa")


def test_gemmas_local_layers_keep_their_base() -> None:
    model = host("gemma3_text", **FAMILIES["gemma3_text"])
    settings = pe.adapt(model, "yarn", factor=4).config.rope_parameters
    assert settings["sliding_attention"] == model.config.rope_parameters["sliding_attention"]
    assert settings["full_attention"]["rope_type"] == "yarn"


def test_gradients_reach_weights_and_new_parameters(llama: Any) -> None:
    model = pe.adapt(llama, "rope+fire").train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tokens(), labels=tokens(), use_cache=False).loss.backward()
    assert all(p.grad.abs().sum() > 0 for p in model.model.pe_encodings.parameters())
    assert llama.model.layers[0].self_attn.q_proj.weight.grad is not None
    llama.zero_grad(set_to_none=True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_activations_give_the_gradients_of_learned_frequencies(
    llama: Any, reentrant: bool
) -> None:
    model = pe.adapt(llama, "lerope").train()
    gradients = []
    for checkpointed in (False, True):
        model.zero_grad(set_to_none=True)
        if checkpointed:
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model(tokens(), labels=tokens(), use_cache=False).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(gradient is not None for gradient in gradients[0])
    torch.testing.assert_close(*gradients)
    llama.zero_grad(set_to_none=True)


def test_attention_that_does_not_know_the_encoding_is_refused(tmp_path: Path, llama: Any) -> None:
    model = pe.adapt(llama, "alibi")
    model.set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"'sdpa' does not know.*set_attn_implementation\('pe'\)"):
        logits(model, tokens())
    model.set_attn_implementation("pe")
    model.save_pretrained(tmp_path)
    for attention in (None, "sdpa", "eager"):
        with pytest.raises(StrictDataclassError, match="load the folder with AutoModelForCausalLM"):
            LlamaForCausalLM.from_pretrained(tmp_path, attn_implementation=attention)
        again = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=attention)
        assert torch.equal(logits(again.eval(), tokens()), logits(model, tokens()))


def test_an_adapted_model_has_the_name_of_its_host_and_can_be_pickled(llama: Any) -> None:
    model = pe.adapt(llama, "rope+fire")
    assert isinstance(model, Adapted)
    assert type(model).__name__ == "LlamaForCausalLM"  # Trainer and pipelines go by it
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(logits(again, tokens()), logits(model, tokens()))
    assert isinstance(pe.adapt(again, None, plain=False), Adapted)


BAD: list[tuple[dict[str, Any], str]] = [
    ({"spec": "yarn", "length": 64}, "within the training length 64"),
    ({"spec": "yarn", "length": "256"}, "expected a whole number of tokens, got '256'"),
    ({"spec": "yarn", "length": 256, "factor": 4.0}, "leave one out"),
    ({"spec": "nope", "length": 256}, "'nope' has no factor"),
    ({"factor": 4.0}, "no effect on a model's own settings"),
    ({"spec": "yarm"}, "unknown encoding 'yarm'"),
    ({"spec": "yarn", "factr": 4}, "factr"),
    ({"spec": "nope", "layers": [2]}, "expected some of 0 to 1"),
    ({"spec": "nope", "layers": 1}, "expected some of 0 to 1 in a list, each once, got 1"),
    ({"spec": "nope", "layers": iter([1])}, "expected some of 0 to 1 in a list, each once, got <"),
    ({"spec": "nope", "layers": "1"}, "expected some of 0 to 1 in a list, each once, got '1'"),
    ({"spec": "nope", "layers": [1, 1]}, r"in a list, each once, got \[1, 1\]"),
    ({"spec": "nope", "layers": [1.0]}, r"in a list, each once, got \[1.0\]"),
    ({"spec": "nope", "layers": [True]}, r"in a list, each once, got \[True\]"),
    ({"spec": "yarn", "plain": "yes"}, "plain: expected True, False or None, got 'yes'"),
    ({"spec": "t5", "seed": "x"}, "seed: expected a whole number from 0 to .*, got 'x'"),
    ({"spec": "t5", "seed": -1}, "seed: expected a whole number from 0 to .*, got -1"),
    ({"spec": "yarn", "head_dim": 8}, "head_dim follows from the model's sizes"),
    ({"layers": [0]}, "layers: has no effect on a model's own settings"),
    ({"plain": True}, "plain: has no effect on a model's own settings"),
    ({"spec": "sinusoidal", "layers": [1]}, "acts on the token embeddings.*begin with 0"),
    ({"spec": "nope, learned"}, "acts on the token embeddings"),
    ({"spec": "nope", "plain": True}, "no setting of transformers"),
    ({"spec": "rope, nope, nope"}, "does not fit 2"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_input_is_one_line(arguments: dict[str, Any], message: str, llama: Any) -> None:
    with pytest.raises(ValueError, match=message) as error:
        pe.adapt(llama, **arguments)
    assert "\n" not in str(error.value)


def test_models_that_cannot_be_adapted_are_refused_in_a_line() -> None:
    tiny = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    bert = BertForMaskedLM(BertConfig(**tiny, intermediate_size=32))
    bloom = BloomForCausalLM(BloomConfig(vocab_size=97, hidden_size=32, n_layer=1, n_head=2))
    hunyuan = host("hunyuan_v1_dense", head_dim=8)  # normalises after the rotation
    for model, message in (
        (bert, "no decoder"), (bloom, "ALiBi"), (small("rope"), "pe.convert"),
        (torch.nn.Linear(2, 2), "a model of transformers"), (hunyuan, "change logits"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            pe.adapt(model, "nope")
    with pytest.raises(ValueError, match="window of its own"):
        pe.adapt(host("mistral", sliding_window=16), "rope+window:8")


def test_layers_that_get_no_positions_from_the_rotary_module_are_refused() -> None:
    with pytest.raises(ValueError, match="layer 0 does not get its positions"):
        pe.adapt(host("granite_swa"), plain=False)


def test_p_rope_of_the_host_is_kept_or_nothing_is_adapted() -> None:
    model = host("gemma4_text", **WINDOWS, head_dim=8, **GEMMA4)
    same = pe.adapt(model, "p_rope", plain=False)
    torch.testing.assert_close(logits(same, tokens()), logits(model, tokens()), rtol=0, atol=2e-6)
    with pytest.raises(ValueError, match=r"in 'p_rope\+yarn'"):
        pe.adapt(model, "yarn", factor=4)


LATENT = {
    "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8, "v_head_dim": 8, "moe_intermediate_size": 16, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 0.5, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 16,
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sizes", "options"),
    [
        ("deepseek_v3", LATENT, {"factor": 16}),
        ("deepseek_v3", LATENT, {"factor": 16, "attention_factor": 1.5}),
        ("granite_swa", {}, {"factor": 4, "layers": [0, 1]}),
    ],
)
def test_a_model_with_new_settings_is_the_one_that_its_folder_loads(
    kind: str, sizes: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    """Latent attention scales its logits, and some models have a rotary module for each base."""
    model = host(kind, **sizes)
    adapted = pe.adapt(model, "yarn", plain=True, **options)
    assert (logits(adapted, tokens()) - logits(model, tokens())).abs().max() > 1e-5
    adapted.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, tokens()), logits(adapted, tokens()))


def test_a_setting_keeps_what_the_rotary_module_has_learned() -> None:
    sizes = {"n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 16}
    config = CONFIG_MAPPING["mistral_large4_text"](**SIZES, **sizes, head_dim=8)
    model = AutoModel.from_config(config).eval()
    learned = model.rotary_emb.alpha.requires_grad_(False).fill_(0.3)
    adapted = pe.adapt(model, "yarn", factor=4096, plain=True)  # trained with 2,048
    assert adapted.rotary_emb.alpha is learned
    assert torch.equal(learned, torch.full_like(learned, 0.3))
    assert not torch.equal(adapted.rotary_emb.inv_freq, model.rotary_emb.inv_freq)


def test_a_setting_needs_no_layers_that_hooks_know(tmp_path: Path) -> None:
    """Falcon's layers are called ``h``, and a setting does not touch them."""
    model = host("falcon", alibi=False)
    adapted = pe.adapt(model, "yarn", factor=4)
    assert not isinstance(adapted, Adapted)
    assert (logits(adapted, tokens()) - logits(model, tokens())).abs().max() > 1e-5
    adapted.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(logits(again, tokens()), logits(adapted, tokens()))


def test_an_attention_factor_takes_the_place_of_the_models_mscale() -> None:
    model = host("ministral3", head_dim=8)
    assert model.config.rope_parameters["mscale"]
    adapted = pe.adapt(model, "yarn", factor=32, attention_factor=1.5)
    block = adapted.config.rope_parameters
    assert (block["attention_factor"], block["factor"], block.get("mscale")) == (1.5, 32, None)
    hooked = pe.adapt(model, "yarn", factor=32, attention_factor=1.5, plain=False)
    torch.testing.assert_close(
        logits(adapted, tokens()), logits(hooked, tokens()), rtol=0, atol=1e-6
    )


def test_a_setting_that_the_model_normalises_away_is_not_taken_for_the_encoding() -> None:
    """Llama 4 normalises queries and keys after the rotation: YaRN's magnitude needs hooks."""
    sizes = {"intermediate_size_mlp": 48, "num_local_experts": 2, "num_experts_per_tok": 1}
    model = host("llama4_text", head_dim=8, no_rope_layers=[1, 1], attention_chunk_size=64, **sizes)
    yarn, layers = {"factor": 4.0}, [0, 1]
    assert isinstance(pe.adapt(model, "yarn", layers=layers, **yarn), Adapted)
    assert not isinstance(pe.adapt(model, "pi", layers=layers, factor=4.0), Adapted)
    assert not isinstance(pe.adapt(model, "yarn", layers=layers, plain=True, **yarn), Adapted)


def test_an_adapted_classifier_loads_as_one_and_not_with_a_head_it_never_had(
    tmp_path: Path, llama: Any
) -> None:
    classifier = AutoModelForSequenceClassification.from_config(llama.config).eval()
    adapted = pe.adapt(classifier, "nope")
    adapted.save_pretrained(tmp_path / "classifier")
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path, subfolder="classifier")
    one = tokens()[:1]
    assert torch.equal(logits(again.eval(), one), logits(adapted, one))
    with pytest.raises(ValueError, match=r"no lm_head\.weight, which .* saved as LlamaForSeq"):
        AutoModelForCausalLM.from_pretrained(tmp_path / "classifier")


def test_one_token_that_rounding_sends_to_other_experts_refuses_no_model(llama: Any) -> None:
    half = copy.deepcopy(llama).bfloat16()
    expected = _logits(half)
    expected[0, 3] = expected[0, 3].flip(-1)
    _compare(expected, half)
    with pytest.raises(ValueError, match="change logits by"):
        _compare(expected.flip(-1), half)


def test_a_host_may_read_attributes_of_its_rotary_module(llama: Any) -> None:
    adapted = pe.adapt(llama, "nope")
    assert adapted.model.rotary_emb.inv_freq is adapted.model.rotary_emb.host.inv_freq
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = adapted.model.rotary_emb.no_such_name


def test_a_refusal_of_hooks_says_what_the_setting_would_need() -> None:
    model = host("gemma2", **WINDOWS, head_dim=8)
    with pytest.raises(ValueError, match=r"caps its logits.*choose these with layers=\[0, 1\]"):
        pe.adapt(model, "yarn", factor=4)
    assert not isinstance(pe.adapt(model, "yarn", factor=4, layers=[0, 1]), Adapted)


def test_a_temperature_keeps_the_length_that_it_counts_from() -> None:
    block = {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
             "original_max_position_embeddings": 64}  # fmt: skip
    model = host("ministral3", head_dim=8, rope_parameters=block)
    adapted = pe.adapt(model, "ntk", factor=4, plain=True)
    assert logits(adapted, tokens()).isfinite().all()


SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {
        "factor": 8.0, "beta_fast": 16.0, "truncate": False, "attention_factor": 1.2079441541679836,
        "original_max_position_embeddings": 64,
    },
    "longrope": {
        "factor": 8.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0, 1.0, 1.0, 1.5], "long_factor": [1.0, 2.0, 4.0, 9.0],
    },
}  # fmt: skip
NAMES = {"linear": "pi"}


def extended(kind: str) -> Any:
    """A Llama whose configuration scales already, to 512 tokens."""
    block = {"rope_type": kind, "rope_theta": 100.0} | SCALINGS[kind]
    return host(rope_parameters=block, max_position_embeddings=512)


@pytest.mark.parametrize("kind", SCALINGS)
def test_the_scaling_of_a_model_is_kept_where_it_is_named(kind: str) -> None:
    model, name = extended(kind), NAMES.get(kind, kind)
    for spec in (name, f"{name}+window:400"):
        same = pe.adapt(model, spec, plain=False)
        torch.testing.assert_close(
            logits(same, tokens(80)), logits(model, tokens(80)), rtol=0, atol=1e-6
        )


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("spec", ["pi", "ntk", "yarn", "llama3", "longrope", "rope+window:8"])
def test_a_scaling_that_a_model_has_is_not_undone(kind: str, spec: str) -> None:
    model = extended(kind)
    if spec == NAMES.get(kind, kind):
        message = "long_factor too" if kind == "longrope" else "factor 2 is less than"
    else:
        message = f"it has no .* ×.*, which the model.*Use '{NAMES.get(kind, kind)}'"
    options = {} if spec.startswith("rope") else {"factor": 2}
    with pytest.raises(ValueError, match=message) as error:
        pe.adapt(model, spec, **options)
    assert "\n" not in str(error.value)


def test_the_factor_that_a_released_model_was_trained_with_is_the_least() -> None:
    model = host("gpt_oss", **FAMILIES["gpt_oss"])
    for arguments in ({"spec": "yarn", "factor": 4}, {"spec": "yarn(factor=4)"}):
        with pytest.raises(ValueError, match="factor 4 is less than 32, which 'gpt_oss' was"):
            pe.adapt(model, **arguments)
    with pytest.raises(ValueError, match="follows from the length"):
        pe.adapt(model, "yarn", dynamic=True)
    further = pe.adapt(model, "yarn", factor=64).model.pe_encodings[0].transforms[0]
    assert (further.factor, further.truncate) == (64.0, False), "the rest is the model's"
    for spec in ("nope", "alibi", "nope+window:8"):  # these drop the rotation, and say so
        assert isinstance(pe.adapt(model, spec, layers=[1]), Adapted)


def test_a_length_raises_the_factor_that_a_model_has() -> None:
    for kind, factor in (("linear", 8), ("llama3", 16), ("yarn", 16)):
        config = pe.adapt(extended(kind), NAMES.get(kind, kind), length=1024).config
        assert config.rope_parameters["factor"] == factor
        assert config.max_position_embeddings == 1024
    assert "attention_factor" not in config.rope_parameters, "it follows from the factor"


def test_a_cache_of_another_model_is_refused(llama: Any) -> None:
    with torch.no_grad():
        first = llama(tokens(), use_cache=True)
        cache = first.get("cache", first.get("past_key_values"))
        with pytest.raises(ValueError, match="filled by another model"):
            pe.adapt(llama, "nope")(tokens(4), past_key_values=cache)


def test_folders_of_other_types_say_what_works(tmp_path: Path, llama: Any) -> None:
    llama.save_pretrained(tmp_path / "llama")
    with pytest.raises(ValueError, match=r"'llama'.*pe\.adapt"):
        PEForCausalLM.from_pretrained(tmp_path / "llama")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text(json.dumps(llama.config.to_dict()))
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"cos\nsystem\n")
    with pytest.raises(ValueError, match="safetensors"):
        load(tmp_path / "pickled")
    with pytest.raises(ValueError, match=r"llama: no tokenizer .*tokenizer\.save_pretrained"):
        load(tmp_path / "llama")
    small("rope").save_pretrained(tmp_path / "own")
    with pytest.raises(ValueError, match="a model of this package"):
        load(tmp_path / "own")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"adaptation": {"spec": "nope"}}, r"config.json: not what pe.adapt saves \(options: mis"),
        ({"adaptation": [3]}, "config.json: not what pe.adapt saves"),
        ({"adaptation": {"spec": "nope", "layers": [9], "options": {}}}, "some of 0 to 1.*got .9"),
        ({"host": {}}, "config.json: not what pe.adapt saves"),
    ],
)
def test_a_damaged_adaptation_is_named_with_its_file(
    change: dict[str, Any], said: str, tmp_path: Path, llama: Any
) -> None:
    pe.adapt(llama, "nope").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=said):
        AutoModelForCausalLM.from_pretrained(tmp_path)


def test_explain_reads_what_an_adapted_model_saved(tmp_path: Path, llama: Any) -> None:
    model = pe.adapt(llama, "nope")
    model.save_pretrained(tmp_path)
    for source in (tmp_path, model, AutoConfig.from_pretrained(tmp_path)):
        explanation = pe.explain(source)
        assert any("pe.adapt gave 'nope' to layers 0-1;" in note for note in explanation.notes)
    assert LlamaConfig.model_type == explanation.model_type
