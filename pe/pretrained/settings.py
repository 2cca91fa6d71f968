"""Settings ready to paste, for transformers of today and before, and for vLLM.

transformers 5 reads ``rope_parameters`` with the base in it; older versions read ``rope_scaling``
beside ``rope_theta``. vLLM takes ``rope_parameters`` through --hf-overrides since it dropped
--rope-scaling (vllm-project/vllm#28006), and computes how far YaRN, PI and dynamic NTK reach from
the factor, so max_position_embeddings is left alone for these.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict

from pe.pretrained.layers import nested_keys, read_layers
from pe.pretrained.methods import Method
from pe.pretrained.read import Source, quiet
from pe.pretrained.rope import Rope


class Settings(BaseModel):
    """A method as configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: str
    transformers: dict[str, Any]
    """For config.json, transformers 5 and later."""
    older: dict[str, Any] | None
    """The same before transformers 5; None where there was no such setting."""
    vllm: str | None
    """A command line; None where vLLM computes something else under the same name."""
    difference: float
    """The largest relative difference between transformers' frequencies under these settings and
    those of this package; float32 rounds by about 1e-7."""


def settings_for(
    source: Source, method: Method, layer_type: str | None, length: int
) -> Settings | str:
    """The settings of a method, checked by computing transformers' frequencies with them.

    Args:
        layer_type: the layers that the method is for, where layers have settings of their own.

    Returns:
        The settings, or in one line why there are none.
    """
    if method.rope is None:
        return method.remark
    config, rope = source.config, method.rope
    block = dict(rope.settings)
    keys = nested_keys(config)
    parameters: dict[str, Any] = block
    if keys:
        parameters = {
            key: block if key == layer_type else config.rope_parameters[key] for key in keys
        }
    root: dict[str, Any] = {}
    if rope.kind != "dynamic":  # transformers' dynamic counts from it
        root["max_position_embeddings"] = max(length, int(config.max_position_embeddings))
    if "original_max_position_embeddings" in block and hasattr(
        config, "original_max_position_embeddings"
    ):
        root["original_max_position_embeddings"] = block["original_max_position_embeddings"]
    settings = root | {"rope_parameters": parameters}
    computed = _computed(config, settings, rope, layer_type, length)
    if isinstance(computed, str):
        return computed
    return Settings(
        method=method.name, transformers=_inside(source, settings),
        older=_older(source, root, block, keys, layer_type),
        vllm=_vllm(source, root, parameters, rope, length), difference=computed,
    )  # fmt: skip


def _computed(
    config: Any, settings: dict[str, Any], rope: Rope, layer_type: str | None, length: int
) -> float | str:
    """How far transformers' frequencies under ``settings`` are from ours; a line if it refuses."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    name = type(config).__name__
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    with quiet():
        try:
            built = type(config).from_dict(whole | json.loads(json.dumps(settings)))
        except (KeyError, TypeError, ValueError) as error:
            return f"transformers' {name} refuses it: {' '.join(str(error).split())}"
        ropes = [layer.rope for layer in read_layers(built) if layer.rope is not None]
        again = next((one for one in ropes if one.kind == rope.kind), None)
        if again is None:
            return f"transformers' {name} takes {rope.kind!r} for something else"
        if rope.kind not in ROPE_INIT_FUNCTIONS:  # plain RoPE is in each model's own class
            theirs, attention = again.spectrum(length).inv_freq, 1.0
        else:
            for_type = {"layer_type": layer_type} if nested_keys(built) else {}
            theirs, attention = ROPE_INIT_FUNCTIONS[rope.kind](
                built, torch.device("cpu"), seq_len=length, **for_type
            )
    ours = rope.spectrum(length)
    theirs = theirs.double()
    if theirs.shape != ours.inv_freq.shape:
        return f"transformers' {name} rotates another number of channels with it"
    size = ours.inv_freq.abs().clamp(min=1e-30)
    gap = ((theirs - ours.inv_freq).abs() / size).where(ours.inv_freq > 0, theirs.abs())
    return max(float(gap.max()), abs(float(attention) - float(ours.magnitude)))


def _inside(source: Source, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings at their place in the whole configuration."""
    for key in reversed(source.inside):
        settings = {key: settings}
    return settings


def _older(
    source: Source,
    root: dict[str, Any],
    block: dict[str, Any],
    keys: list[str],
    layer_type: str | None,
) -> dict[str, Any] | None:
    scaling = {
        key: value for key, value in block.items()
        if key not in ("rope_theta", "partial_rotary_factor")
    }  # fmt: skip
    older = dict(root) | {"rope_theta": block["rope_theta"]}
    if scaling.get("rope_type") != "default":
        older["rope_scaling"] = scaling
    if not keys:
        return _inside(source, older)
    # Types with a block per layer type were rare before: the Gemma 3 family had two bases.
    local = source.config.rope_parameters.get("sliding_attention")
    if layer_type != "full_attention" or local is None or "gemma3" not in source.config.model_type:
        return None
    return _inside(source, older | {"rope_local_base_freq": local["rope_theta"]})


def _vllm(
    source: Source, root: dict[str, Any], parameters: dict[str, Any], rope: Rope, length: int
) -> str | None:
    if rope.kind == "dynamic":  # vLLM computes one base for the longest text and keeps it
        return None
    overrides: dict[str, Any] = {"rope_parameters": parameters}
    if rope.kind not in ("yarn", "linear"):  # for these vLLM multiplies the length by the factor
        overrides["max_position_embeddings"] = length
    text = json.dumps(_inside(source, overrides))
    return f"vllm serve MODEL --hf-overrides '{text}' --max-model-len {length}"
