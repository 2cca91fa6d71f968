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
    file = Path(source.name)
    where = {
        "pretrained_model_name_or_path": str(file.parent), "local_files_only": True,
        "trust_remote_code": False,
    }  # fmt: skip
    more: dict[str, Any] = {"use_safetensors": True}
    with quiet(), quiet_libraries():
        if file.suffix == ".gguf":
            where["gguf_file"] = file.name
            more = {"config": _with_rotation(AutoConfig.from_pretrained(**where), source.config)}
        elif not list(file.parent.glob("*.safetensors")):
            raise ValueError(
                f"{file.parent}: no weights as safetensors; other formats can execute code and are "
                "not read"
            )
        model: Any = AutoModelForCausalLM.from_pretrained(**where, **more, dtype=dtype)
        try:
            tokenizer = AutoTokenizer.from_pretrained(**where)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{file.parent}: no tokenizer that transformers can read; put the model's own "
                f"there (tokenizer.save_pretrained({str(file.parent)!r}))"
            ) from error
    if file.suffix == ".gguf":
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


def _forget_bits(model: Any) -> None:
    """Remove the mark of quantization, with which transformers would refuse to save the model.

    Its weights are floating-point numbers now.
    """
    for name in ("hf_quantizer", "quantization_method", "is_quantized"):
        if name in vars(model):
            delattr(model, name)
    if "quantization_config" in vars(model.config):
        del model.config.quantization_config
