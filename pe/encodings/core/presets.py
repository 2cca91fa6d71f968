"""Specs of released models by name, such as ``command_a``.

If a checkpoint's config.json and the defaults of transformers' configuration class differ, the
numbers are the checkpoint's, and `Preset.source` states how both are known. tests/test_presets.py
compares each preset with transformers' attention under the same numbers.
"""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """The spec of a released model, and the sizes of its key cache."""

    spec: str
    model: str
    """Name of the model and of its configuration class in transformers."""
    source: str
    """The source of the numbers."""
    layers: int
    """Number of layers with attention; a model may have other layers too."""
    kv_heads: int
    head_dim: int


_GPT_OSS = "rope(theta=150000.0)+yarn(factor=32.0, original_length=4096, truncate=False)"
_OLMO_3 = "rope(theta=500000.0)"

PRESETS = {
    "smollm3": Preset(
        "3*rope(theta=5e6), nope",
        "SmolLM3-3B, SmolLM3Config",
        "the checkpoint, as two projects quote its config.json; the class has base 2e6",
        36, 4, 128,
    ),
    "command_a": Preset(
        "3*(rope(theta=50000.0, layout=interleaved)+window:4096), nope",
        "Command A (03-2025), Cohere2Config",
        "the checkpoint, as a port of it to Keras has them; the class has base 10,000",
        64, 8, 128,
    ),
    "gemma3": Preset(
        "5*(rope(theta=10000.0)+window:512), rope(theta=1e6)",
        "Gemma 3 1B, Gemma3TextConfig",
        "the checkpoint, as a project quotes its config.json; the class has the same bases and a "
        "window of 4,096",
        26, 1, 256,
    ),
    "gpt_oss": Preset(
        f"{_GPT_OSS}+window:128+sink, {_GPT_OSS}+sink",
        "gpt-oss-120b, GptOssConfig",
        "the class; base, window and factor are in a test that quotes the checkpoint too",
        36, 8, 64,
    ),
    "olmo3": Preset(
        f"3*({_OLMO_3}+window:4096), {_OLMO_3}+yarn(factor=8.0, original_length=8192)",
        "OLMo 3 7B, Olmo3Config",
        "the checkpoint, as two projects quote its config.json; the class has no YaRN",
        32, 32, 128,
    ),
    "llama4": Preset(
        "3*(irope+chunk:8192), irope",
        "Llama 4 Scout, Llama4TextConfig",
        "the class; no checkpoint was read",
        48, 8, 128,
    ),
    "ministral3": Preset(
        "rope(theta=1e6)+yarn(factor=16.0, original_length=16384, mscale=1.0, mscale_all_dim=1.0)"
        "+temperature:16384",
        "Ministral 3 8B, Ministral3Config",
        "the class; a test that quotes the checkpoint has the same",
        34, 8, 128,
    ),
    "qwen3_next": Preset(
        "partial(theta=1e7, rotary_fraction=0.25)",
        "Qwen3-Next-80B-A3B, Qwen3NextConfig: its attention layers, every fourth of 48; the others "
        "are recurrent",
        "the class, but for the base: 1e7 by a project that compares it with the 5e6 of "
        "Qwen3-Coder-Next, whose config.json it quotes; the class has base 10,000",
        12, 2, 256,
    ),
}  # fmt: skip
"""The presets by name. The name can be used wherever a spec can."""
