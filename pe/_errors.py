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
