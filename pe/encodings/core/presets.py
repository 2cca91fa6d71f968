"""What released models use, as specs under their names: ``command_a`` instead of its schedule.

The numbers are those of transformers 5.24's configuration classes (`source` names the class), and
for Gemma 3 those of its 1B model. Equal to transformers' models in tests/test_presets.py.
"""

from __future__ import annotations

from typing import NamedTuple


class Preset(NamedTuple):
    """A spec by the name of the model family that it comes from."""

    spec: str
    source: str
    """The family, and transformers' configuration class."""


_GPT_OSS = "rope(theta=150000.0)+yarn(factor=32.0, original_length=4096, truncate=False)"

PRESETS = {
    "smollm3": Preset("3*rope(theta=2e6), nope", "SmolLM3, SmolLM3Config"),
    "command_a": Preset(
        "3*(rope(theta=10000.0, layout=interleaved)+window:4096), nope",
        "Command A and R7B, Cohere2Config",
    ),
    "gemma3": Preset(
        "5*(rope(theta=10000.0)+window:512), rope(theta=1e6)", "Gemma 3 1B, Gemma3TextConfig"
    ),
    "gpt_oss": Preset(f"{_GPT_OSS}+window:128+sink, {_GPT_OSS}+sink", "gpt-oss, GptOssConfig"),
    "olmo3": Preset(
        "3*(rope(theta=500000.0)+window:4096), rope(theta=500000.0)", "OLMo 3, Olmo3Config"
    ),
    "llama4": Preset("3*(irope+chunk:8192), irope", "Llama 4, Llama4TextConfig"),
}
"""By the name that stands for the spec wherever a spec is taken."""
