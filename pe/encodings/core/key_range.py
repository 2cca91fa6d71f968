"""Which keys a query sees, where numbers say it, so that kernels can skip what is hidden.

Apart from `Encoding`, whose source is part of what a record holds of its encoding.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from pe.encodings.core.base import Encoding
from pe.encodings.core.composite import Composite


class KeyRange(NamedTuple):
    """The numbers of `pe.encodings.core.keys`, of one part or of several together."""

    window: int | None = None
    """How many keys, the last ones; None: all."""
    chunk: int | None = None
    """Tokens of a chunk, in which a query stays; None: there are no chunks."""
    sinks: int = 0
    """How many of the first keys are seen whatever the two above hide."""


@runtime_checkable
class HasKeyRange(Protocol):
    """An encoding that hides or keeps keys and can say by numbers which."""

    def key_range(self) -> KeyRange:
        """What its `shows` says."""


def key_range(enc: Encoding) -> KeyRange | None:
    """What `Encoding.shows` says, in numbers; None where a part can say it by a mask only.

    Of several parts the smallest window and the most first keys; chunks must be of one size.
    """
    parts = enc._all if isinstance(enc, Composite) else (enc,)
    shown = KeyRange()
    for part in parts:
        if not (part.hides or part.keeps):
            continue
        if not isinstance(part, HasKeyRange):
            return None
        window, chunk, sinks = part.key_range()
        if window is not None and (shown.window is None or window < shown.window):
            shown = shown._replace(window=window)
        if chunk is not None and shown.chunk not in (None, chunk):
            return None
        shown = shown._replace(chunk=shown.chunk or chunk, sinks=max(shown.sinks, sinks))
    return shown
