"""`pe.explain`: what a configuration says about positions, and what to set for longer texts."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pe.pretrained import families
from pe.pretrained.advice import advise
from pe.pretrained.layers import Layer, nested_keys, read_layers
from pe.pretrained.length import TrainingLength, training_length
from pe.pretrained.methods import Method, list_methods
from pe.pretrained.mistakes import find_mistakes
from pe.pretrained.read import Source, read
from pe.pretrained.report import Explanation, Frequency, kinds_of
from pe.pretrained.rope import Rope, turns
from pe.pretrained.settings import Settings, settings_for


class Host(NamedTuple):
    """What a configuration says about positions."""

    source: Source
    layers: list[Layer]
    main: Layer
    """The rotating layer that sees furthest."""
    rope: Rope
    """How it rotates."""
    layer_type: str | None
    """The key of its settings, where each layer type has a block."""
    training: TrainingLength


def host_of(source: Source) -> Host:
    """Read a configuration. ValueError: no layer rotates, or it cannot be computed with."""
    layers = read_layers(source.config)
    main = _main_layer(source, layers)
    assert main.rope is not None
    training = training_length(source.config, source.raw, main.rope)
    return Host(source, layers, main, main.rope, _layer_type(source, main), training)


def explain(path_or_model: str | Path | Any, length: int | None = None) -> Explanation:
    """Explain what each layer of a model does about positions, and how to read longer texts.

    Args:
        path_or_model: a config.json, a folder with one, a gguf file (its metadata; needs the
            ``gguf`` package), a configuration as a dictionary, or a transformers model or
            configuration object. No weights are read and no code of a checkpoint is run.
        length: tokens to be read; default: four times the training length, as an example.

    Raises:
        ValueError: in one line, why it cannot be explained: no decoder, no rotation, a model type
            that transformers or gguf here does not know, settings that contradict each other, or
            a length within the training length.
    """
    source = read(path_or_model)
    try:
        host = host_of(source)
        host.rope.spectrum(host.training.tokens)  # refuses settings that cannot be computed with
    except ValueError as error:
        raise ValueError(f"{source.name}: {error}") from error
    layers, main, now, training = host.layers, host.main, host.rope, host.training
    if length is not None:
        length = longer(now, training, length)
    tokens = length or 4 * training.tokens
    methods = list_methods(now, training.tokens, tokens)
    if main.reach is not None and main.reach <= training.tokens:
        methods = [_as_it_is_in_a_window(methods[0])]
    settings: dict[str, Settings] = {}
    without: dict[str, str] = {}
    for method in methods:
        if method.name in ("as_it_is", "window"):
            continue
        result: Settings | str = method.remark
        if method.rope is not None:
            result = settings_for(source, method.rope, host.layer_type, tokens)
        if isinstance(result, Settings):
            settings[method.name] = result
        else:
            without[method.name] = result
    return Explanation(
        name=source.name, model_type=source.config.model_type, kinds=kinds_of(layers), main=now,
        layer_type=host.layer_type, reach=main.reach, training=training,
        frequencies=_frequencies(now, min(main.reach or training.tokens, training.tokens)),
        length=tokens, asked=length is not None,
        methods=tuple(methods),
        advice=advise(source.config, main, layers, training, tokens, methods, without),
        settings=settings, no_settings=without,
        warnings=tuple(find_mistakes(source, layers, now, training)),
        notes=(*_notes(source.config, now), *source.remarks),
    )  # fmt: skip


def longer(now: Rope, training: TrainingLength, length: Any) -> int:
    """Return ``length`` if it is longer than the training length.

    Raises:
        ValueError: it is no whole number, or it needs no change of the model.
    """
    try:
        tokens = operator.index(length)
    except TypeError:
        raise ValueError(f"length: expected a whole number of tokens, got {length!r}") from None
    if tokens > training.tokens:
        return tokens
    why = (
        f"length {tokens:,}: within the training length {training.tokens:,} ({training.how}), so "
        "nothing has to change"
    )
    if now.kind == "yarn" and training.original < tokens < training.tokens:
        raise ValueError(
            f"{why}; if YaRN was added after training, factor {tokens / training.original:g} "
            "covers it and costs short texts less"
        )
    raise ValueError(f"{why}; ask for more, or leave it out")


def _main_layer(source: Source, layers: Sequence[Layer]) -> Layer:
    """Return the rotating layer that sees furthest, the first of several."""
    rotating = [layer for layer in layers if layer.rope is not None]
    if not rotating:
        kind = source.config.model_type
        positions = {layer.position for layer in layers}
        if positions == {"recurrent"}:
            reason = "it has no attention"
        elif "alibi" in positions:
            reason = "it has ALiBi's bias (arXiv:2108.12409), which needs no settings"
        elif "content bias" in positions:
            reason = "it has a learned bias of the distance"
        elif kind in families.NEVER_ROTATE:
            reason = "its attention has no positions; order comes from recurrent layers"
        else:
            reason = "its configuration has no rotary settings"
        raise ValueError(f"no layer of {kind!r} rotates: {reason}")
    return max(rotating, key=lambda layer: math.inf if layer.reach is None else layer.reach)


def _layer_type(source: Source, main: Layer) -> str | None:
    """Return the key of the main layers' block where each layer type has its block."""
    keys = nested_keys(source.config)
    if not keys:
        return None
    assert main.rope is not None
    named = [key for key in keys if key.removesuffix("_attention") == main.attention]
    bases = {key: (source.config.rope_parameters[key] or {}).get("rope_theta") for key in keys}
    return next(key for key in named or keys if bases[key] == main.rope.base)


def _notes(config: Any, now: Rope) -> list[str]:
    notes = [families.NOTES[config.model_type]] if config.model_type in families.NOTES else []
    if getattr(config, "no_rope_layers", None):
        notes.append(
            "no_rope_layers has 1 where a layer does rotate and 0 where it does not, against its "
            "name"
        )
    if now.settings.get("mrope_section"):
        notes.append(
            "positions have three axes, time, height and width (M-RoPE), each with its share of "
            "the frequencies; for text all three are the token's number, as everything below has it"
        )
    return notes


def _frequencies(now: Rope, span: int) -> tuple[Frequency, ...]:
    inv_freq = now.spectrum(span).inv_freq
    return tuple(
        Frequency(
            index=index, radians=radians, turns=made,
            wavelength=2 * math.pi / radians if radians else math.inf,
        )
        for index, (radians, made) in enumerate(
            zip(inv_freq.tolist(), turns(inv_freq, span).tolist(), strict=True)
        )
    )  # fmt: skip


def _as_it_is_in_a_window(method: Method) -> Method:
    return method.model_copy(
        update={"unseen": 0, "first_unseen": None, "remark": "distances stay inside the window"}
    )
