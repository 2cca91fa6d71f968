"""From a configuration to what each layer does about positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from pe.pretrained import families
from pe.pretrained.rope import Rope, check_block, kind_of

Position = Literal["rotation", "none", "alibi", "content bias", "recurrent", "other"]

RECURRENT = ("linear_attention", "conv", "mamba", "moe", "mlp")
"""Layer types without attention: order comes from the recurrence, or there is none."""


class Layer(BaseModel):
    """What one layer does about positions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    position: Position
    attention: str
    """``full``, ``sliding``, ``chunked`` ... as transformers calls it; "" for recurrent layers."""
    reach: int | None = None
    """Tokens that a query may see, itself included; None: all before it."""
    rope: Rope | None = None
    temperature: str = ""
    sink: bool = False


def read_layers(config: Any) -> list[Layer]:
    """Each layer of a decoder's configuration object, the first one first.

    Raises:
        ValueError: the rotary settings cannot be computed with.
    """
    types = getattr(config, "layer_types", None) or [None] * config.num_hidden_layers
    return [_layer(config, index, types[index]) for index in range(config.num_hidden_layers)]


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
            if window := getattr(config, name, None):
                return int(window)
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
    chosen = kind_of(block)
    if chosen == "axial":
        raise ValueError("rope_type 'axial': rotation by the two axes of an image is not explained")
    if chosen == "dynamic" and block.get("alpha"):
        chosen = "ntk_alpha"
    base = block.get("rope_theta")
    if base is None:
        raise ValueError("rope_theta, the base of the frequencies, is missing")
    head = _head_dim(own)
    width = _width(own, head, block, chosen)
    # The class has filled the gaps: "factor": null is read as the quotient of the two lengths.
    original = block.get("original_max_position_embeddings")
    longest = getattr(config, "max_position_embeddings", None)
    if chosen == "dynamic" or original is None:
        original = longest
    if chosen in ("yarn", "longrope") and block.get("factor") is None and original and longest:
        block = dict(block) | {"factor": max(longest / original, 1.0)}
    if nested_keys(config) and block.get("truncate") is False:
        block = dict(block) | {"truncate": True}  # transformers does not look for it there
    return Rope(
        kind=chosen, base=float(base), head_dim=head, width=width, settings=dict(block),
        original_length=None if original is None else int(original), layout=families.layout(config),
        latent=getattr(config, "qk_rope_head_dim", None) is not None,
    )  # fmt: skip


def rope_block(config: Any, kind: str | None) -> Mapping[str, Any] | None:
    """The rotary settings of layers of one type; None where these layers have none."""
    settings = getattr(config, "rope_parameters", None)
    if settings:
        keys = nested_keys(config)
        if not keys:
            return dict(settings)
        block: Mapping[str, Any] | None = settings[
            kind if kind in keys else _label(config, kind, keys)
        ]
        return block
    width = getattr(config, "rotary_dim", None)
    if width:  # GPT-J and CodeGen: base 10,000 in the code
        return {"rope_type": "default", "rope_theta": 10000.0}
    return None


def nested_keys(config: Any) -> list[str]:
    """The layer types that have separate settings; empty where all layers share one block."""
    settings = getattr(config, "rope_parameters", None) or {}
    if not any(isinstance(value, Mapping) for value in settings.values()):
        return []
    return [key for key, value in settings.items() if value is None or isinstance(value, Mapping)]


def _label(config: Any, kind: str | None, keys: list[str]) -> str:
    """DeepSeek V4 calls its two blocks main (windowed layers) and compress (all others)."""
    if {"main", "compress"} <= set(keys):
        return "main" if kind is not None and "sliding" in kind else "compress"
    raise ValueError(
        f"rope_parameters: settings for {', '.join(keys)} and none for layers of type {kind!r}"
    )


def _head_dim(config: Any) -> int:
    head = getattr(config, "head_dim", None)
    if head is None:
        head = getattr(config, "attention_head_dim", None)
    return int(head or config.hidden_size // config.num_attention_heads)


def _width(config: Any, head: int, block: Mapping[str, Any], kind: str) -> int:
    if not hasattr(config, "rope_parameters"):  # GPT-J and CodeGen
        return int(config.rotary_dim)
    share = block.get("partial_rotary_factor")
    share = 1.0 if share is None else float(share)
    if kind == "proportional":
        return 2 * int(share * head // 2)
    return int(head * share)
