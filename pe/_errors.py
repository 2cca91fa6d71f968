"""Error messages that help: each names the value, what was expected and the nearest valid choice.

The exception classes that are shared by several parts of the package are here too.
"""

from __future__ import annotations

import difflib
import math
import numbers
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

GUIDE = 'see "Data and recipes" in the guide (book/data.md)'
"""The page of the guide to which errors about a corpus or a recipe refer."""
LAST_SEED = 2**63 - 1
"""The largest seed, as torch's have 64 bits and a sign."""


def nearest(value: object, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'rope'?)"`` for the closest choice, or ``""`` if none is close."""
    matches = difflib.get_close_matches(str(value).lower(), list(choices), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def unknown(kind: str, value: object, choices: Iterable[str]) -> ValueError:
    """Return a ValueError for a name that is not among ``choices``; it lists them all."""
    names = list(choices)
    listed = ", ".join(name or "''" for name in names)
    return ValueError(f"unknown {kind} {value!r}{nearest(value, names)}; choose from: {listed}")


def whole(name: str, value: object, least: int = 0, most: int | None = None) -> int:
    """Return ``value`` if it is a whole number of at least ``least`` and at most ``most``.

    Numbers of numpy are allowed; True, False and 2.0 are not.

    Raises:
        ValueError: it is something else.
    """
    known = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    number = int(value) if known else least - 1  # type: ignore[call-overload]
    if number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}: expected a whole number {limits}, got {value!r}")
    return number


def one_line(error: BaseException) -> str:
    """Return the type and the message of an error, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def with_notes(error: BaseException) -> str:
    """Return the message of an error, followed by its notes in brackets."""
    return " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])


class Explained(Exception):
    """A failure whose message says all that its reader needs; it is shown without a traceback."""


class StudyFailed(RuntimeError, Explained):
    """Some runs of a study failed for good; names each with its reason."""


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
"""What pydantic expected, by its type of error, in this project's words."""


def explain(error: ValidationError, kind: str = "field", names: Iterable[str] = ()) -> list[str]:
    """Return one line per mistake: where it is, what was expected and which value is there.

    Args:
        kind: what the message calls a name at the top level, such as "field" or "parameter".
        names: the valid names at the top level, in the order of positional arguments.
    """
    return [_line(mistake, kind, list(names)) for mistake in error.errors(include_url=False)]


def _line(mistake: Mapping[str, Any], kind: str, names: list[str]) -> str:
    first, *rest = mistake["loc"] or ("",)
    if isinstance(first, int) and first < len(names):  # a positional argument, known by its index
        first = names[first]
    path = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in (first, *rest)).lstrip(".")
    prefix = f"{path}: " if path else ""
    problem, value, context = mistake["type"], mistake["input"], mistake.get("ctx", {})
    if problem in ("extra_forbidden", "unexpected_keyword_argument"):
        *parents, name = mistake["loc"]
        if parents or not names:
            return f"{prefix}unknown {kind}"
        return str(unknown(kind, name, names))
    if problem in ("missing", "missing_argument", "missing_keyword_only_argument"):
        return f"{prefix}missing"
    if problem == "literal_error":
        return str(unknown(path, value, re.findall(r"'([^']*)'", context["expected"])))
    if problem == "value_error":
        return f"{prefix}{context['error']}"
    if problem in _EXPECTED:
        hint = _number_hint(value) if problem == "float_type" else ""
        return f"{prefix}expected {_EXPECTED[problem].format(**context)}, got {value!r}{hint}"
    return f"{prefix}{mistake['msg']}, got {value!r}"


def _number_hint(value: object) -> str:
    """Say what to write for a text such as ``1e-3``, which YAML does not read as a number."""
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return ""
    return f"; write {number!r}" if math.isfinite(number) else ""


class PositionError(ValueError):
    """A position lies at or beyond `max_positions`, so the encoding has no value for it.

    Evaluation records a length at which this is raised as one without a value. Every other
    ValueError is a mistake of the caller and is not caught.
    """

    def __init__(self, position: int, max_positions: int, encoding: str = "") -> None:
        self.position, self.max_positions, self.encoding = position, max_positions, encoding
        who = f"{encoding!r} has" if encoding else "there is"
        super().__init__(f"{who} no position {position}: {self.reason}")

    @property
    def reason(self) -> str:
        """What a record holds in place of a value."""
        return f"longest position {self.max_positions - 1}"

    def __reduce__(self) -> tuple[type, tuple[int, int, str]]:
        return type(self), (self.position, self.max_positions, self.encoding)
