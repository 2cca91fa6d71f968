"""Options of an encoding: parameters of its class that the model does not determine."""

from __future__ import annotations

import functools
import inspect
import types
import typing
from typing import Any

from pe._errors import nearest
from pe.encodings.core.registry import Part, is_key_part
from pe.encodings.core.spec import PartSpec

CONTEXT = (
    "head_dim", "num_heads", "num_kv_heads", "hidden_size", "original_length", "layer_index",
    "visible",
)  # fmt: skip
"""Parameters that are filled in, see `pe.encodings.encoding`. ``visible`` is the number of the last
keys that a query sees, or None if it sees all or other ones too."""
ALIASES = {
    "original_max_position_embeddings": "original_length",
    "rope_theta": "theta",
    "partial_rotary_factor": "rotary_fraction",
}
"""Names of options in published configurations, and their names here."""
LARGEST = 2**62
"""The largest integer option, because torch's positions have 64 bits."""
_hints = functools.cache(typing.get_type_hints)


def parameters(part: Part) -> dict[str, inspect.Parameter]:
    """Return the parameters of the class by name, without ``*args`` and ``**kwargs``."""
    key: Any = part  # mypy does not know that classes can be hashed
    return _parameters(key)


@functools.cache
def _parameters(part: Part) -> dict[str, inspect.Parameter]:
    every = inspect.signature(part).parameters.values()
    return {p.name: p for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def takes(part: Part, name: str) -> bool:
    """Return whether the class has this parameter, which is an option or one of `CONTEXT`."""
    return name in parameters(part)


def options_of(part: Part) -> list[str]:
    """Return the names of the options that a user may give for the class."""
    return [n for n in parameters(part) if n not in CONTEXT and n != "transforms"]


def needed_option(part: Part) -> str:
    """Return the required option of a part such as ``window``, or "" if it has none."""
    names = options_of(part) if is_key_part(part.name) else []
    return next((n for n in names if parameters(part)[n].default is inspect.Parameter.empty), "")


def own_options(named: PartSpec, part: Part) -> dict[str, Any]:
    """Return the options that a spec gives to one part: its number and those in parentheses.

    Raises:
        ValueError: the part has no such option or number, or one is given twice.
    """
    known, own = options_of(part), dict(named.options)
    known += ["original_length"] if takes(part, "original_length") else []
    for name in own:
        if name not in known:
            raise ValueError(
                f"{named.name} has no option {name!r}{nearest(name, known)}; its options: "
                f"{', '.join(known) or 'none'}"
            )
    if named.argument is not None:
        if not (needed := needed_option(part)):
            raise ValueError(f"{named.name} takes no number; leave out :{named.argument}")
        if needed in own:
            raise ValueError(
                f"{named}: {needed} is given twice; leave out :{named.argument} or {needed}="
            )
        own[needed] = named.argument
    return own


def refuse_unknown_options(spec: str, parts: list[Part], options: dict[str, Any]) -> None:
    """Raise ValueError for an option that no part has. The message names the nearest."""
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


def construct(name: str, part: Part, arguments: dict[str, Any]) -> Any:
    """Build a part with the ``arguments`` that are parameters of its class.

    Raises:
        ValueError: a required argument is missing, or an option has the wrong type.
    """
    hints = _hints(part.__init__)
    taken = {key: p for key, p in parameters(part).items() if key in arguments}
    for key, parameter in taken.items():
        value = arguments[key]
        if key in CONTEXT and value is None:
            if parameter.default is parameter.empty:
                raise ValueError(f"{name!r} needs {key}")
        elif key != "transforms" and not fits(value, hints.get(key, Any)):
            raise ValueError(f"{name!r}: option {key}: expected {word(hints[key])}, got {value!r}")
        elif isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"{name!r}: option {key}: expected at most {LARGEST}, got {value}")
    missing = [
        key for key, p in parameters(part).items()
        if key not in arguments and p.default is p.empty
    ]  # fmt: skip
    if missing:
        raise ValueError(
            f"{name!r} needs a value for {', '.join(missing)}: give it as an option, or a default "
            f"in the class; filled in are only {', '.join(CONTEXT)}"
        )
    return part(**{key: arguments[key] for key in taken})


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has the type; a hint that is no type, as Literal, allows any value."""
    kinds = [typing.get_origin(kind) or kind for kind in _kinds(hint)]
    if any(kind in (Any, object) or not isinstance(kind, type) for kind in kinds):
        return True
    if isinstance(value, bool):
        return bool in kinds
    if isinstance(value, int) and float in kinds:
        return True
    if isinstance(value, tuple):
        value = list(value)  # the configuration of a built model has tuples
    return isinstance(value, tuple(kinds))


def _kinds(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if union else (hint,)


def word(hint: Any) -> str:
    """Return the name of a type in a message, such as ``int or str``."""
    return " or ".join(kind.__name__ for kind in _kinds(hint) if kind is not types.NoneType)
