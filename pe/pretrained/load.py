"""Load a model that somebody else trained: safetensors or gguf, and no code from the checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

import pe.pretrained.adapt  # noqa: F401  (what adapted models saved is known to transformers then)
from pe._quiet import quiet_libraries
from pe.pretrained.read import quiet, read


def load(
    path: str | Path, dtype: torch.dtype = torch.float32
) -> tuple[Any, PreTrainedTokenizerBase]:
    """Load a decoder of transformers and its tokenizer.

    Args:
        path: a folder with config.json, safetensors and tokenizer (what an adapted model saved is
            one, too), or a gguf file, whose weights are taken out of their 4 or 8 bits.
        dtype: of the weights.

    Raises:
        ValueError: in one line, why not: there is no such file, no weights in these formats, or a
            model type that `pe.explain` refuses.
    """
    source = read(Path(path))  # refuses what is no decoder, with its reason
    name = source.name
    if name.endswith(".gguf"):
        where = {"pretrained_model_name_or_path": str(Path(name).parent)}
        where["gguf_file"] = Path(name).name
    else:
        folder = Path(name).parent
        if not list(folder.glob("*.safetensors")):
            raise ValueError(
                f"{folder}: no weights as safetensors; other formats can execute code and are not "
                "read"
            )
        where = {"pretrained_model_name_or_path": str(folder)}
    with quiet(), quiet_libraries():
        more: dict[str, Any] = {"use_safetensors": True}
        if "gguf_file" in where:
            more = {"config": _with_rotation(AutoConfig.from_pretrained(**where), source.config)}
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=dtype, trust_remote_code=False, local_files_only=True, **more
        )
        tokenizer = _tokenizer(where)
    if "gguf_file" in where:
        _forget_bits(model)
    return model.eval(), tokenizer


def _with_rotation(config: Any, own: Any) -> Any:
    """Return ``config`` with the rotary settings of ``own``.

    transformers makes ``config`` from a gguf file and leaves out how frequencies are scaled, but
    for gpt-oss. `pe.pretrained.gguf_file` reads it.
    """
    for name in ("rope_parameters", "original_max_position_embeddings", "max_position_embeddings"):
        if hasattr(own, name):
            setattr(config, name, getattr(own, name))
    return config


def _tokenizer(where: dict[str, str]) -> Any:
    try:
        return AutoTokenizer.from_pretrained(
            **where, trust_remote_code=False, local_files_only=True
        )
    except (OSError, ValueError) as error:
        folder = where["pretrained_model_name_or_path"]
        raise ValueError(
            f"{folder}: no tokenizer that transformers can read; put the model's own there "
            f"(tokenizer.save_pretrained({folder!r}))"
        ) from error


def _forget_bits(model: Any) -> None:
    """The weights are plain numbers now; transformers would refuse to save them as quantized."""
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if "quantization_config" in vars(model.config):
        del model.config.quantization_config
