"""From a spec to an encoding: ``rope``, ``yarn+resonance``, ``my_module:MyEncoding``.

The language of specs is in `pe.encodings.core.spec`.

Every file of this package registers what it defines, so adding an encoding is adding a file.
A frequency transform acts on RoPE; named alone it brings RoPE with it. So does any encoding that
says what it goes with (`Encoding.alone_with`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pe._errors import nearest, unknown
from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import UNSET
from pe.encodings.core.composite import Composite
from pe.encodings.core.extension import Method, Variant
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.key_range import HasKeyRange, Narrowed
from pe.encodings.core.presets import PRESETS
from pe.encodings.core.spec import LayerSpec, PartSpec, is_sum, joined, layer_specs, parse

Part = type[Encoding] | type[FrequencyTransform]
P = TypeVar("P", bound=Part)

_REGISTRY: dict[str, Part] = {}
_KEYS: dict[str, type[Encoding]] = {}
CONTEXT = (
    "head_dim", "num_heads", "num_kv_heads", "hidden_size", "original_length", "layer_index",
)  # fmt: skip
ALIASES = {
    "original_max_position_embeddings": "original_length",
    "rope_theta": "theta",
    "partial_rotary_factor": "rotary_fraction",
}
"""What published configurations call some options."""


class About(NamedTuple):
    """How an encoding is shown: its title, the number of its paper on arXiv, what it acts on."""

    title: str
    paper: str | None
    family: str


_ABOUT: dict[str, About] = {}
_VARIANTS: dict[str, Method] = {}
_RATES: dict[str, float] = {}

FAMILIES = (
    "none", "embeddings", "rotary", "frequencies", "bias", "scale", "positions", "other",
)  # fmt: skip
"""What encodings act on, in the order in which tables and figures show them."""


ONE_ONLY = {
    "rotates": "rotate queries and keys",
    "embeds": "change the token embeddings",  # each would scale the tokens and what the other added
    "stretches": "stretch RoPE's frequencies",
}
"""Traits that only one part of a sum may have, and what two such parts would both do."""


def register(
    name: str,
    *,
    title: str | None = None,
    paper: str | None = None,
    family: str = "other",
    extends: Sequence[Variant] = (),
    encoding_rate: float | None = None,
) -> Callable[[P], P]:
    """Class decorator: make an `Encoding` or a `FrequencyTransform` known by ``name``.

    Args:
        title: how tables and figures write it; default: the class's name.
        paper: the number of its paper on arXiv, such as ``2104.09864``.
        family: one of `FAMILIES`.
        extends: ways to extend a trained model with it, beside that of a transform's name
            (`extension_methods`). One of the encoding's own name extends by the encoding itself.
        encoding_rate: the multiple of the learning rate that its own parameters need
            (`declared_rate`); None: nothing is known, or it has none.

    Raises:
        ValueError: the name belongs to another class, or there is no such family.
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
    """Class decorator: make a part that says which keys a layer sees known by ``name``.

    It is added to an encoding, as in ``rope+window:512``: the number after the colon is its first
    option. Alone it goes with no encoding at all.
    """

    def add(cls: type[Encoding]) -> type[Encoding]:
        _KEYS[name] = cls
        cls.name = name
        _ABOUT[name] = About(title, paper, "keys")
        return cls

    return add


def list_keys() -> list[str]:
    """Names of the parts that say which keys a layer sees, sorted."""
    _discover()
    return sorted(_KEYS)


@functools.cache
def _discover() -> None:
    """Import every encoding of the package, once."""
    for module in pkgutil.iter_modules([str(Path(__file__).parents[1])]):
        importlib.import_module(f"pe.encodings.{module.name}")
    importlib.import_module("pe.encodings.core.keys")


def list_encodings() -> list[str]:
    """Names of all encodings, sorted."""
    _discover()
    return sorted(_REGISTRY)


def about(spec: str) -> About:
    """How an encoding is shown; the titles and papers of several parts and layers are joined too.

    What is not registered, such as ``module:Class`` or an encoding that only another machine
    knows, is shown under its name: records name encodings that cannot be imported here.
    """
    _discover()
    runs: list[tuple[int, LayerSpec]] = []  # layers that follow each other and are the same
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
    """A part as it is shown, with its number and options."""
    return str(part._replace(name=_about(part).title)).replace(":", " ")


