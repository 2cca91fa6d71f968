"""Read from a configuration what each layer does about positions."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

from pe.pretrained import families
from pe.pretrained.rope import Frozen, Rope, check_block, kind_of

Position = Literal["rotation", "none", "alibi", "content bias", "recurrent", "other"]

RECURRENT = ("linear_attention", "conv", "mamba", "moe", "mlp")
"""Layer types without attention: order comes from the recurrence, or there is none."""


class Layer(Frozen):
    """What one layer does about positions."""

    position: Position
    attention: str
    """``full``, ``sliding``, ``chunked`` ... as transformers calls it; "" for recurrent layers."""
    reach: int | None = None
    """Tokens that a query may see, itself included; None: all before it."""
    rope: Rope | None = None
    temperature: str = ""
    sink: bool = False


def read_layers(config: Any) -> list[Layer]:
    """Return each layer of a decoder's configuration object, the first one first.

    Raises:
        ValueError: the rotary settings cannot be computed with.
    """
    number = whole_number(config, "num_hidden_layers")
    types = getattr(config, "layer_types", None) or [None] * number
    return [_layer(config, index, types[index]) for index in range(number)]


def whole_number(config: Any, name: str, least: int = 1) -> int:
    """Return a field that counts something. ValueError: it is something else."""
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} {value!r}: expected a whole number, {least} or more")
    return value


def _layer(config: Any, index: int, kind: str | None) -> Layer:
    if kind in RECURRENT:
        return Layer(position="recurrent", attention="")
    # where layers differ in their shapes, each has a configuration
    own = config.per_layer_config[index] if config.is_heterogeneous else config
    reach = _reach(own, kind)
    rope = _rope(config, own, index, kind) if families.rotates(config, index, kind) else None
    name = (kind or ("sliding" if reach else "full")).removesuffix("_attention")
    return Layer(
        position="rotation" if rope else _without_rotation(config), attention=name, reach=reach,
        rope=rope, temperature=families.temperature(config, rope is not None),
        sink=families.sink(config, reach is not None),
    )  # fmt: skip


def _without_rotation(config: Any) -> Position:
    if config.model_type in families.ALIBI or getattr(config, "alibi", False):
        return "alibi"
    if config.model_type in families.CONTENT:
        return "content bias"
    learned = getattr(config, "position_embedding_type", None) == "absolute"
    return "other" if learned else "none"


def _reach(config: Any, kind: str | None) -> int | None:
    if kind is None or "sliding" in kind:
        for name in ("sliding_window", "attention_window_size", "sliding_window_size"):
            window = getattr(config, name, None)
            # a model does not read what its class does not have by default
            if window and hasattr(default_of(config.__class__), name):
                return whole_number(config, name)
        return None
    if "chunked" in kind:
        return getattr(config, "attention_chunk_size", None)
    return None


def _rope(config: Any, own: Any, index: int, kind: str | None) -> Rope | None:
    block = rope_block(config, kind)
    if not block:
        return None
    bases = getattr(config, "layer_rope_theta", None)
    if bases is not None:
        block = dict(block) | {"rope_theta": bases[index]}
    check_block(block)
    chosen = _kind(config, block)
    base = block.get("rope_theta")
    if base is None:
        raise ValueError("rope_theta, the base of the frequencies, is missing")
    head = _head_dim(own)
    width = _width(own, head, block, chosen)
    # The class has filled the gaps: "factor": null is read as the quotient of the two lengths.
    original = block.get("original_max_position_embeddings")
    if original is not None and not nested_keys(config):
        # transformers' rotary module prefers the value outside the block
        original = getattr(config, "original_max_position_embeddings", original)
    longest = getattr(config, "max_position_embeddings", None)
    if chosen == "dynamic" or original is None:
        original = longest
    if chosen in ("yarn", "longrope") and block.get("factor") is None and original and longest:
        block = dict(block) | {"factor": max(longest / original, 1.0)}
    if chosen != "default" and config.model_type in families.OWN_MAGNITUDE:
        block = dict(block) | {"attention_factor": _own_magnitude(block)}
    if nested_keys(config) and not block.get("truncate", True):
        block = dict(block) | {"truncate": True}  # transformers does not look for it there
    return Rope(
        kind=chosen, base=float(base), head_dim=head, width=width, settings=dict(block),
        original_length=None if original is None else int(original), layout=families.layout(config),
        latent=getattr(config, "qk_rope_head_dim", None) is not None,
    )  # fmt: skip


def _own_magnitude(block: Mapping[str, Any]) -> float:
    """Return what cosines and sines are multiplied by. ValueError: it depends on the length."""
    short, long = block["short_mscale"], block["long_mscale"]
    if short != long:
        raise ValueError(f"short_mscale {short} and long_mscale {long} differ: not explained")
    return float(short)


def _kind(config: Any, block: Mapping[str, Any]) -> str:
    """Return the type of scaling as the model type reads it.

    Raises:
        ValueError: transformers cannot build this model type with it.
    """
    chosen = kind_of(block)
    if chosen == "axial":
        raise ValueError("rope_type 'axial': rotation by the two axes of an image is not explained")
    written = block.get("rope_type", "default")
    if written != chosen:  # where the model type knows an older name, its class has replaced it
        raise ValueError(
            f"rope_type {written!r}: transformers' {config.model_type!r} does not know it; write "
            f"{chosen!r}"
        )
    if chosen == "dynamic" and block.get("alpha") and config.model_type in families.FIXED_ALPHA:
        return "ntk_alpha"
    return chosen


def rope_block(config: Any, kind: str | None) -> Mapping[str, Any] | None:
    """Return the rotary settings of layers of one type; None where these layers have none.

    Raises:
        ValueError: the model type expects one block where there are several, or the reverse.
    """
    settings = getattr(config, "rope_parameters", None)
    if settings:
        keys, expected = nested_keys(config), []
        if keys or getattr(config, "layer_types", None):
            expected = nested_keys(default_of(config.__class__))
        if keys and not expected:
            raise ValueError(
                f"rope_parameters has a block for each of {', '.join(keys)}, and transformers' "
                f"{config.model_type!r} reads one block for all layers"
            )
        if expected and not keys:
            raise ValueError(
                f"rope_parameters is one block, and transformers' {config.model_type!r} reads one "
                f"for each of {', '.join(expected)}"
            )
        if not keys:
            return dict(settings)
        block: Mapping[str, Any] | None = settings[kind if kind in keys else _label(kind, keys)]
        return block
    width = getattr(config, "rotary_dim", None)
    if width:  # GPT-J and CodeGen: base 10,000 in the code
        return {"rope_type": "default", "rope_theta": 10000.0}
    return None


@cache
def default_of(config_class: Any) -> Any:
    """Return the default configuration of a model type, which is that of its first release."""
    return config_class()


def nested_keys(config: Any) -> list[str]:
    """Return the layer types that have separate settings; empty if all layers share one block."""
    settings = getattr(config, "rope_parameters", None) or {}
    if not any(isinstance(value, Mapping) for value in settings.values()):
        return []
    return [key for key, value in settings.items() if value is None or isinstance(value, Mapping)]


def _label(kind: str | None, keys: list[str]) -> str:
    """Return the name of a block: DeepSeek V4 has main (windowed layers) and compress (others)."""
    if {"main", "compress"} <= set(keys):
        return "main" if kind is not None and "sliding" in kind else "compress"
    raise ValueError(
        f"rope_parameters: settings for {', '.join(keys)} and none for layers of type {kind!r}"
    )


def _head_dim(config: Any) -> int:
    heads = whole_number(config, "num_attention_heads")
    for name in ("head_dim", "attention_head_dim"):
        if getattr(config, name, None) is not None:
            return whole_number(config, name)
    return whole_number(config, "hidden_size", heads) // heads


def _width(config: Any, head: int, block: Mapping[str, Any], kind: str) -> int:
    if not hasattr(config, "rope_parameters"):  # GPT-J and CodeGen
        return int(config.rotary_dim)
    share = block.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    share = 1.0 if share is None else float(share)
    if kind == "proportional":
        return 2 * int(share * head // 2)
    if config.model_type in families.PARTIAL:
        return int(head * share)
    width = head if kind == "default" else int(head * share)
    rotated = getattr(config, "qk_rope_head_dim", None) or head
    if width != rotated:
        raise ValueError(
            f"partial_rotary_factor {share:g}: transformers' {config.model_type!r} rotates "
            f"{rotated} channels, and {kind!r} computes the frequencies of {width}; remove it"
        )
    return width
