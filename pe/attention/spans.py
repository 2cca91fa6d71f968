"""Which keys each query of causal attention sees, by four numbers per token instead of a mask.

Number the tokens of a document from 0. Query n sees the keys from max(n - w + 1, n - n mod c, 0) to
n, in a window of w and chunks of c, and besides them the first s (`pe.encodings.core.keys`). Turned
round, key n is seen by the queries from n to min(n + w - 1, n - n mod c + c - 1), and if n < s by
all later ones. Both are intervals, so as places in the sequence four numbers per token say it all:

    first   of a query: the first key it sees, without the first s
    last    of a key: the last query that sees it
    origin  of a token: the first token of its document, which names the document, too
    kept    of a query: where the first s keys of its document end

    query i sees key j  if  j <= i <= last_j  and  origin_i = origin_j

Kernels read their loop bounds from them, B_q queries and B_k keys in a block. A block of queries
sees no key before the least of its `first`, and each of its queries sees all keys from the largest
on. A block of keys is seen by no query after the largest of its `last`, and all its keys are seen
up to the least. Blocks beyond the outer bound are not visited and blocks within the inner bound
take no mask. B_q queries in a row see at most w + B_q - 1 keys, so a block of them visits at most
w + B_q + 2 B_k, whatever the length is.

A padding token is a document by itself: nobody reads what it computes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pe.encodings.core.key_range import KeyRange


class Spans(NamedTuple):
    """The four numbers, and what they are made of."""

    rows: Tensor
    """(1 or B, 4, T) int32: `first`, `last`, `origin` and `kept` of each token."""
    keeps: bool
    """Some keys before `first` are seen: those from `origin` to `kept`."""
    segmented: bool
    """There are several documents, or padding."""
    near: int
    """Keys at this distance and farther are hidden, 0 where that is not so."""

    def mask(self) -> Tensor:
        """(1 or B, 1, T, T), True where a query sees a key: for what takes nothing else."""
        every = slice(None)
        return self.block(every, every)

    def block(self, queries: slice, keys: slice | Tensor) -> Tensor:
        """(1 or B, 1, q, k), a part of `mask`; ``keys`` may be places, (k,)."""
        _, last, origin, _ = self.rows.unbind(1)
        index = torch.arange(last.shape[-1], device=last.device)
        key, query = index[keys], index[queries, None]
        seen = (key <= query) & (query <= last[:, None, keys])
        return (seen & (origin[:, queries, None] == origin[:, None, keys]))[:, None]

    def of_next_query(self) -> Tensor:
        """(1 or B, T), True at the keys that a token after these may see.

        That token continues the last document; padding may come after it. Where all documents have
        one token, as padding has, nothing tells them apart, and all are kept.
        """
        _, last, origin, _ = self.rows.long().unbind(1)
        index = torch.arange(last.shape[-1], device=last.device).expand_as(origin)
        count = torch.zeros_like(origin).scatter_add_(-1, origin, torch.ones_like(origin))
        end = torch.zeros_like(origin).scatter_reduce_(-1, origin, index, "amax")
        seen = last == end.gather(-1, origin)
        several = count.gather(-1, origin) > 1
        newest = torch.where(several, index, -1).amax(-1, keepdim=True)
        here = origin == origin.gather(-1, newest.clamp(min=0))
        return seen & (here | (newest < 0))


class Bounded(Spans):
    """Spans that kernels do not take: attention is computed a block of query rows at a time, with
    the keys that it sees (`pe.attention.rows`), and no mask of tokens times tokens is made."""

    __slots__ = ()

    @torch.no_grad()
    def widest(self) -> int:
        """How many keys a query has from the first that its window shows to itself, at most."""
        first = self.rows[:, 0]
        return int((torch.arange(first.shape[-1], device=first.device) - first).max()) + 1

    @torch.no_grad()
    def keys_of(self, blocks: list[slice]) -> list[slice | Tensor]:
        """For each block of queries the places of the keys that they may see, in their order.

        The block itself is the end of them. Places that no query of the block sees may be among
        them.
        """
        first, last, _, kept = self.rows.long().unbind(1)
        starts = torch.stack([first[:, block].min() for block in blocks]).tolist()
        index = torch.arange(first.shape[-1], device=first.device)
        # the first keys of a document that later queries still see
        firsts = ((index < kept) & (last > index)).any(0).nonzero()[:, 0] if self.keeps else None
        keys: list[slice | Tensor] = []
        for start, block in zip(starts, blocks, strict=True):
            near = slice(start, block.stop)
            before = None if firsts is None else firsts[firsts < start]
            if before is None or not len(before):
                keys.append(near)
            else:
                keys.append(torch.cat((before, index[near])))
        return keys


def spans(
    shown: KeyRange,
    length: int,
    device: torch.device,
    padding: Tensor | None = None,
    documents: Tensor | None = None,
) -> Spans:
    """The spans of ``length`` queries and as many keys; memory grows with the length alone.

    Args:
        padding: (B, T), 0 at padding. documents: (B, T), the document of each token, in any order.
    """
    rows = span_rows(length, device, *shown, padding, documents)
    limits = [limit for limit in (shown.window, shown.chunk) if limit is not None]
    near = min(limits) if limits and not shown.sinks else 0
    segmented = padding is not None or documents is not None
    return Spans(rows, shown.sinks > 0, segmented, near)


# One op, since a compiler that reasons about the arithmetic of indices can fail at it: torch 2.11's
# raises "The argument '-511 + ((49152))' is not comparable" for a window of 512 on a GPU.
@torch.library.custom_op("pe::spans", mutates_args=())
def span_rows(
    length: int,
    device: torch.device,
    window: int | None,
    chunk: int | None,
    sinks: int,
    padding: Tensor | None,
    documents: Tensor | None,
) -> Tensor:
    """`Spans.rows`, of queries and keys that `KeyRange` describes."""
    index = torch.arange(length, device=device)[None]
    order, begin, size = index, torch.zeros_like(index), torch.full_like(index, length)
    number = index
    if padding is not None or documents is not None:
        name = torch.zeros_like(index) if documents is None else 2 * documents.long()
        if padding is not None:
            name = torch.where(padding.bool(), name, 2 * index + 1)
        order = name.argsort(dim=-1, stable=True)
        place = order.argsort(dim=-1)
        names = name.gather(-1, order)
        begin = torch.searchsorted(names, names).gather(-1, place)
        size = torch.searchsorted(names, names, right=True).gather(-1, place) - begin
        number = place - begin
    first, last = torch.zeros_like(number), size - 1
    if window is not None:
        first, last = first.maximum(number - window + 1), last.minimum(number + window - 1)
    if chunk is not None:
        before = number - number % chunk
        first, last = first.maximum(before), last.minimum(before + chunk - 1)
    last = torch.where(number < sinks, size - 1, last)
    rows = (first, last, torch.zeros_like(number), size.clamp(max=max(sinks, 1)) - 1)
    places = torch.stack([order.gather(-1, begin + row) for row in rows], 1)
    places[:, 3] += 1
    return places.int().contiguous()


@span_rows.register_fake
def _(
    length: int,
    device: torch.device,
    window: int | None,
    chunk: int | None,
    sinks: int,
    padding: Tensor | None,
    documents: Tensor | None,
) -> Tensor:
    sequences = max([1, *(x.shape[0] for x in (padding, documents) if x is not None)])
    return torch.empty(sequences, 4, length, dtype=torch.int32, device=device)


@torch.no_grad()
def counted_within(spans: Spans, positions: Tensor) -> bool:
    """Whether distances are differences of places: no document has gaps, and ``positions``,
    (T,) or (B, T), rise by one from token to token of it.

    Waits for the device, so a compiler is told that it is not so.
    """
    if torch.compiler.is_compiling():
        return False
    origin = spans.rows[:, 2].long()
    index = torch.arange(origin.shape[-1], device=origin.device)
    counts = torch.zeros_like(origin).scatter_add_(-1, origin, torch.ones_like(origin))
    ends = torch.where(counts > 0, index + counts, 0)
    whole = index < ends.gather(-1, origin)  # as many tokens as there are places from the first
    place = positions.expand(max(len(origin), len(positions) if positions.dim() > 1 else 1), -1)
    start = place.gather(-1, origin.expand_as(place))
    rises = place - start == index - origin
    return bool((whole & rises).all())
