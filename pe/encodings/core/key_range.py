"""Visible keys as numbers, so that kernels skip hidden keys and scales count visible ones.

This is separate from `Encoding`, because records hold a hash of the source of `Encoding`.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding
from pe.encodings.core.composite import Composite


class KeyRange(NamedTuple):
    """The visible keys of one part or of several together, as in `pe.encodings.core.keys`."""

    window: int | None = None
    """Number of the last keys that are visible; None is all."""
    chunk: int | None = None
    """Tokens per chunk; a query sees its chunk only. None is no chunks."""
    sinks: int = 0
    """Number of the first keys that stay visible despite window and chunk."""


@runtime_checkable
class HasKeyRange(Protocol):
    """An encoding that hides or keeps keys and can describe them by numbers."""

    def key_range(self) -> KeyRange:
        """Return the visible keys as numbers, which are the same as those of `shows`."""


def key_range(enc: Encoding) -> KeyRange | None:
    """Return the visible keys of an encoding as numbers; None if a part can only give a mask.

    Several parts give the smallest window and the largest number of first keys. Chunks of two
    sizes give None.
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
    """Return the visible share of all pairs of a query and a key that is not ahead of it.

    It is 1.0 if nothing is hidden, and if only a mask describes what is.
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
    """A sum with a window or a chunk, whose logit scales depend on the number of visible keys.

    SSMax scales by ln n, where n is the number of keys in the softmax (arXiv:2501.19399). In a
    window n is not the position plus one, so each part gets n - 1 as the position.
    """

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        return super().logit_scale(self.shown(q_positions) - 1)

    def shown(self, query: Tensor) -> Tensor:
        """Return how many keys the query of this number sees if nothing else hides tokens."""
        ranges = [part.key_range() for part in self._all if isinstance(part, HasKeyRange)]
        firsts = [torch.zeros_like(query)]
        firsts += [query - r.window + 1 for r in ranges if r.window is not None]
        firsts += [query // r.chunk * r.chunk for r in ranges if r.chunk is not None]
        first = torch.stack(firsts).amax(0)
        kept = [first.clamp(max=r.sinks) for r in ranges if r.sinks]
        return sum(kept, query - first + 1)
