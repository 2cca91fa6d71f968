"""The mistakes that people make in rotary settings, found in a configuration and named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pe._errors import nearest
from pe.encodings.yarn import magnitude
from pe.pretrained import families
from pe.pretrained.layers import Layer, default_of, nested_keys
from pe.pretrained.length import TrainingLength
from pe.pretrained.read import Source, blocks
from pe.pretrained.rope import COUNTING, FIELDS, SCALINGS, TITLES, Frozen, Rope, kind_of
from pe.pretrained.show import number


class Mistake(Frozen):
    """A setting that is wrong, or that is easily misunderstood."""

    name: str
    """A short name, such as ``original length missing`` or ``base lost``."""
    text: str


def find_mistakes(
    source: Source, layers: Sequence[Layer], rope: Rope, trained: TrainingLength
) -> list[Mistake]:
    """Return all warnings about a configuration, those about the file itself first."""
    config, raw = source.config, source.raw or {}
    if not hasattr(config, "rope_parameters"):  # GPT-J and CodeGen
        text = f"is not read by transformers' {config.model_type!r}, whose base is in its code"
        return [Mistake(name="field not read", text=f"{place} {text}") for place in blocks(raw)]
    of_the_file: list[Mistake] = []
    if source.raw is not None:
        of_the_file += [
            *_original_missing(raw, trained), *_base_lost(raw, rope), *_not_read(raw, config),
        ]  # fmt: skip
    return [
        *of_the_file, *_undone(config, rope), *_mismatch(raw, rope), *_temperature_twice(rope),
        *_dynamic(raw, rope), *_truncate(config, rope), *_windowed(config, layers),
    ]  # fmt: skip


def _original_missing(raw: Mapping[str, Any], trained: TrainingLength) -> Iterator[Mistake]:
    if "original_max_position_embeddings" in raw:
        return
    for place, block in blocks(raw).items():
        if kind_of(block) in COUNTING and "original_max_position_embeddings" not in block:
            yield Mistake(
                name="original length missing",
                text=f"{place} has type {kind_of(block)!r} without "
                "original_max_position_embeddings, so transformers counts from "
                f"max_position_embeddings {trained.original:,}; if that is the extended length, "
                "every frequency comes out wrong. Add the length before extension",
            )


def _not_read(raw: Mapping[str, Any], config: Any) -> Iterator[Mistake]:
    """Find fields that are misspelt, or that belong to another type of scaling."""
    for place, block in blocks(raw).items():
        kind = kind_of(block)
        fields = FIELDS.get(kind, ())
        read = {"rope_type", "type", "rope_theta", "finetuned", *fields}
        read |= set(config.ignore_keys_at_rope_validation)  # what this model type has besides
        if kind != "default" or config.model_type in families.PARTIAL:
            read.add("partial_rotary_factor")
        if config.model_type in families.FIXED_ALPHA:
            read.add("alpha")
        if config.model_type in families.OWN_MAGNITUDE:
            read |= {"short_mscale", "long_mscale"}
        if kind == "dynamic" or "llama_4_scaling_beta" in block:  # `_dynamic` explains the first
            read.add("original_max_position_embeddings")
        names = [
            name + nearest(name, fields)
            for name, value in block.items()
            if value is not None and name not in read
        ]
        if names:
            yield Mistake(
                name="field not read",
                text=f"transformers' {config.model_type!r} does not read these fields of {place} "
                f"with the type {kind!r}: {', '.join(names)}",
            )


def _base_lost(raw: Mapping[str, Any], rope: Rope) -> Iterator[Mistake]:
    names = ("rope_theta", "rotary_emb_base", "rope_local_base_freq", "layer_rope_theta")
    written = blocks(raw)
    if any(raw.get(name) for name in names) or any("rope_theta" in b for b in written.values()):
        return
    default = f"the base is transformers' default, {number(rope.base)}"
    if written and rope.base == 10000:  # another default is that of the type's first release
        yield Mistake(
            name="base lost",
            text=f"the file has a block of rotary settings and no rope_theta, so {default}. "
            "Replacing rope_parameters drops the base that was in it, and a model trained with "
            "another base reads almost nothing right; take it from the original config.json",
        )
    else:
        yield Mistake(
            name="base not stated",
            text=f"the file has no rope_theta, so {default}; check that it is meant",
        )


class Scaled(NamedTuple):
    """A scaling that weights were trained with, or are taken to be trained with."""

    kind: str
    """transformers' ``rope_type``."""
    factor: float
    whose: str
    """A clause that ends a sentence about it, such as "'gpt_oss' was trained with"."""

    @property
    def title(self) -> str:
        return f"{TITLES[self.kind]} ×{self.factor:g}"


