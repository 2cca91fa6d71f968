"""Which keys a query sees, where numbers say it: kernels skip what is hidden, and scales count it.

Apart from `Encoding`, whose source is part of what a record holds of its encoding.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

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


def shown_share(enc: Encoding, length: int) -> float:
    """What share of the keys at and before each query is shown, over all queries of a sequence.

    1.0 where nothing is hidden, and where a mask alone says what is.
    """
    shown = key_range(enc) if enc.hides else None
    if shown is None:
        return 1.0
    query = torch.arange(length)
    first = torch.zeros_like(query)
    if shown.window is not None:
        first = first.maximum(query - shown.window + 1)
    if shown.chunk is not None:
        first = first.maximum(query - query % shown.chunk)
    seen = query - first + 1 + first.clamp(max=shown.sinks)
    return float(seen.sum()) / (length * (length + 1) // 2)


class Narrowed(Composite):
    """A sum with a window or a chunk: logit scales go by the number of keys that are shown.

    SSMax scales by ln n, where n is how many keys the softmax is over (arXiv:2501.19399). In a
    window that is not the position plus one, so each part is told a position one less than n.
    """

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        return super().logit_scale(self.shown(q_positions) - 1)

    def shown(self, query: Tensor) -> Tensor:
        """How many keys the query of this number sees, where no token is hidden otherwise."""
        ranges = [part.key_range() for part in self._all if isinstance(part, HasKeyRange)]
        firsts = [torch.zeros_like(query)]
        firsts += [query - r.window + 1 for r in ranges if r.window is not None]
        firsts += [query // r.chunk * r.chunk for r in ranges if r.chunk is not None]
        first = torch.stack(firsts).amax(0)
        kept = [first.clamp(max=r.sinks) for r in ranges if r.sinks]
        return sum(kept, query - first + 1)
