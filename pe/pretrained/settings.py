"""Settings ready to paste, for transformers of today and before, and for vLLM.

transformers 5 reads ``rope_parameters`` with the base in it; older versions read ``rope_scaling``
beside ``rope_theta``. vLLM takes ``rope_parameters`` through --hf-overrides since it dropped
--rope-scaling (vllm-project/vllm#28006), and computes how far YaRN, PI and dynamic NTK reach from
the factor, so max_position_embeddings is left alone for these.
"""

from __future__ import annotations

import json
import textwrap
from typing import Any

import torch

from pe.pretrained import families
from pe.pretrained.layers import nested_keys, read_layers
from pe.pretrained.read import Source, quiet
from pe.pretrained.rope import Frozen, Rope

ROUNDING = 1e-5
"""Relative differences up to this are float32's, in which transformers computes frequencies."""


class Settings(Frozen):
    """The settings of one method."""

    transformers: dict[str, Any]
    """For config.json, transformers 5 and later."""
    older: dict[str, Any] | None
    """The same before transformers 5; None where there was no such setting."""
    vllm: str | None
    """A command line; None where vLLM computes something else under the same name."""
    llama_cpp: str | None
    """llama.cpp's options for a gguf file; None for another source, or where it has none."""
    difference: float
    """The largest relative difference between transformers' frequencies under these settings and
    those of this package; float32 rounds by about 1e-7."""


def settings_for(source: Source, rope: Rope, layer_type: str | None, length: int) -> Settings | str:
    """Return the settings of a rotation, checked by computing transformers' frequencies with them.

    Args:
        layer_type: the layers that get the rotation, where layers differ in their settings.
        length: tokens to be read.

    Returns:
        The settings, or in one line why there are none.
    """
    config = source.config
    if not hasattr(config, "rope_parameters"):
        return f"transformers' {type(config).__name__} has no rotary settings, its base is in code"
    block = dict(rope.settings)
    if config.model_type in families.PARTIAL:  # left out, it may be another share by default
        block.setdefault("partial_rotary_factor", rope.share)
    keys = nested_keys(config)
    parameters: dict[str, Any] = block
    if keys:
        parameters = {
            key: block if key == layer_type else config.rope_parameters[key] for key in keys
        }
    # transformers' dynamic scaling counts from max_position_embeddings
    root: dict[str, Any] = {"max_position_embeddings": length}
    if rope.kind == "dynamic":
        root["max_position_embeddings"] = rope.original_length
    if not config.is_heterogeneous and getattr(config, "head_dim", 0) is None:
        root["head_dim"] = rope.head_dim  # left out, transformers cannot compute YaRN
    if "original_max_position_embeddings" in block and hasattr(
        config, "original_max_position_embeddings"
    ):
        root["original_max_position_embeddings"] = block["original_max_position_embeddings"]
    settings = root | {"rope_parameters": parameters}
    try:
        built = _built(config, settings)
        difference = _difference(built, rope, layer_type, length)
    except ValueError as error:
        return str(error)
    return Settings(
        transformers=_inside(source, settings),
        older=_older(source, root, block, built, length),
        vllm=_vllm(source, parameters, rope, length),
        llama_cpp=_llama_cpp(source, rope, length), difference=difference,
    )  # fmt: skip


def _built(config: Any, settings: dict[str, Any]) -> Any:
    """Return the configuration with these settings, as transformers reads it.

    Raises:
        ValueError: it refuses them.
    """
    whole = json.loads(json.dumps(config.to_dict(), default=str))
    for name in ("rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor"):
        whole.pop(name, None)
    with quiet():
        try:
            return type(config).from_dict(whole | json.loads(json.dumps(settings)))
        except Exception as error:  # the classes raise errors of many types for a wrong field
            reason = " ".join(str(error.__cause__ or error).split())
            raise ValueError(
                f"transformers' {type(config).__name__} refuses it: {reason}"
            ) from error


