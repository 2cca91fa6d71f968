"""Read a path or a live object as a transformers configuration. Nothing is executed or fetched.

A checkpoint's own code is never run, whatever its ``auto_map`` asks for: a model type that the
installed transformers does not have is refused.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pe._errors import nearest
from pe.pretrained.gguf_file import read_gguf
from pe.pretrained.rope import COUNTING, OLD_NAMES, TYPE_KEYS, check_block, kind_of
from pe.pretrained.show import ranges

ADAPTED = "pe-adapted"
"""The model type of what an adapted model saves (`pe.adapt`)."""
OWN = (
    "a model of this package, and `pe explain` is for models of transformers; "
    "the fields pe and pe_options of its config.json name its encoding"
)


class Source(NamedTuple):
    """A configuration, and where it came from."""

    name: str
    config: Any
    """The text decoder's configuration object."""
    raw: Mapping[str, Any] | None
    """The text decoder's part of the file as written; None for a live object, whose gaps
    transformers has filled."""
    inside: tuple[str, ...] = ()
    """Keys that lead from the whole configuration to the text decoder's."""
    remarks: tuple[str, ...] = ()
    """Remarks on the file for the reader."""


def read(source: Any) -> Source:
    """Return the text decoder's configuration, from a file, folder, dictionary, model or config.

    Raises:
        ValueError: there is no such file, transformers does not know the model type, the settings
            contradict each other, or the model is no decoder.
    """
    if isinstance(source, str | Path):
        return _from_path(Path(source))
    if isinstance(source, Mapping):
        return _from_raw("configuration", source)
    return _from_live(source)