def in_order(specs: Iterable[str]) -> list[str]:
    """Encodings as tables and figures show them: by family, then by title; sums after single ones.

    >>> in_order(["yarn", "rope+alibi", "pope", "nope"])
    ['nope', 'pope', 'rope+alibi', 'yarn']
    """

    def place(spec: str) -> tuple[int, bool, str, str]:
        shown = about(spec)
        return FAMILIES.index(shown.family), is_sum(spec), shown.title.casefold(), spec

    return sorted(dict.fromkeys(specs), key=place)


def extension_methods() -> list[str]:
    """What extends a trained rotary model without training: transforms that learn nothing.

    A transform that does not stretch is there alone and put on the one that its class names.
    Variants that encodings declare, such as ``dynamic_yarn``, are among them.
    """
    _discover()
    methods = list(_VARIANTS)
    for name in list_encodings():
        part = lookup(name)
        if issubclass(part, FrequencyTransform) and not part.learns:
            methods += [name, *([f"{part.put_on}+{name}"] if part.put_on else [])]
    return in_order(methods)


def extension_method(name: str) -> Method:
    """How a model is extended by a method: one of `extension_methods`, or another spec.

    Raises:
        ValueError: ``name`` cannot be looked up.
    """
    _discover()
    if name in _VARIANTS:
        return _VARIANTS[name]
    scaled = takes_option(name, "factor")
    return Method(
        name, name, lambda rope, factor: {"factor": float(factor)} if scaled else {}, scaled
    )


def takes_option(spec: str, option: str) -> bool:
    """Whether any part of ``spec`` has this option."""
    return any(option in options_of(part) for part in part_classes(spec).values())


def declared_rate(spec: str) -> float:
    """The multiple of the learning rate at which the parameters of an encoding should learn.

    1 where its parts declare none.

    Raises:
        ValueError: parts declare different ones.
    """
    declared = {name: _RATES[name] for name in part_classes(spec) if name in _RATES}
    if len(set(declared.values())) > 1:
        listed = ", ".join(f"{name} {rate:g}" for name, rate in declared.items())
        raise ValueError(f"encoding_rate: the parts of {spec!r} declare {listed}; give a number")
    return next(iter(declared.values()), 1.0)


