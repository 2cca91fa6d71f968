"""Finds encodings by name, such as ``rope`` or ``my_module:MyEncoding``, with titles and papers.

Every file of the package registers what it defines, so a new encoding needs one new file only.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pe._errors import unknown
from pe._imported import imported
from pe.encodings.core.base import Encoding
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.presets import PRESETS
from pe.encodings.core.spec import LayerSpec, PartSpec, is_sum, parse

Part = type[Encoding] | type[FrequencyTransform]
P = TypeVar("P", bound=Part)
_REGISTRY: dict[str, Part] = {}
_KEYS: dict[str, type[Encoding]] = {}


class About(NamedTuple):
    """Title of an encoding, number of its paper on arXiv, and family (what it acts on)."""

    title: str
    paper: str | None
    family: str


Options = Callable[[Any, float], dict[str, Any]]
"""Computes the options of an encoding that extends a trained model, from the model's RoPE
(`pe.encodings.core.extension.Rotary`) and the factor."""


class Method(NamedTuple):
    """A method that extends a trained rotary model without training."""

    name: str
    spec: str
    """The encoding that the model is converted to."""
    options: Options
    scaled: bool
    """Whether it has a factor. Otherwise the text's length decides, or nothing is stretched."""


class Variant(NamedTuple):
    """A method that an encoding declares in `register`, besides the one of its name."""

    name: str
    title: str
    paper: str
    options: Options
    scaled: bool = True


_ABOUT: dict[str, About] = {}
_VARIANTS: dict[str, Method] = {}
_RATES: dict[str, float] = {}
FAMILIES = (
    "none", "embeddings", "rotary", "frequencies", "bias", "scale", "positions", "other",
)  # fmt: skip
"""What encodings act on, in the order of tables and figures."""


def register(
    name: str,
    *,
    title: str | None = None,
    paper: str | None = None,
    family: str = "other",
    extends: Sequence[Variant] = (),
    encoding_rate: float | None = None,
) -> Callable[[P], P]:
    """Decorate an `Encoding` or `FrequencyTransform` to register it under ``name``.

    Args:
        title: name in tables and figures; default: the name of the class.
        paper: number of the paper on arXiv, such as ``2104.09864``.
        family: one of `FAMILIES`.
        extends: methods that extend a trained model with it, besides a transform's own name
            (`extension_methods`). One with the encoding's name extends by the encoding itself.
        encoding_rate: multiple of the learning rate for its parameters (`declared_rate`). None if
            it has no parameters or no multiple is known.

    Raises:
        ValueError: the name belongs to another class, or the family is unknown.
    """
    if family not in FAMILIES:
        raise unknown("family", family, FAMILIES)

    def add(cls: P) -> P:
        if name in _REGISTRY and _REGISTRY[name] is not cls:
            raise ValueError(f"two encodings are called {name!r}: {_REGISTRY[name]} and {cls}")
        _REGISTRY[name] = cls
        cls.name = name
        _ABOUT[name] = About(title or cls.__name__, paper, family)
        if encoding_rate is not None:
            _RATES[name] = float(encoding_rate)
        for way in extends:
            _VARIANTS[way.name] = Method(way.name, name, way.options, way.scaled)
            if way.name != name:
                _ABOUT[way.name] = About(way.title, way.paper, "frequencies")
        return cls

    return add


def register_keys(
    name: str, *, title: str, paper: str | None = None
) -> Callable[[type[Encoding]], type[Encoding]]:
    """Decorate a class of `pe.encodings.core.keys` to register it under ``name``.

    It is added to an encoding, as in ``rope+window:512``, where the number after the colon is its
    first option. Alone it is used without any encoding.
    """

    def add(cls: type[Encoding]) -> type[Encoding]:
        _KEYS[name] = cls
        cls.name = name
        _ABOUT[name] = About(title, paper, "keys")
        return cls

    return add


def list_keys() -> list[str]:
    """Return the names of the parts of `pe.encodings.core.keys`, sorted."""
    _discover()
    return sorted(_KEYS)