def _difference(built: Any, rope: Rope, layer_type: str | None, length: int) -> float:
    """Return how far transformers' frequencies are from ours.

    Raises:
        ValueError: too far, or it takes the settings for something else.
    """
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    name = type(built).__name__
    ropes = [layer.rope for layer in read_layers(built) if layer.rope is not None]
    again = next((one for one in ropes if (one.kind, one.base) == (rope.kind, rope.base)), None)
    if again is None:
        raise ValueError(f"transformers' {name} takes {rope.kind!r} for something else")
    if rope.kind not in ROPE_INIT_FUNCTIONS:  # plain RoPE is in each model's own class
        theirs, attention = again.spectrum(length).inv_freq, 1.0
    else:
        for_type = {"layer_type": layer_type} if nested_keys(built) else {}
        if built.is_heterogeneous:
            built.allow_global_per_layer_attribute_access = True
        with quiet():
            theirs, attention = ROPE_INIT_FUNCTIONS[rope.kind](
                built, torch.device("cpu"), seq_len=length, **for_type
            )
    ours = rope.spectrum(length)
    if theirs.shape != ours.inv_freq.shape:
        raise ValueError(f"transformers' {name} rotates another number of channels with them")
    gap = torch.where(
        ours.inv_freq > 0, (theirs.double() - ours.inv_freq).abs() / ours.inv_freq, theirs.abs()
    )
    largest = max(float(gap.max()), abs(float(attention) - float(ours.magnitude)))
    if largest > ROUNDING:
        raise ValueError(f"transformers' {name} computes other frequencies with them")
    return largest


def _inside(source: Source, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings at their place in the whole configuration."""
    for key in reversed(source.inside):
        settings = {key: settings}
    return settings


def _older(
    source: Source, root: dict[str, Any], block: dict[str, Any], built: Any, length: int
) -> dict[str, Any] | None:
    """Return the form before transformers 5 if it still leads to the same layers, or None."""
    apart = ("rope_theta", "partial_rotary_factor")
    scaling = {key: value for key, value in block.items() if key not in apart}
    older = root | {key: block[key] for key in apart if key in block}
    local = (built.rope_parameters.get("sliding_attention") or {}).get("rope_theta")
    if nested_keys(built) and local is not None:  # the Gemma 3 family's second base
        older["rope_local_base_freq"] = local
    if scaling.get("rope_type") != "default":
        older["rope_scaling"] = scaling
    try:
        again = read_layers(_built(source.config, older))
    except ValueError:  # this type has settings per layer type only
        return None
    pairs = zip(read_layers(built), again, strict=True)
    same = all(_alike(one.rope, other.rope, length) for one, other in pairs)
    return _inside(source, older) if same else None


def _alike(one: Rope | None, other: Rope | None, length: int) -> bool:
    if one is None or other is None:
        return one is other
    ours, theirs = one.spectrum(length), other.spectrum(length)
    same = torch.equal(ours.inv_freq, theirs.inv_freq)
    return same and float(ours.magnitude) == float(theirs.magnitude)


def _vllm(source: Source, parameters: dict[str, Any], rope: Rope, length: int) -> str | None:
    if rope.kind == "dynamic":  # vLLM computes one base for the longest text and keeps it
        return None
    overrides: dict[str, Any] = {"rope_parameters": parameters}
    if rope.kind not in ("yarn", "linear"):  # for these vLLM multiplies the length by the factor
        overrides["max_position_embeddings"] = length
    text = json.dumps(_inside(source, overrides), separators=(", ", ":")).replace(":{", ": {")
    option = "--hf-overrides '"  # JSON may have line breaks, the command only inside its quotes
    lines = textwrap.wrap(
        f"{text}'", 80, initial_indent=option, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join((f"vllm serve MODEL --max-model-len {length} \\", *lines))


def _llama_cpp(source: Source, rope: Rope, length: int) -> str | None:
    if not source.name.endswith(".gguf"):
        return None
    options = {
        "yarn": f"--rope-scaling yarn --rope-scale {rope.factor:g} "
        f"--yarn-orig-ctx {rope.original_length}",
        "linear": f"--rope-scaling linear --rope-scale {rope.factor:g}",
        "default": f"--rope-freq-base {rope.base:g}",
    }
    if rope.kind not in options:
        return None
    return f"llama-server -m {source.name} -c {length} {options[rope.kind]}"
