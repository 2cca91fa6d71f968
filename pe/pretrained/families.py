"""What transformers' models do about positions beyond what their configurations say.

Read in the modelling files of transformers 5.24. tests/test_explain_types.py goes through every
model type of the installed version and compares pairings, sinks and conditions with its source.
"""

from __future__ import annotations

from typing import Any

from pe.pretrained.rope import Layout

INTERLEAVED = frozenset(
    {
        "axk2", "bailing_hybrid", "blt_global_transformer", "blt_local_decoder", "codegen",
        "cohere", "cohere2", "cohere2_moe", "deepseek_v2", "deepseek_v32", "deepseek_v4",
        "dots3_note_text", "ernie4_5", "ernie4_5_moe", "glm", "glm4", "glm4v_text", "glm_moe_dsa",
        "glm_ocr_text", "gptj", "helium", "hy_v4_vl_text", "llama4_text", "longcat_flash",
        "mistral_large4_text",
    }
)  # fmt: skip
"""Types that pair channel 2i with 2i + 1; others pair i with i + d/2."""

ROTATE_WINDOWED = frozenset({"afmoe", "cohere2", "cohere2_moe", "flint", "lara_mini"})
"""Types whose layers rotate only where they have a sliding window."""

ROTATE_WINDOWED_IF_ANY = frozenset({"exaone4", "exaone_moe", "kolibri1"})
"""The same, but all layers rotate where the configuration has no window at all."""

NEVER_ROTATE = frozenset({"kimi_linear", "glm5_next_text", "jamba", "nemotron_h"})
"""Types with attention and without any position in it: order comes from recurrent layers."""

SINKS = frozenset(
    {"deepseek_v4", "flint", "gpt_oss", "granite_swa", "granitemoe_swa", "hy_v4", "hy_v4_vl_text"}
)
"""Types with a learned sink: one more logit per head, whose share of attention goes nowhere."""

SINKS_IN_WINDOWS = frozenset({"mimo_v2_flash"})

PARTIAL = frozenset(
    {
        "deepseek_v4", "diffusion_gemma_text", "dots3_note_text", "glm", "glm4", "glm4_moe",
        "glm4_moe_lite", "glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text",
        "gpt_neox", "gpt_neox_japanese", "laguna", "mellum", "mimo_v2_flash", "minimax_m2",
        "minimax_m3_vl_text", "nemotron", "persimmon", "phi", "phi3", "phi4_multimodal",
        "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "qwen4_exp_text", "recurrent_gemma",
        "solar_open", "stablelm", "step3p5", "zaya",
    }
)  # fmt: skip
"""Types that can rotate a share of each head, ``partial_rotary_factor``. Others rotate all of it:
their plain rotation ignores the share, and their scaled one fails."""

FIXED_ALPHA = frozenset({"hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl_text"})
"""Types that read ``alpha`` beside the type ``dynamic``: NTK-aware scaling at every length."""

OWN_MAGNITUDE = frozenset({"phimoe"})
"""Types whose scaled rotation multiplies cosines and sines by ``short_mscale`` or, in texts beyond
the original length, by ``long_mscale``."""

ALIBI = frozenset({"bloom", "mpt"})

CONTENT = frozenset({"inkling_text", "inkling2_text", "inkling2_loop_text"})
"""Types with a learned, content-dependent bias of the distance instead of rotation."""

NOTES = {
    "gpt_oss": "its makers trained with YaRN from 4,096 tokens, factor 32, on every layer",
    "hunyuan_v1_dense": "a fixed alpha under the type 'dynamic' is NTK-aware scaling at every "
    "length",
    "llama4_text": "with use_qk_norm, queries and keys are normalised after the rotation, so an "
    "attention factor of YaRN or LongRoPE changes nothing",
    "mistral_large4_text": "each frequency is multiplied by a learned factor that only the weights "
    "have; the frequencies below are those before it",
    "deepseek_v4": "layers of compressed attention share another base",
    "molmo2_text": "scaling acts in the layers of rope_scaling_layers only",
}
"""What a reader of the numbers has to know, by model type."""


def rotates(config: Any, index: int, layer_type: str | None) -> bool:
    """Return whether the layer rotates queries and keys."""
    kind = config.model_type
    windowed = layer_type is not None and "sliding" in layer_type
    if kind in NEVER_ROTATE or kind in ALIBI or kind in CONTENT or getattr(config, "alibi", False):
        return False
    if getattr(config, "position_embedding_type", "rope") in ("nope", "absolute", None):
        return False
    if not getattr(config, "use_mem_rope", True):
        return False
    if kind == "cohere2_moe" and windowed is False:
        dense = (config.mlp_layer_types or ["sparse"] * (index + 1))[index] == "dense"
        return bool(dense and config.prefix_dense_sliding_window_pattern == 1)
    if kind in ROTATE_WINDOWED:
        return windowed
    if kind in ROTATE_WINDOWED_IF_ANY:
        return windowed or not config.sliding_window
    if (flags := getattr(config, "no_rope_layers", None)) is not None:  # 1 where it does rotate
        return index >= len(flags) or bool(flags[index])
    if (bases := getattr(config, "layer_rope_theta", None)) is not None:
        return bool(bases[index])
    return True


def cancels_magnitude(config: Any) -> bool:
    """Return whether queries and keys are normalised after the rotation, and by nothing learned.

    Then a factor on cosines and sines has no effect.
    """
    return config.model_type == "llama4_text" and bool(config.use_qk_norm)


def layout(config: Any) -> Layout:
    """Return ``half`` or ``interleaved``: which channels of a head are rotated as one pair."""
    chosen = getattr(config, "rope_interleave", None)
    if chosen is not None:
        return "interleaved" if chosen else "half"
    return "interleaved" if config.model_type in INTERLEAVED else "half"


def temperature(config: Any, rotating: bool) -> str:
    """Return how queries are scaled by their position p, as a formula; "" where they are not."""
    kind = config.model_type
    if kind == "llama4_text" and config.attn_temperature_tuning and not rotating:
        return f"queries × (1 + {config.attn_scale:g} ln(1 + ⌊(p + 1) / {config.floor_scale:g}⌋))"
    block = getattr(config, "rope_parameters", None) or {}
    if block.get("llama_4_scaling_beta"):
        start = block.get("original_max_position_embeddings")
        return f"queries × (1 + {block['llama_4_scaling_beta']:g} ln(1 + ⌊p / {start}⌋))"
    if kind == "beam" and not rotating:
        return "queries × exp(0.1 ln(1 + (p + 1) / 2048))"
    if kind == "mistral_large4_text":
        return "queries × (learned scale × ln(p + 1) + learned bias), per head"
    if kind in CONTENT and getattr(config, "log_scaling_n_floor", None):
        floor, alpha = config.log_scaling_n_floor, config.log_scaling_alpha
        return f"queries × (1 + {alpha:g} ln(max(1, (p + 1) / {floor})))"
    return ""


def sink(config: Any, windowed: bool) -> bool:
    """Return whether the layer's heads have a learned sink."""
    kind = config.model_type
    return kind in SINKS or (kind in SINKS_IN_WINDOWS and windowed)
