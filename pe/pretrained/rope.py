"""Rotary settings as transformers writes them, and the frequencies that they stand for.

    w_i = base^(-2i/d)      radians per token, d the rotated width      arXiv:2104.09864

transformers' names of scalings are in `SCALINGS`; the frequencies are those of this package's
encodings, and tests hold them equal to transformers' ``ROPE_INIT_FUNCTIONS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from pe._errors import unknown
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform, base_frequencies
from pe.encodings.dynamic_ntk import DynamicNTK
from pe.encodings.llama3 import Llama3
from pe.encodings.longrope import LongRoPE
from pe.encodings.ntk import NTK
from pe.encodings.pi import PI
from pe.encodings.yarn import YaRN, magnitude

Layout = Literal["half", "interleaved"]


class Frozen(BaseModel):
    """Base class of what is read from a configuration: immutable, and without other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Rope(Frozen):
    """How one kind of layer rotates queries and keys."""

    kind: str
    """transformers' ``rope_type``: ``default`` is plain RoPE; see `SCALINGS`."""
    base: float
    head_dim: int
    width: int
    """Channels of a head that rotate; as many as ``head_dim`` unless rotation is partial."""
    original_length: int | None
    """Tokens that the scaling counts from."""
    settings: dict[str, Any]
    """The block of the configuration, the base included."""
    layout: Layout = "half"
    latent: bool = False
    """Multi-head latent attention, whose logits ``mscale_all_dim`` scales as a whole."""

    @property
    def share(self) -> float:
        """The rotated share of a head, such that ``int(head_dim * share)`` is the width."""
        exact = self.width / self.head_dim
        return exact if int(self.head_dim * exact) == self.width else exact + 0.5 / self.head_dim

    @property
    def scaled(self) -> bool:
        return self.kind in SCALINGS

    @property
    def factor(self) -> float:
        """By how much the scaling extends (NTK's alpha for Hunyuan's); 1 where there is none."""
        value = self.settings.get(self.factor_name)
        return float(value) if self.scaled and value is not None else 1.0

    @property
    def factor_name(self) -> str:
        """The field of the settings that holds the factor."""
        return "alpha" if self.kind == "ntk_alpha" else "factor"

    @property
    def extended(self) -> bool:
        """Whether it is scaled in a way that weights are trained with: not as the text grows."""
        return self.scaled and self.kind != "dynamic" and self.factor > 1

    def with_factor(self, factor: float) -> Rope:
        """Return the same scaling with another factor."""
        settings = self.settings | {self.factor_name: factor}
        chosen = settings.get("attention_factor")
        own = magnitude(self.factor)
        if self.kind == "yarn" and chosen is not None and abs(chosen - own) < 1e-6:
            del settings["attention_factor"]  # it follows from the factor, so it must change too
        return self.model_copy(update={"settings": settings})

    def unit(self, trained: int) -> float:
        """Return the tokens that a factor of 1 stands for: ``factor * unit`` tokens are read.

        Args:
            trained: tokens that the model reads with the factor that it has.
        """
        if self.kind in ("yarn", "longrope"):
            return original(self)
        return trained / self.factor if self.extended else trained

    def transform(self) -> FrequencyTransform | None:
        """Return this package's transform of plain RoPE's frequencies; None for plain RoPE."""
        return SCALINGS[self.kind].encoding(**self.scaling_options()) if self.scaled else None

    def scaling_options(self) -> dict[str, Any]:
        """Return options of the encoding that the scaling is, {} for plain RoPE."""
        return SCALINGS[self.kind].options(self) if self.scaled else {}

    def spectrum(self, length: int | None = None) -> Frequencies:
        """Return frequencies and the factor on cos and sin for a text of ``length`` tokens.

        None: a text that fits into ``original_length``.
        """
        if self.kind == "proportional":
            return self._proportional()
        spectrum = base_frequencies(self.width, self.base)
        transform = self.transform()
        if transform is None:
            return spectrum
        transform.attach(spectrum)  # refuses what does not fit these frequencies
        tokens = None if length is None else torch.tensor(length)
        changed: Frequencies = transform(spectrum, tokens)
        return changed

    def logits(self, length: int | None = None) -> float:
        """Return by how much the scaling multiplies the logits of rotated channels at a length."""
        settings = self.settings
        growth = float(self.spectrum(length).magnitude) ** 2
        if self.latent and self.kind == "yarn" and settings.get("mscale_all_dim"):
            growth *= magnitude(self.factor, float(settings["mscale_all_dim"])) ** 2
        return growth

    def _proportional(self) -> Frequencies:
        """Return p-RoPE's frequencies (arXiv:2410.06205): RoPE's fastest, and 0 for others."""
        spectrum = base_frequencies(self.head_dim, self.base)
        index = torch.arange(self.head_dim // 2)
        slowed = spectrum.inv_freq / float(self.settings.get("factor") or 1.0)
        return spectrum._replace(inv_freq=torch.where(index < self.width // 2, slowed, 0.0))


class Scaling(NamedTuple):
    """A type of scaling of transformers, as an encoding of this package."""

    encoding: type[FrequencyTransform]
    options: Callable[[Rope], dict[str, Any]]


def _factor(rope: Rope) -> dict[str, Any]:
    return {"factor": rope.factor}


def _counted(rope: Rope) -> dict[str, Any]:
    return {"original_length": original(rope), "factor": rope.factor}


def _yarn(rope: Rope) -> dict[str, Any]:
    settings = rope.settings
    options = _counted(rope) | {
        "beta_fast": settings.get("beta_fast") or 32.0,
        "beta_slow": settings.get("beta_slow") or 1.0,
        "truncate": bool(settings.get("truncate", True)),
    }
    weights = {name: settings.get(name) for name in ("mscale", "mscale_all_dim")}
    if (chosen := settings.get("attention_factor")) is not None:
        options["attention_factor"] = chosen
    elif all(weights.values()):
        options |= weights
    return options


def _longrope(rope: Rope) -> dict[str, Any]:
    chosen = rope.settings.get("attention_factor")
    return _counted(rope) | {
        "factor": max(rope.factor, 1.0), "magnitude": "su" if chosen is None else chosen,
        "long_factor": rope.settings["long_factor"], "short_factor": rope.settings["short_factor"],
    }  # fmt: skip


def _llama3(rope: Rope) -> dict[str, Any]:
    return _counted(rope) | {
        name: rope.settings[name] for name in ("low_freq_factor", "high_freq_factor")
    }


SCALINGS: dict[str, Scaling] = {
    "linear": Scaling(PI, _factor),
    "dynamic": Scaling(DynamicNTK, _counted),
    "ntk_alpha": Scaling(NTK, _factor),
    "yarn": Scaling(YaRN, _yarn),
    "longrope": Scaling(LongRoPE, _longrope),
    "llama3": Scaling(Llama3, _llama3),
}
"""transformers' types of scaling, and Hunyuan's ``alpha``."""

PAPERS = {
    "default": "2104.09864", "linear": "2306.15595", "dynamic": "2309.00071",
    "ntk_alpha": "2309.00071", "yarn": "2309.00071", "longrope": "2402.13753",
    "llama3": "2407.21783", "proportional": "2410.06205",
}  # fmt: skip
"""arXiv numbers of the formulas behind transformers' ``rope_type``."""

TITLES = {
    "default": "RoPE", "linear": "PI", "dynamic": "Dynamic NTK", "ntk_alpha": "NTK",
    "yarn": "YaRN", "longrope": "LongRoPE", "llama3": "Llama 3",
    "proportional": "p-RoPE",
}  # fmt: skip

TYPE_KEYS = ("rope_type", "type")
"""Keys of the type of a block of rotary settings, today's and that of older files."""
OLD_NAMES = {"su": "longrope", "mrope": "default"}
"""Names of `rope_type` in older configurations."""

NEEDS = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": (),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "longrope": ("short_factor", "long_factor"),
}
"""Fields that a block of settings of each type must state."""

_ORIGINAL = "original_max_position_embeddings"
FIELDS = {
    "default": (), "linear": ("factor",), "dynamic": ("factor",), "proportional": ("factor",),
    "llama3": (*NEEDS["llama3"], _ORIGINAL),
    "longrope": (*NEEDS["longrope"], _ORIGINAL, "factor", "attention_factor"),
    "yarn": (
        "factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale",
        "mscale_all_dim", "truncate",
    ),
}  # fmt: skip
"""transformers' types of settings, and the fields that each reads beside the base and the
rotated share of a head."""

COUNTING = tuple(kind for kind, names in FIELDS.items() if _ORIGINAL in names)
"""Types that count from the length before extension."""


def original(rope: Rope) -> int:
    """Return the original length, or ValueError where a scaling that counts from it has none."""
    if rope.original_length is None:
        raise ValueError(
            f"{rope.kind}: original_max_position_embeddings is missing and there is no "
            "max_position_embeddings in its place; add the length before extension"
        )
    return rope.original_length


def kind_of(block: Mapping[str, Any]) -> str:
    """Return the type of a block of rotary settings, under today's name."""
    names = [str(block[key]) for key in TYPE_KEYS if block.get(key) is not None]
    current = {OLD_NAMES.get(name, name) for name in names} or {"default"}
    if len(current) > 1:
        raise ValueError(
            f"rope_type {block['rope_type']!r} and type {block['type']!r} contradict each other; "
            "keep rope_type"
        )
    kind = current.pop()
    if kind not in FIELDS and kind != "axial":
        raise unknown("rope_type", kind, [*FIELDS])
    return kind


_NUMBERS = (
    "factor", "attention_factor", "rope_theta", "beta_fast", "beta_slow", "partial_rotary_factor",
    "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "alpha",
)  # fmt: skip
_OR_ZERO = ("mscale", "mscale_all_dim")
"""Numbers that transformers ignores where they are 0."""


def check_block(block: Mapping[str, Any]) -> None:
    """Raise ValueError for a block of settings that cannot be computed with."""
    kind = kind_of(block)
    missing = [name for name in NEEDS.get(kind, ()) if block.get(name) is None]
    if kind == "dynamic" and block.get("alpha"):
        missing = []  # Hunyuan's
    if missing:
        raise ValueError(f"rope_type {kind!r} needs {', '.join(missing)}")
    for name in (*_NUMBERS, *_OR_ZERO):
        value = block.get(name)
        if value is None or (name in _OR_ZERO and value == 0):
            continue
        if not _is_number(value):
            raise ValueError(f"{name}: expected a number, got {value!r}")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name}: expected a finite number above 0, got {value!r}")
    for name in ("short_factor", "long_factor"):
        values = block.get(name)
        if values is None:
            continue
        if not isinstance(values, list | tuple) or not all(map(_is_number, values)):
            raise ValueError(f"{name}: expected a list of numbers, got {values!r}")
    first = block.get("original_max_position_embeddings")
    if first is not None and first != int(first):
        raise ValueError(f"original_max_position_embeddings {first}: expected a whole number")
    truncate = block.get("truncate")
    if truncate is not None and not isinstance(truncate, bool):
        raise ValueError(f"truncate: expected true or false, got {truncate!r}")
    base = block.get("rope_theta")
    if base is not None and base <= 1:
        raise ValueError(f"rope_theta {base}: expected more than 1, so that frequencies fall")
    share = block.get("partial_rotary_factor")
    if share is not None and not 0 < share <= 1:
        raise ValueError(f"partial_rotary_factor {share}: expected more than 0 and at most 1")
    if kind in NEEDS and (factor := block.get("factor")) is not None and factor < 1:
        raise ValueError(
            f"factor {factor}: expected 1 or more; factors lengthen the context, and "
            "1 / factor is never meant"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def turns(inv_freq: Tensor, length: int) -> Tensor:
    """Return the full rotations of each frequency within ``length`` tokens."""
    return inv_freq * length / (2 * math.pi)
