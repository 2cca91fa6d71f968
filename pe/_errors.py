"""Error messages that help: the value, what was expected, the nearest valid choice."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

GUIDE = 'see "Data and recipes" in the guide (book/data.md)'
"""Where an error of a corpus or a recipe sends its reader."""


def nearest(value: object, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'rope'?)"`` for the closest choice, or ``""`` if none is close."""
    matches = difflib.get_close_matches(str(value).lower(), list(choices), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(kind: str, value: object, choices: Iterable[str]) -> ValueError:
    """A ValueError for a name that is not among the known ones."""
    names = list(choices)
    return ValueError(
        f"unknown {kind} {value!r}{nearest(value, names)}; choose from: {', '.join(names)}"
    )


def one_line(error: BaseException) -> str:
    """Type and message of an error, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def with_notes(error: BaseException) -> str:
    """The message of an error, and its notes in brackets."""
    return " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])


class Explained(Exception):
    """A failure whose message says all that its reader needs: shown without a traceback."""


_EXPECTED = {
    "int_type": "a whole number", "int_parsing": "a whole number",
    "int_from_float": "a whole number", "float_type": "a number", "float_parsing": "a number",
    "finite_number": "a number", "string_type": "text", "bool_type": "True or False",
    "bool_parsing": "True or False", "dict_type": "a dictionary", "tuple_type": "a list",
    "list_type": "a list", "model_type": "a dictionary",
    "greater_than": "more than {gt:g}", "greater_than_equal": "{ge:g} or more",
    "less_than": "less than {lt:g}", "less_than_equal": "at most {le:g}",
    "too_short": "at least {min_length}", "multiple_of": "a multiple of {multiple_of:g}",
}  # fmt: skip
"""pydantic's types of errors, in this project's words."""


def explain(error: ValidationError, kind: str = "field", names: Iterable[str] = ()) -> list[str]:
    """One line per mistake: where it is, what was expected and what is there.

    Args:
        kind: what an unknown name at the top is called. names: those that there are.
    """
    return [_line(one, kind, list(names)) for one in error.errors(include_url=False)]


def _line(one: Mapping[str, Any], kind: str, names: list[str]) -> str:
    first, *rest = one["loc"] or ("",)
    if isinstance(first, int) and first < len(names):  # an argument that was given by position
        first = names[first]
    places = (first, *rest)
    place = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in places).lstrip(".")
    value, context, at = one["input"], one.get("ctx", {}), f"{place}: " if place else ""
    if one["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        *inside, name = one["loc"]
        if inside or not names:
            return f"{at}unknown {kind}"
        return str(unknown(kind, name, names))
    if one["type"] in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{at}missing"
    if one["type"] == "literal_error":
        return str(unknown(place, value, re.findall(r"'([^']*)'", context["expected"])))
    if one["type"] == "value_error":
        return f"{at}{context['error']}"
    if one["type"] in _EXPECTED:
        hint = _as_number(value) if one["type"] == "float_type" else ""
        return f"{at}expected {_EXPECTED[one['type']].format(**context)}, got {value!r}{hint}"
    return f"{at}{one['msg']}, got {value!r}"


def _as_number(value: object) -> str:
    """What to write for a text such as ``1e-3``, which YAML takes for no number."""
    try:
        return f"; write {float(value)!r}" if isinstance(value, str) else ""
    except ValueError:
        return ""


class PositionError(ValueError):
    """A position at or beyond `max_positions`: the encoding has nothing for it.

    Evaluation records such a length as one without a value; every other ValueError is a mistake.
    """

    def __init__(self, position: int, max_positions: int, encoding: str = "") -> None:
        self.position, self.max_positions, self.encoding = position, max_positions, encoding
        who = f"{encoding!r} has" if encoding else "there is"
        super().__init__(f"{who} no position {position}: {self.reason}")

    @property
    def reason(self) -> str:
        """What a record says in place of a value."""
        return f"longest position {self.max_positions - 1}"

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return type(self), (self.position, self.max_positions, self.encoding)