def lookup(name: str) -> Part:
    """The class for one name, or for ``module:Class``."""
    _discover()
    if ":" in name:
        module, _, attribute = name.partition(":")
        if module in _KEYS:
            raise ValueError(f"{name!r}: {attribute!r} is no whole number; write '{module}:512'")
        try:
            part = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            hint = f"; write '{module[:-3]}:{attribute}'" if module.endswith(".py") else ""
            raise ValueError(f"encoding {name!r} cannot be imported: {error}{hint}") from error
        if not (isinstance(part, type) and issubclass(part, (Encoding, FrequencyTransform))):
            raise ValueError(f"{name!r} is no subclass of pe.encodings.Encoding")
        return part
    if name in _KEYS:
        return _KEYS[name]
    if name in _VARIANTS and name not in _REGISTRY:
        raise ValueError(
            f"{name!r} is a way to extend a trained model with {_VARIANTS[name].spec!r} "
            "(pe.extend), and no encoding; give that name and its options"
        )
    if name not in _REGISTRY:
        own = "." in name or name[:1].isupper() or (name.isidentifier() and find_spec(name))
        hint = "; a class of your own is module:Class" if own else ""
        raise ValueError(
            f"{unknown('encoding', name, [*sorted(_REGISTRY), *sorted(_KEYS), *PRESETS])}{hint}"
        )
    return _REGISTRY[name]


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
        spec: a name, several joined by ``+``, or a schedule of layers
            (`pe.encodings.core.spec`), of which the encoding of ``layer_index`` is built.
        head_dim: width of one head. num_heads, num_kv_heads: query heads, key heads (default: as
            many). hidden_size: width of the embeddings (default: head_dim x num_heads).
        original_length: context length of training, which extension methods need.
        layer_index: the layer it is for, counted from 0; only schedules look at it.
        options: whatever the parts accept; an option that several accept goes to all of them.

    Raises:
        ValueError: unknown names, unknown options (the nearest is named), wrong values, or parts
            that cannot be combined.
    """
    arguments = {
        "head_dim": head_dim,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads or num_heads,
        "hidden_size": hidden_size or head_dim * num_heads,
        "original_length": original_length,
        "layer_index": layer_index,
    } | options
    _refuse_unknown_options(spec, list(part_classes(spec).values()), options)
    layers = parse(spec)
    layer = layers[layer_index % len(layers)]
    named = {part.name: part for part in layer}
    encodings, transforms = _split(_layer_classes(layer))

    def build(name: str, part: Part) -> Any:
        own = _own_options(named.get(name, PartSpec(name)), part)
        if (needed := _needed(part)) and needed not in own | options:
            raise ValueError(f"{name} needs a number, as in '{name}:512'")
        twice = own.keys() & options.keys()
        if twice:
            raise ValueError(
                f"{joined(layer)!r}: {min(twice)} is given in the spec and among the options; "
                "leave one out"
            )
        return _build(name, part, arguments | own)

    with _placed(spec, layer):
        changes = [build(name, c) for name, c in transforms.items()]
        if changes:
            arguments["transforms"] = changes
        parts = [build(name, c) for name, c in encodings.items()]
    return parts[0] if len(parts) == 1 else sum_class(encodings.values())(parts)


def sum_class(parts: Iterable[type]) -> type[Composite]:
    """The class of a sum of these encodings: where one hides keys and another scales logits, one
    that tells the second how many keys are shown."""
    encodings = [part for part in parts if issubclass(part, Encoding)]
    hides = any(part.hides and issubclass(part, HasKeyRange) for part in encodings)
    scales = any(part.logit_scale is not Encoding.logit_scale for part in encodings)
    return Narrowed if hides and scales else Composite


def layer_encodings(spec: str, num_layers: int, **arguments: Any) -> list[Encoding]:
    """The encoding of each layer of a model, or a single one that all layers share.

    ``arguments`` are those of `encoding`. Layers with the same spec share whatever is not per
    layer: it is built for the first of them and is in the list once more for each other.

    Raises:
        ValueError: as `encoding` does, or a schedule does not fit the layers.
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


def part_classes(spec: str) -> dict[str, Part]:
    """The class of each part of ``spec`` by name; RoPE among them where a transform brings it.

    Those of a schedule are the parts of all its layers.
    """
    classes: dict[str, Part] = {}
    for layer in dict.fromkeys(parse(spec)):
        with _placed(spec, layer):
            classes |= _layer_classes(layer)
    return classes


@contextlib.contextmanager
def _placed(spec: str, layer: LayerSpec) -> Iterator[None]:
    """Errors about one layer of a schedule say which."""
    try:
        yield
    except ValueError as error:
        layers = parse(spec)
        if len(layers) == 1:
            raise
        number = layers.index(layer) + 1
        raise ValueError(f"{spec!r}, layer {number} of {len(layers)}: {error}") from error


def _layer_classes(layer: LayerSpec) -> dict[str, Part]:
    spec, names = joined(layer), [part.name for part in layer]
    if len(set(names)) < len(names):
        raise ValueError(f"{spec!r} names a part twice")
    classes = {name: lookup(name) for name in names}
    _refuse_impossible(spec, classes)
    encodings, transforms = _split(classes)
    if transforms and not any(takes(c, "transforms") for c in encodings.values()):
        classes = {"rope": _REGISTRY["rope"], **classes}
    others = [c for n, c in encodings.items() if n not in _KEYS]
    if others and all(c.alone_with for c in others):
        brought = {str(c.alone_with) for c in others}
        classes = {n: _REGISTRY[n] for n in sorted(brought)} | classes
    return classes


def _needed(part: Part) -> str:
    """The option that a part which says what a layer sees cannot do without; "" if none."""
    names = options_of(part) if part.name in _KEYS else []
    return next((n for n in names if _parameters(part)[n].default is inspect.Parameter.empty), "")


