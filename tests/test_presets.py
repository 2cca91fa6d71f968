"""Presets equal transformers' models: the same weights, beyond the window, prefill and decoding.

Each model of transformers runs once as it is and once with its attention replaced by `pe.attend`
under the preset's encodings; its experts, norms and projections are its own in both. SmolLM3, which
is a decoder like ours, is compared as a whole with `PEForCausalLM` too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import DynamicCache

import pe
from pe.encodings import encoding, layer_encodings
from pe.encodings.core.presets import PRESETS
from pe.encodings.core.registry import about
from pe.encodings.core.source import source_hashes
from pe.encodings.core.spec import parse
from pe.model import PEConfig, PEForCausalLM

SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 4096, "pad_token_id": 0,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
WINDOW, LENGTH = 6, 21
FIRST_STEP = 8  # from this position on temperatures act, in the test
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "rope_theta": 5e6}),
    "command_a": ("Cohere2", {"num_hidden_layers": 4, "sliding_window": WINDOW,
                              "rope_theta": 5e4}),
    "gemma3": ("Gemma3", {"num_hidden_layers": 6, "sliding_window": WINDOW, "head_dim": 16,
                          "query_pre_attn_scalar": 16}),
    "gpt_oss": ("GptOss", {"num_hidden_layers": 2, "sliding_window": WINDOW, "head_dim": 16,
                           "num_local_experts": 2, "num_experts_per_tok": 1}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, "sliding_window": WINDOW, "rope_scaling": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}}),
    "llama4": ("Llama4", {"num_hidden_layers": 4, "attention_chunk_size": WINDOW, "head_dim": 16,
                          "moe_layers": [], "intermediate_size_mlp": 96,
                          "floor_scale": FIRST_STEP}),
    "ministral3": ("Ministral3", {"num_hidden_layers": 2, "head_dim": 16, "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": FIRST_STEP, "beta_fast": 32.0,
        "beta_slow": 1.0, "llama_4_scaling_beta": 0.1}}),
    "qwen3_next": ("Qwen3Next", {"num_hidden_layers": 2, "head_dim": 16, "num_experts": 2,
                                 "rope_theta": 1e7, "layer_types": ["full_attention"] * 2,
                                 "num_experts_per_tok": 1, "mlp_only_layers": [0, 1]}),
}  # fmt: skip


def theirs(name: str) -> Any:
    family, more = MODELS[name]
    text = getattr(hf, f"{family}TextConfig", None) or getattr(hf, f"{family}Config")
    config = text(**(SIZES | more))
    config._attn_implementation = "eager" if name == "gpt_oss" else "sdpa"
    config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = getattr(hf, f"{family}ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():  # wide, so that attention decides the logits
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.2 * noise if parameter.dim() > 1 else 0.5 + 0.2 * noise)
    return model


def narrowed(name: str) -> str:
    """The preset with a window of `WINDOW` tokens, and its temperature from `FIRST_STEP` on."""
    spec = PRESETS[name].spec.replace("16384", str(FIRST_STEP))
    spec = spec.replace("irope", f"irope(floor_scale={FIRST_STEP})")
    for number in ("window:4096", "window:512", "window:128", "chunk:8192"):
        spec = spec.replace(number, f"{number.split(':')[0]}:{WINDOW}")
    return spec


def replace_attention(model: Any, name: str) -> Callable[[], None]:
    """Let each layer attend by `pe.attend`; the function returned forgets all earlier tokens."""
    config = model.config
    sizes = {"head_dim": 16, "num_heads": 4, "num_kv_heads": 2, "original_length": 4096}
    encodings = layer_encodings(narrowed(name), config.num_hidden_layers, **sizes)
    encodings *= config.num_hidden_layers // len(encodings)
    held: dict[int, tuple[Tensor, Tensor]] = {}

    def swap(index: int, layer: Any) -> None:
        attention, enc = layer.self_attn, encodings[index].to(model.dtype)
        for part in enc.modules():
            if hasattr(part, "sink"):
                part.sink = attention.sinks

        def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
            q, k, v = (getattr(attention, f"{n}_proj")(hidden_states) for n in "qkv")
            if name == "olmo3":
                q, k = attention.q_norm(q), attention.k_norm(k)
            batch, length, _ = q.shape
            gate = None
            if name == "qwen3_next":  # each head's queries, then what its output is gated by
                q, gate = q.view(batch, length, -1, 32).chunk(2, dim=-1)
            q, k, v = (x.reshape(batch, length, -1, 16).transpose(1, 2) for x in (q, k, v))
            if name in ("gemma3", "qwen3_next"):
                q, k = attention.q_norm(q), attention.k_norm(k)
            if index in held:
                k, v = (torch.cat(pair, 2) for pair in zip(held[index], (k, v), strict=True))
            held[index] = k, v
            out = pe.attend(enc, q, k, v).transpose(1, 2).flatten(-2)
            out = out if gate is None else out * gate.flatten(-2).sigmoid()
            return attention.o_proj(out), None

        attention.forward = forward

    for index, layer in enumerate(model.model.layers):
        swap(index, layer)
    return held.clear


def prefill_and_decode(model: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    whole = model(ids, use_cache=False).logits
    cache = DynamicCache(config=model.config)
    steps = [model(ids[:, :9], past_key_values=cache, use_cache=True).logits]
    steps += [model(ids[:, n : n + 1], past_key_values=cache, use_cache=True).logits
              for n in range(9, ids.shape[1])]  # fmt: skip
    return whole, torch.cat(steps, 1)


def exact_frequencies(model: Any, name: str) -> None:
    """Ours in place of theirs, which are rounded to float32."""
    rotary, spec = model.model.rotary_emb, narrowed(name)
    sizes = {"head_dim": 16, "num_heads": 4, "original_length": 4096}
    kinds = {"inv_freq": 0}
    if hasattr(rotary, "full_attention_inv_freq"):
        kinds = {"sliding_attention_inv_freq": 0, "full_attention_inv_freq": len(parse(spec)) - 1}
    for buffer, index in kinds.items():
        enc: Any = encoding(spec, layer_index=index, **sizes)
        exact = next(p.inv_freq for p in getattr(enc, "_all", [enc]) if p.rotates)
        assert exact.dtype == torch.float64
        torch.testing.assert_close(getattr(rotary, buffer).double(), exact, rtol=1e-6, atol=0)
        setattr(rotary, buffer, exact)


class Unrounded(TorchFunctionMode):
    """Casts to float32, which transformers' norms and phases are full of, are casts to float64, and
    so are quotients of integers (Ministral's temperature)."""

    def __enter__(self) -> Any:
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.set_default_dtype(torch.float32)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(wide, args), **{key: wide(v) for key, v in (kwargs or {}).items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PRESETS)
@torch.no_grad()
def test_a_preset_is_the_attention_of_its_model(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = theirs(name).to(dtype)
    error = {torch.float32: 1e-5, torch.float64: 1e-9}[dtype]
    ids = torch.randint(1, 61, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    if dtype == torch.float64:
        exact_frequencies(model, name)
    parts = (ids[:, :9], *ids[:, 9:].split(1, 1))
    with Unrounded() if dtype == torch.float64 else contextlib.nullcontext():
        want, want_steps = prefill_and_decode(model, ids)
        forget = replace_attention(model, name)
        whole = model(ids, use_cache=False).logits
        forget()
        steps = torch.cat([model(part, use_cache=False).logits for part in parts], 1)
    torch.testing.assert_close(whole, want, atol=error, rtol=error)
    torch.testing.assert_close(steps, want_steps, atol=error, rtol=error)
    if any(part in narrowed(name) for part in ("window", "chunk", "temperature")):
        monkeypatch.setattr(f"{__name__}.WINDOW", WINDOW + 1)
        monkeypatch.setattr(f"{__name__}.FIRST_STEP", FIRST_STEP + 1)
        replace_attention(model, name)
        assert (model(ids, use_cache=False).logits - want).abs().max() > 1e-3, "the window matters"


@torch.no_grad()
def test_our_decoder_with_the_preset_is_smollm3() -> None:
    other = theirs("smollm3")
    config = PEConfig(pe="smollm3", num_hidden_layers=4, rms_norm_eps=1e-6, **SIZES)
    model = PEForCausalLM(config).eval()
    theirs_by_ours = {"attention_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"}
    weights = other.model.state_dict()
    for key, parameter in model.model.named_parameters():
        for mine, name in theirs_by_ours.items():
            key = key.replace(mine, name)
        key = key.replace("attention.qkv", "self_attn.qkv").replace("attention.o", "self_attn.o")
        parts = [key.replace("qkv", letter) for letter in "qkv"] if "qkv" in key else [key]
        parameter.copy_(torch.cat([weights[part] for part in parts]))
    assert model.config.pe == "smollm3"
    ids = torch.randint(1, 61, (2, LENGTH), generator=torch.Generator().manual_seed(0))
    want, _ = prefill_and_decode(other, ids)
    cache = DynamicCache()
    steps = [model(part, past_key_values=cache).logits for part in
             (ids[:, :9], *ids[:, 9:].split(1, 1))]  # fmt: skip
    torch.testing.assert_close(model(ids).logits, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.cat(steps, 1), want, atol=1e-5, rtol=1e-5)


def test_a_run_belongs_to_the_numbers_of_its_preset(monkeypatch: pytest.MonkeyPatch) -> None:
    before = source_hashes("gemma3")
    monkeypatch.setitem(PRESETS, "gemma3", PRESETS["gemma3"]._replace(spec="rope, nope"))
    parse.cache_clear()
    assert source_hashes("gemma3") != before
    parse.cache_clear()


def test_presets_are_shown_by_what_they_are() -> None:
    assert about("command_a").title.endswith("+ window 4096), NoPE")
    with pytest.raises(ValueError, match="did you mean 'command_a'"):
        encoding("comand_a", head_dim=16, num_heads=4)