def trained_scaling(config: Any) -> Scaled | None:
    """Return the scaling that the released models of this type were trained with, if any."""
    block = getattr(default_of(config.__class__), "rope_parameters", None) or {}
    block = next((v for v in block.values() if isinstance(v, Mapping)), block)
    kind, factor = kind_of(block), block.get("factor")
    if factor is None or kind not in SCALINGS:
        return None
    return Scaled(kind, float(factor), f"{config.model_type!r} was trained with")


def trained_so(config: Any, rope: Rope) -> bool:
    """Return whether the released models of this type were trained with this type of scaling."""
    trained = trained_scaling(config)
    return trained is not None and trained.kind == rope.kind


def undoing(trained: Scaled, factor: float | None) -> Mistake | None:
    """Return what is wrong with ``factor`` in a model trained with a scaling, if anything is.

    Args:
        factor: that of the same type of scaling; None: there is no such scaling.
    """
    why = f"{trained.whose}; weights trained with a scaling keep it, also for short texts"
    if factor is None:
        text = f"it has no {trained.title}, which {why}"
        return Mistake(name="scaling trained in is lost", text=text)
    if factor < trained.factor:
        text = f"factor {factor:g} is less than {trained.factor:g}, which {why}"
        return Mistake(name="factor below the one trained in", text=text)
    return None


def _undone(config: Any, rope: Rope) -> Iterator[Mistake]:
    trained = trained_scaling(config)
    if trained is not None:
        mistake = undoing(trained, rope.factor if rope.kind == trained.kind else None)
        if mistake is not None:
            yield mistake


def _mismatch(raw: Mapping[str, Any], rope: Rope) -> Iterator[Mistake]:
    longest, original = raw.get("max_position_embeddings"), rope.original_length
    if rope.kind != "yarn" or not isinstance(longest, int) or not original:
        return
    covered = rope.factor * original
    if longest != original and abs(covered / longest - 1) >= 1e-3:
        yield Mistake(
            name="factor and lengths disagree",
            text=f"factor {rope.factor:g} × original length {original:,} is {covered:,.0f} tokens, "
            f"{'less' if covered < longest else 'more'} than max_position_embeddings {longest:,}",
        )


def _temperature_twice(rope: Rope) -> Iterator[Mistake]:
    chosen = rope.settings.get("attention_factor")
    all_dim = rope.settings.get("mscale_all_dim")
    if rope.kind != "yarn" or chosen is None:
        return
    if rope.settings.get("mscale"):
        yield Mistake(
            name="attention_factor twice",
            text=f"attention_factor {chosen:g} and mscale are both set; transformers takes "
            "attention_factor and ignores mscale, other programs multiply the two",
        )
    if rope.latent and all_dim and chosen != 1:
        yield Mistake(
            name="attention_factor twice",
            text=f"attention_factor {chosen:g} is on cos and sin, and mscale_all_dim {all_dim:g} "
            f"multiplies logits by {magnitude(rope.factor, all_dim) ** 2:.3f} once more",
        )


def _dynamic(raw: Mapping[str, Any], rope: Rope) -> Iterator[Mistake]:
    first = raw.get("original_max_position_embeddings") or next(
        (block.get("original_max_position_embeddings") for block in blocks(raw).values()), None
    )
    longest = raw.get("max_position_embeddings")
    if rope.kind == "dynamic" and first and longest and first < longest:
        yield Mistake(
            name="dynamic counts from the longest length",
            text="transformers' dynamic scaling starts at max_position_embeddings "
            f"{longest:,} and does not read original_max_position_embeddings {first:,}; between "
            f"the two nothing is scaled. Leave max_position_embeddings at {first:,}",
        )


def _truncate(config: Any, rope: Rope) -> Iterator[Mistake]:
    inside = [config.rope_parameters[key] or {} for key in nested_keys(config)]
    if rope.kind == "yarn" and any(block.get("truncate") is False for block in inside):
        yield Mistake(
            name="truncate is not read",
            text="transformers reads truncate beside the layer types, not inside their blocks, so "
            "the ends of YaRN's ramp are rounded all the same",
        )


def _windowed(config: Any, layers: Sequence[Layer]) -> Iterator[Mistake]:
    """Find a scaling in layers whose windows are shorter than the original length."""
    scaled = [
        (layer.rope, layer.reach) for layer in layers
        if layer.rope is not None and layer.rope.scaled and layer.reach is not None
        and layer.reach <= (layer.rope.original_length or layer.reach)
    ]  # fmt: skip
    if not scaled:
        return
    rope, reach = scaled[0]
    if rope.kind != "llama3" and not trained_so(config, rope):
        how = (
            "leave the block of these layers as it was"
            if nested_keys(config)
            else "transformers has one block for all layers of this type, so it cannot be avoided "
            "there"
        )
        yield Mistake(
            name=f"{rope.kind} over windowed layers",
            text=f"{len(scaled)} layers see {reach:,} tokens and never meet a new angle, and "
            f"{rope.kind} slows their frequencies too; {how}",
        )