def stated_options(spec: str) -> dict[str, list[Any]]:
    """By option, the values that the parts of ``spec`` give it, without repetition.

    `UNSET` is among them where one part has a value and another that takes the option has none.
    """
    stated: dict[str, list[Any]] = {}
    for layer in parse(spec):
        named = {part.name: part for part in layer}
        for name, part in _layer_classes(layer).items():
            own = _own_options(named.get(name, PartSpec(name)), part)
            for option in {*options_of(part), *own}:
                values = stated.setdefault(option, [])
                value = own.get(option, UNSET)
                values += [] if value in values else [value]
    return {option: values for option, values in stated.items() if values != [UNSET]}


def _own_options(named: PartSpec, part: Part) -> dict[str, Any]:
    """The options that a spec gives to one part: its number and those in parentheses."""
    known, own = options_of(part), dict(named.options)
    known += ["original_length"] if takes(part, "original_length") else []
    for name in own:
        if name not in known:
            raise ValueError(
                f"{named.name} has no option {name!r}{nearest(name, known)}; its options: "
                f"{', '.join(known) or 'none'}"
            )
    if named.argument is not None:
        if not (needed := _needed(part)):
            raise ValueError(f"{named.name} takes no number; leave out :{named.argument}")
        own[needed] = named.argument
    return own


def _split(
    classes: dict[str, Part],
) -> tuple[dict[str, type[Encoding]], dict[str, type[FrequencyTransform]]]:
    encodings = {n: c for n, c in classes.items() if issubclass(c, Encoding)}
    return encodings, {n: c for n, c in classes.items() if issubclass(c, FrequencyTransform)}


def check(spec: str, options: dict[str, Any] | None = None, **context: int) -> None:
    """Raise ValueError if ``encoding(spec, ...)`` would; ``context`` defaults to common sizes.

    ``options`` may hold ``original_length``, for models that are trained at another length than
    they extend from. The other sizes belong to the model, and are refused as options. Where
    ``context`` has ``original_length``, it is the length of training, which fills a chunk.
    """
    sizes: dict[str, Any] = {"head_dim": 64, "num_heads": 8, "original_length": 1024} | context
    for name in options or {}:
        if name in CONTEXT and name != "original_length":
            raise ValueError(f"{spec!r}: {name} follows from the model's sizes, it is no option")
        if name in CONTEXT and not any(takes(part, name) for part in part_classes(spec).values()):
            raise ValueError(f"{spec!r} does not look at {name}: it would have no effect")
    layers = parse(spec)
    for index in (layers.index(layer) for layer in dict.fromkeys(layers)):
        encoding(spec, **(sizes | {"layer_index": index} | (options or {})))
        with _placed(spec, layers[index]):
            _refuse_unfilled(layers[index], options or {}, context.get("original_length"))
    for other in (layer for layer in dict.fromkeys(layers) if layer != layers[0]):
        for name, part in _layer_classes(other).items():
            if getattr(part, "embeds", False):
                raise ValueError(
                    f"{spec!r}: {name} acts on the token embeddings, once for all layers: name it "
                    "in the first layer only"
                )


def _refuse_unfilled(layer: LayerSpec, options: Mapping[str, Any], length: int | None) -> None:
    """Raise ValueError for a chunk longer than the training length: it would hide nothing there."""
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


