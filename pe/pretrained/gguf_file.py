"""Read the metadata of a gguf file as a configuration. Tensors are not read, with one exception.

llama.cpp writes Llama 3's and LongRoPE's scaling as small tensors of divisors, one per frequency
(``rope_freqs.weight``, ``rope_factors_long.weight``). These are read where a file has them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pe._errors import unknown
from pe.encodings.yarn import magnitude

TYPES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text",
    "phi2": "phi", "phi3": "phi3", "gpt-oss": "gpt_oss", "smollm3": "smollm3",
    "gptneox": "gpt_neox", "olmo": "olmo", "olmo2": "olmo2", "stablelm": "stablelm",
    "starcoder2": "starcoder2", "mistral3": "ministral3", "granite": "granite",
    "command-r": "cohere", "cohere2": "cohere2", "falcon": "falcon", "exaone4": "exaone4",
    "nemotron": "nemotron", "seed_oss": "seed_oss",
}  # fmt: skip
"""gguf's architectures that are read here, under transformers' names."""

PERMUTED = frozenset({"llama", "granite", "mistral3", "olmo", "smollm3"})
"""Architectures whose query and key rows llama.cpp reorders for interleaved rotation."""

_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}


def read_gguf(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the metadata under transformers' names, and remarks about it.

    Raises:
        ValueError: the ``gguf`` package is missing, the file is no gguf file, or its architecture
            is unknown here.
    """
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(
            f"{path}: reading gguf files needs the gguf package: pip install 'gguf>=0.17'"
        ) from error
    try:
        reader = GGUFReader(str(path))
    except (ValueError, IndexError, OSError) as error:
        raise ValueError(f"{path}: no gguf file that can be read: {error}") from error
    values = {name: field.contents() for name, field in reader.fields.items()}
    architecture = values.get("general.architecture")
    if architecture not in TYPES:
        raise ValueError(f"{path}: {unknown('gguf architecture', architecture, TYPES)}")
    raw: dict[str, Any] = {"model_type": TYPES[architecture]}
    for field, name in _FIELDS.items():
        value = values.get(f"{architecture}.{field}")
        if value is not None:
            raw[name] = max(value) if isinstance(value, list) else value
    heads = raw.get("num_attention_heads", 1)
    head = raw.get("head_dim") or raw.get("hidden_size", 0) // heads
    rotated = values.get(f"{architecture}.rope.dimension_count")
    if rotated is not None and head and rotated != head:
        raw["partial_rotary_factor"] = rotated / head
    remarks = []
    if "rope_theta" not in raw:
        remarks.append("the file does not state the base; the default of the model type is used")
    scaling = _scaling(values, architecture)
    divisors = {t.name: t.data for t in reader.tensors if t.name.startswith("rope_f")}
    if "rope_freqs.weight" in divisors:
        factors = [float(x) for x in divisors["rope_freqs.weight"].ravel()]
        scaling = {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors,
            "original_max_position_embeddings": raw["max_position_embeddings"],
            "attention_factor": 1.0,
        }  # fmt: skip
        remarks.append(
            "frequencies are divided by the tensor rope_freqs.weight (1 to "
            f"{max(factors):g}), llama.cpp's place for Llama 3's scaling; shown as LongRoPE factors"
        )
    elif {"rope_factors_long.weight", "rope_factors_short.weight"} <= set(divisors):
        scaling |= {
            "rope_type": "longrope",
            "long_factor": [float(x) for x in divisors["rope_factors_long.weight"].ravel()],
            "short_factor": [float(x) for x in divisors["rope_factors_short.weight"].ravel()],
        }
    if scaling:
        raw["rope_scaling"] = scaling
    if architecture in PERMUTED:
        remarks.append(
            "in the gguf file, queries and keys of this architecture are ordered for interleaved "
            "rotation (channels 2i and 2i + 1); the pairing named above is that of transformers"
        )
    return raw, tuple(remarks)


def _scaling(values: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Return the ``rope.scaling`` fields under transformers' names."""
    prefix = f"{architecture}.rope.scaling."
    kind = values.get(prefix + "type")
    if kind in (None, "none"):
        return {}
    scaling: dict[str, Any] = {"rope_type": kind}
    for field, name in {
        "factor": "factor",
        "original_context_length": "original_max_position_embeddings",
        "attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }.items():
        value = values.get(prefix + field)
        if value is not None:
            scaling[name] = value
    if kind == "yarn" and "attention_factor" in scaling:  # llama.cpp multiplies it by YaRN's own
        scaling["attention_factor"] *= magnitude(scaling["factor"])
    return scaling
