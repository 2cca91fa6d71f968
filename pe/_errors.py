"""Error messages that help: the value, what was expected, the nearest valid choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(value: object, choices: Iterable[str]) -> str:
    """Return ``" (did you mean 'rope'?)"`` for the closest choice, or ``""`` if none is close."""
    found = difflib.get_close_matches(str(value).lower(), list(choices), n=1, cutoff=0.5)
    return f" (did you mean {found[0]!r}?)" if found else ""


def unknown(kind: str, value: object, choices: Iterable[str]) -> ValueError:
    """A ValueError for a name that is not among the known ones."""
    names = list(choices)
    return ValueError(
        f"unknown {kind} {value!r}{nearest(value, names)}; choose from: {', '.join(names)}"
    )