def is_key_part(name: str) -> bool:
    """Return whether a part is one of `list_keys` and not an encoding."""
    _discover()
    return name in _KEYS


def rate_of(name: str) -> float | None:
    """Return the ``encoding_rate`` in the registration of an encoding."""
    _discover()
    return _RATES.get(name)


def variants() -> dict[str, Method]:
    """Return the methods in the registrations that extend a trained model, by name."""
    _discover()
    return dict(_VARIANTS)


@functools.cache
def _discover() -> None:
    """Import all encodings of the package, once."""
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        importlib.import_module(f"pe.encodings.{module.name}")
    importlib.import_module("pe.encodings.core.keys")


def list_encodings() -> list[str]:
    """Return the names of all encodings, sorted."""
    _discover()
    return sorted(_REGISTRY)


def lookup(name: str) -> Part:
    """Return the class of a name or of ``module:Class``.

    Raises:
        ValueError: the name is unknown, or the class cannot be imported.
    """
    _discover()
    if ":" in name:
        module, _, attribute = name.partition(":")
        if module in _KEYS:
            raise ValueError(f"{name!r}: {attribute!r} is not a whole number; write '{module}:512'")
        part = imported("encoding", name)
        if not (isinstance(part, type) and issubclass(part, (Encoding, FrequencyTransform))):
            raise ValueError(f"{name!r} is not a subclass of pe.encodings.Encoding")
        return part
    if name in _KEYS:
        return _KEYS[name]
    if name in _VARIANTS and name not in _REGISTRY:
        raise ValueError(
            f"{name!r} is a way to extend a trained model with {_VARIANTS[name].spec!r} "
            "(pe.extend), not an encoding; give that encoding and its options"
        )
    if name not in _REGISTRY:
        own = "." in name or name[:1].isupper() or (name.isidentifier() and find_spec(name))
        hint = "; a class of your own is module:Class" if own else ""
        raise ValueError(
            f"{unknown('encoding', name, [*sorted(_REGISTRY), *sorted(_KEYS), *PRESETS])}{hint}"
        )
    return _REGISTRY[name]


def about(spec: str) -> About:
    """Return title, paper and family of a spec, with the titles and papers of its parts joined.

    A part that is not registered, such as ``module:Class``, keeps its name as title, because
    records may name encodings that cannot be imported here.
    """
    _discover()
    runs: list[tuple[int, LayerSpec]] = []  # runs of equal layers
    for layer in parse(spec):
        again = bool(runs) and runs[-1][1] == layer
        runs[-1:] = [(runs[-1][0] + 1, layer)] if again else [*runs[-1:], (1, layer)]
    titles = []
    for count, layer in runs:
        title = " + ".join(map(_title, layer))
        inner = f"({title})" if len(layer) > 1 else title
        titles.append(f"{count} × {inner}" if count > 1 else title)
    parts = [_about(part) for _, layer in runs for part in layer]
    papers = ", ".join(dict.fromkeys(part.paper for part in parts if part.paper))
    family = parts[0].family if parts[0].family in FAMILIES else "none"
    return About(", ".join(titles), papers or None, family)


def _about(part: PartSpec) -> About:
    return _ABOUT.get(part.name) or About(part.name.rpartition(":")[2], None, "other")


def _title(part: PartSpec) -> str:
    """Return the title of a part with its number and options."""
    return str(part._replace(name=_about(part).title)).replace(":", " ")


def in_order(specs: Iterable[str]) -> list[str]:
    """Return encodings in the order of tables: by family, single ones first, then by title.

    >>> in_order(["yarn", "rope+alibi", "pope", "nope"])
    ['nope', 'pope', 'rope+alibi', 'yarn']
    """

    def place(spec: str) -> tuple[int, bool, str, str]:
        shown = about(spec)
        return FAMILIES.index(shown.family), is_sum(spec), shown.title.casefold(), spec

    return sorted(dict.fromkeys(specs), key=place)