def _from_path(path: Path) -> Source:
    if path.is_dir():
        file = path / "config.json"
        if not file.is_file():
            weights = sorted(path.glob("*.gguf"))
            if len(weights) != 1:
                raise ValueError(
                    f"{path}: expected a config.json or one gguf file in it, found "
                    f"{len(weights)} gguf files"
                )
            file = weights[0]
        path = file
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file or folder. Nothing is downloaded here: fetch a model's "
            "config.json or gguf file first (`make smollm2` fetches the model of the guide)"
        )
    if path.suffix == ".gguf":
        raw, remarks = read_gguf(path)
        return _from_raw(str(path), raw)._replace(remarks=remarks)
    try:
        raw = json.loads(path.read_text("utf-8-sig"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: expected a config.json or a .gguf file; {error}") from error
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: expected a dictionary, got {type(raw).__name__}")
    return _from_raw(str(path), raw)


def _from_raw(name: str, raw: Mapping[str, Any]) -> Source:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from pe.model.config import PEConfig

    kind = raw.get("model_type")
    if kind == ADAPTED:
        return _from_raw(name, saved_host(raw))._replace(remarks=_adapted(**raw["adaptation"]))
    if kind == PEConfig.model_type:
        raise ValueError(f"{name}: {OWN}")
    if kind is None:
        raise ValueError(f"{name}: no model_type in it, so it is no model's config.json")
    if kind not in CONFIG_MAPPING:
        from transformers import __version__

        raise ValueError(
            f"{name}: transformers {__version__} has no model type {kind!r}"
            f"{nearest(kind, CONFIG_MAPPING)}, and code from a checkpoint is never run; add "
            "model_type of the architecture that it follows to a copy of the file, or update "
            "transformers"
        )
    for each in _parts(raw):
        _check_raw(each)
    with quiet():
        try:
            whole = CONFIG_MAPPING[kind].from_dict(json.loads(json.dumps(raw)))
        except Exception as error:  # the classes raise errors of many types for a wrong field
            reason = " ".join(str(error.__cause__ or error).split())
            written = [block.get(key) for block in blocks(raw).values() for key in TYPE_KEYS]
            old = next((word for word in written if word in OLD_NAMES), None)
            hint = f"; write {OLD_NAMES[old]!r}, today's name, in place of {old!r}" if old else ""
            raise ValueError(
                f"{name}: transformers cannot read it as {kind!r}: {reason}{hint}"
            ) from error
    source = _decoder(name, whole)
    part: Any = raw
    for key in source.inside:  # older files have the decoder's fields outside
        part = part[key] if isinstance(part.get(key), Mapping) else part
    return source._replace(raw=part)


def saved_host(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the host's configuration in what an adapted model saved (`AdaptedConfig`)."""
    host: dict[str, Any] = dict(raw["host"])
    host.pop("attn_implementation", None)
    host.update(raw.get("taken_out", {}))  # before there was this field, the former had the mark
    return host


def _from_live(source: Any) -> Source:
    from transformers import PreTrainedConfig

    config = source if isinstance(source, PreTrainedConfig) else getattr(source, "config", None)
    if not isinstance(config, PreTrainedConfig):
        raise ValueError(
            f"expected a path, a dictionary, or a transformers model or configuration, got "
            f"{type(source).__name__}"
        )
    name = config.name_or_path or type(config).__name__
    if config.model_type == ADAPTED:
        return _from_raw(name, config.to_dict())
    read = _decoder(name, config)
    adaptation = getattr(source, "pe_adaptation", None)
    if adaptation is None:
        return read
    return read._replace(remarks=_adapted(adaptation.spec, adaptation.layers))


def _adapted(spec: str | None, layers: Sequence[int], **_: Any) -> tuple[str]:
    """Write the remark on a model that `pe.adapt` changed through hooks."""
    what = "its own settings through hooks" if spec is None else repr(spec)
    return (f"pe.adapt gave {what} to layers {ranges(layers)}; below is what it was before",)


def _decoder(name: str, whole: Any) -> Source:
    """Return the text decoder inside a configuration object, or ValueError where there is none."""
    from transformers.models.auto import modeling_auto as auto

    from pe.model.config import PEConfig

    config = whole.get_text_config(decoder=True)
    kind = config.model_type
    if kind == PEConfig.model_type:
        raise ValueError(f"{name}: {OWN}")
    if whole.is_encoder_decoder or config.is_encoder_decoder:
        raise ValueError(f"{name}: {whole.model_type!r} is an encoder-decoder; expected a decoder")
    decoders = {
        *auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        *auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    }
    stem = kind.removesuffix("_model").removesuffix("_text")
    part_of_one = type(config).base_config_key == "text_config" or stem in decoders
    reads_both_ways = kind in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES and not getattr(
        config, "is_decoder", False
    )
    if not (whole.model_type in decoders or part_of_one) or reads_both_ways:
        raise ValueError(
            f"{name}: {whole.model_type!r} is no decoder of text, which reads from left to right; "
            "an encoder, or a model of images or sound, is not explained"
        )
    if getattr(config, "num_hidden_layers", None) is None:
        raise ValueError(f"{name}: the layers of model type {kind!r} are not known to pe explain")
    return Source(name, config, None, tuple(_path(whole, config)))


def _path(whole: Any, part: Any) -> list[str]:
    """Return the attributes that lead from one configuration to another inside it."""
    if whole is part:
        return []
    for key in type(whole).sub_configs:
        inner = getattr(whole, key, None)
        if inner is part:
            return [key]
        if inner is not None and type(inner).sub_configs and (rest := _path(inner, part)):
            return [key, *rest]
    return []


def _parts(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Return the dictionary, and the configurations inside it."""
    yield raw
    for key, value in raw.items():
        if isinstance(value, Mapping) and key not in ("rope_parameters", "rope_scaling"):
            yield from _parts(value)


def blocks(raw: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the blocks of rotary settings as written in a file, by where they are in it."""
    written: dict[str, Mapping[str, Any]] = {}
    for name in ("rope_parameters", "rope_scaling"):
        block = raw.get(name)
        if not isinstance(block, Mapping):
            continue
        inner = {key: value for key, value in block.items() if isinstance(value, Mapping)}
        if inner:
            written |= {f"{name}.{key}": value for key, value in inner.items()}
        elif block:
            written[name] = block
    return written


def _check_raw(raw: Mapping[str, Any]) -> None:
    """Raise ValueError for settings that contradict each other or cannot be computed with."""
    written = blocks(raw)
    for place, block in written.items():
        if "vision" in str(raw.get("model_type", "")):
            continue
        try:
            check_block(block)
            _check_original(block, raw.get("original_max_position_embeddings"))
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from error
    one, other = (written.get(name, {}) for name in ("rope_parameters", "rope_scaling"))
    for key in sorted(one.keys() & other.keys()):
        if one[key] != other[key]:
            raise ValueError(
                f"rope_parameters and rope_scaling contradict each other: {key} is {one[key]!r} in "
                f"one and {other[key]!r} in the other; keep one block"
            )
    for place, block in written.items():
        base = block.get("rope_theta")
        root = raw.get("rope_theta")
        if "." not in place and base and root and float(base) != float(root):
            raise ValueError(
                f"rope_theta {root} and {place}.rope_theta {base} contradict each other; keep the "
                "one that the model was trained with"
            )
        first = block.get("original_max_position_embeddings")
        longest = raw.get("max_position_embeddings")
        if isinstance(first, int) and isinstance(longest, int) and first > longest:
            raise ValueError(
                f"{place}.original_max_position_embeddings {first} is more than "
                f"max_position_embeddings {longest}: the original length is the one before "
                "extension"
            )


def _check_original(block: Mapping[str, Any], outside: Any) -> None:
    """Raise ValueError for an original length that is null, or stated twice and not the same."""
    name = "original_max_position_embeddings"
    if kind_of(block) not in COUNTING or name not in block:
        return
    first = block[name]
    if outside is None and first is None:
        raise ValueError(f"{name} is null; state the length before extension")
    if None not in (outside, first) and outside != first:
        raise ValueError(
            f"{name} {first} and {outside} outside the block contradict each other; keep one"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings on configurations, which `pe.explain` has in other words."""
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        logger.setLevel(before)