@functools.cache
def _parameters(part: Part) -> dict[str, inspect.Parameter]:
    parameters = inspect.signature(part).parameters.values()
    return {p.name: p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


@functools.cache
def _hints(part: Part) -> dict[str, Any]:
    return typing.get_type_hints(part.__init__)


def takes(part: Part, name: str) -> bool:
    """Whether the class has this parameter, an option or one of `CONTEXT`."""
    return name in _parameters(part)


def options_of(part: Part) -> list[str]:
    """Names of the options that a user may give for the class."""
    return [n for n in _parameters(part) if n not in CONTEXT and n != "transforms"]


def _refuse_impossible(spec: str, classes: dict[str, Part]) -> None:
    if "nope" in classes and any(n not in _KEYS for n in classes if n != "nope"):
        raise ValueError(f"{spec!r}: nope means no encoding, so nothing can be added to it")
    for name in (n for n, c in classes.items() if getattr(c, "exclusive", False)):
        for other, part in classes.items():
            if other != name and not (
                getattr(part, "hides", False) or getattr(part, "keeps", False)
            ):
                raise ValueError(
                    f"{spec!r}: {name} takes its weights from the logits of queries and keys "
                    f"alone, so {other} cannot be added to it; what it sees may be limited, as in "
                    f"'{name}+window:512'"
                )
    for name in (n for n, c in classes.items() if getattr(c, "corrects_logits", False)):
        for other, part in classes.items():
            if getattr(part, "logit_scale", Encoding.logit_scale) is not Encoding.logit_scale:
                raise ValueError(
                    f"{spec!r}: {name} adds the difference to other logits, so {other} cannot "
                    f"scale them; leave out {other}"
                )
    for trait, what in ONE_ONLY.items():
        first, *others = [n for n, c in classes.items() if getattr(c, trait, False)] or [""]
        if others:
            raise ValueError(f"{spec!r}: {first} and {others[0]} both {what}")
    encodings, transforms = _split(classes)
    hiding = any(c.hides for c in encodings.values())
    keeping = [n for n, c in encodings.items() if c.keeps]
    if keeping and not hiding:
        raise ValueError(
            f"{spec!r}: {keeping[0]} keeps keys visible that a window or a chunk hides, and here "
            f"nothing hides any; add one, as in {'rope+window:512+sinks:4'!r}"
        )
    for moving in (n for n, c in encodings.items() if c.random):
        for narrowing in (n for n, c in encodings.items() if c.hides or c.keeps):
            raise ValueError(
                f"{spec!r}: {moving} moves tokens to random positions, so {narrowing} would show "
                f"distances of up to all positions; leave out {moving} or {narrowing}"
            )
    learning = [name for name, part in transforms.items() if part.learns]
    rounding = [name for name, part in transforms.items() if not part.stretches]
    if learning and rounding:
        raise ValueError(
            f"{spec!r}: {rounding[0]} rounds the wavelengths that {learning[0]} learns, and no "
            "gradient passes a rounding"
        )
    for other, part in encodings.items() if transforms else ():
        if part.rotates and not takes(part, "transforms"):
            name = next(iter(transforms))
            raise ValueError(
                f"{spec!r}: {name} changes RoPE's frequencies, and {other} has its own"
            )


def _refuse_unknown_options(spec: str, parts: list[Part], options: dict[str, Any]) -> None:
    known = sorted({name for part in parts for name in options_of(part)})
    if any(takes(part, "original_length") for part in parts):
        known.append("original_length")
    for name in options:
        if name not in known:
            alias = ALIASES.get(name)
            hint = f" (it is called {alias!r} here)" if alias in known else nearest(name, known)
            raise ValueError(
                f"{spec!r} has no option {name!r}{hint}; its options: {', '.join(known) or 'none'}"
            )


def _build(name: str, part: Part, arguments: dict[str, Any]) -> Any:
    hints = _hints(part)
    parameters = {key: p for key, p in _parameters(part).items() if key in arguments}
    for key, parameter in parameters.items():
        value = arguments[key]
        if key in CONTEXT and value is None:
            if parameter.default is parameter.empty:
                raise ValueError(f"{name!r} needs {key}")
        elif key != "transforms" and not _fits(value, hints.get(key)):
            raise ValueError(f"{name!r}: option {key}: expected {_word(hints[key])}, got {value!r}")
    return part(**{key: arguments[key] for key in parameters})


def _fits(value: Any, hint: Any) -> bool:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int) and float in kinds:
        return True
    if isinstance(value, tuple):
        value = list(value)  # as a built model's configuration has it
    return isinstance(value, tuple(typing.get_origin(k) or k for k in kinds if k is not None))


def _word(hint: Any) -> str:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return " or ".join(kind.__name__ for kind in kinds if kind is not types.NoneType)
