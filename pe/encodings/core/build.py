"""Builds encodings from specs such as ``rope``, ``yarn+resonance`` or ``my_module:MyEncoding``.

`pe.encodings.core.spec` describes the language of specs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pe.encodings.core.base import Encoding
from pe.encodings.core.composite import Composite
from pe.encodings.core.key_range import HasKeyRange, Narrowed
from pe.encodings.core.options import (
    CONTEXT,
    construct,
    needed_option,
    own_options,
    refuse_unknown_options,
    takes,
)
from pe.encodings.core.parts import by_kind, layer_classes, part_classes, placed
from pe.encodings.core.registry import Part, is_key_part
from pe.encodings.core.spec import LayerSpec, PartSpec, joined, layer_specs, parse


def encoding(
    spec: str,
    *,
    head_dim: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    hidden_size: int | None = None,
    original_length: int | None = None,
    layer_index: int = 0,
    **options: Any,
) -> Encoding:
    """Build an encoding.

    Args:
        spec: a name, several names joined by ``+``, or a schedule of layers
            (`pe.encodings.core.spec`), whose layer ``layer_index`` is built.
        head_dim: width of one head.
        num_heads: number of query heads.
        num_kv_heads: number of key heads; default: num_heads.
        hidden_size: width of the embeddings; default: head_dim x num_heads.
        original_length: training length in tokens, which extension methods need.
        layer_index: number of the layer, from 0.
        options: options of the parts. An option that several parts have goes to all of them.

    Raises:
        ValueError: an unknown name or option (the message names the nearest), a wrong value, or
            parts that cannot be combined.
    """
    _refuse_wrong_sizes(
        head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads, hidden_size=hidden_size,
        original_length=original_length,
    )  # fmt: skip
    if num_kv_heads is not None and num_heads % num_kv_heads:
        raise ValueError(
            f"num_kv_heads: expected a divisor of the {num_heads} heads, got {num_kv_heads}"
        )
    if not _is_whole(layer_index) or layer_index < 0:
        raise ValueError(f"layer_index: expected a whole number of at least 0, got {layer_index!r}")
    arguments = {
        "head_dim": head_dim,
        "num_heads": num_heads,
        "num_kv_heads": num_heads if num_kv_heads is None else num_kv_heads,
        "hidden_size": head_dim * num_heads if hidden_size is None else hidden_size,
        "original_length": original_length,
        "layer_index": layer_index,
    } | options
    refuse_unknown_options(spec, list(part_classes(spec).values()), options)
    layers = parse(spec)
    layer = layers[layer_index % len(layers)]
    named = {part.name: part for part in layer}
    encodings, transforms = by_kind(layer_classes(layer))

    def build(name: str, part: Part) -> Any:
        own = own_options(named.get(name, PartSpec(name)), part)
        if (needed := needed_option(part)) and needed not in own | options:
            raise ValueError(f"{name} needs a number, as in '{name}:512'")
        twice = own.keys() & options.keys()
        if twice:
            raise ValueError(
                f"{joined(layer)!r}: {min(twice)} is given in the spec and among the options; "
                "leave one out"
            )
        return construct(name, part, arguments | own)

    with placed(spec, layer):
        changes = [build(name, c) for name, c in transforms.items()]
        if changes:
            arguments["transforms"] = changes
        keys = {name: build(name, c) for name, c in encodings.items() if is_key_part(name)}
        arguments["visible"] = _visible(keys.values())
        parts = [keys[n] if n in keys else build(n, c) for n, c in encodings.items()]
    return parts[0] if len(parts) == 1 else sum_class(encodings.values())(parts)


def _visible(parts: Iterable[Encoding]) -> int | None:
    """Return how many of the last keys a query sees at most; None if it sees all or other ones."""
    shown = [part.key_range() for part in parts if isinstance(part, HasKeyRange)]
    if any(keys.sinks for keys in shown):
        return None
    return min((n for keys in shown for n in (keys.window, keys.chunk) if n), default=None)


def _refuse_wrong_sizes(**sizes: int | None) -> None:
    """Raise ValueError for a size that is not a whole number above 0; None is allowed."""
    for name, size in sizes.items():
        if size is not None and not (_is_whole(size) and size > 0):
            raise ValueError(f"{name}: expected a whole number above 0, got {size!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def sum_class(parts: Iterable[type]) -> type[Composite]:
    """Return the class of a sum of these encodings.

    It is `Narrowed` if one of them hides keys and another scales logits, because the scale depends
    on the number of visible keys.
    """
    encodings = [part for part in parts if issubclass(part, Encoding)]
    hides = any(part.hides and issubclass(part, HasKeyRange) for part in encodings)
    scales = any(part.logit_scale is not Encoding.logit_scale for part in encodings)
    return Narrowed if hides and scales else Composite


def layer_encodings(spec: str, num_layers: int, **arguments: Any) -> list[Encoding]:
    """Return the encoding of each layer of a model, or a single one that all layers share.

    ``arguments`` are those of `encoding`. Layers with the same spec share the parts that are not
    per layer: these are built for the first such layer, and the other layers get the same objects.

    Raises:
        ValueError: as in `encoding`, or the schedule does not fit ``num_layers``.
    """
    specs = layer_specs(spec, num_layers)
    first_of: dict[LayerSpec, Encoding] = {}
    layers: list[Encoding] = []
    for index, layer_spec in enumerate(specs):
        first = first_of.get(layer_spec)
        if first is not None and not first.per_layer:
            layers.append(first)
            continue
        layer = encoding(spec, **(arguments | {"layer_index": index}))
        if isinstance(layer, Composite) and isinstance(first, Composite):
            pairs = zip(first._all, layer._all, strict=True)
            shared = [part for part in first._all if not part.per_layer]
            layer = type(first)([new if new.per_layer else old for old, new in pairs], shared)
        first_of.setdefault(layer_spec, layer)
        layers.append(layer)
    one_for_all = len(first_of) == 1 and not layers[0].per_layer
    return layers[:1] if one_for_all else layers


def check(spec: str, options: dict[str, Any] | None = None, **context: int) -> None:
    """Raise ValueError if ``encoding(spec, ...)`` would.

    ``context`` gives the sizes of the model; missing ones get common values.
    ``options`` may hold ``original_length``, for models that are trained at another length than
    the one they extend. The other sizes belong to the model and are no options. If ``context`` has
    ``original_length``, it is the training length, and a chunk must not be longer.
    """
    sizes: dict[str, Any] = {"head_dim": 64, "num_heads": 8, "original_length": 1024} | context
    for name in options or {}:
        if name in CONTEXT and name != "original_length":
            raise ValueError(
                f"{spec!r}: {name} follows from the model's sizes and is not an option"
            )
        if name in CONTEXT and not any(takes(part, name) for part in part_classes(spec).values()):
            raise ValueError(f"{spec!r} does not use {name}, so it would have no effect")
    layers = parse(spec)
    for index in (layers.index(layer) for layer in dict.fromkeys(layers)):
        encoding(spec, **(sizes | {"layer_index": index} | (options or {})))
        with placed(spec, layers[index]):
            _refuse_unfilled(layers[index], options or {}, context.get("original_length"))
    for other in (layer for layer in dict.fromkeys(layers) if layer != layers[0]):
        for name, part in layer_classes(other).items():
            if getattr(part, "embeds", False):
                raise ValueError(
                    f"{spec!r}: {name} acts on the token embeddings, once for all layers: name it "
                    "in the first layer only"
                )


def _refuse_unfilled(layer: LayerSpec, options: Mapping[str, Any], length: int | None) -> None:
    """Raise ValueError for a chunk longer than the training length, which would hide nothing."""
    if length is None:
        return
    for part in layer:
        chunk = part.argument or dict(part.options).get("chunk") or options.get("chunk")
        if part.name == "chunk" and chunk is not None and chunk > length:
            raise ValueError(
                f"chunk:{chunk}: a training length of {length} tokens does not fill one chunk, so "
                f"that nothing would be hidden in training; use chunk:{length} or less, or train "
                f"at {chunk} tokens or more"
            )
