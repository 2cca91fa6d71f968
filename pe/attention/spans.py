"""Describe which keys each query of causal attention sees by four numbers per token, not a mask.

Let the tokens of a document be numbered from 0. With a window of w and chunks of c, query n sees
the keys from max(n - w + 1, n - n mod c, 0) to n, and in addition the first s keys
(`pe.encodings.core.keys`). The other way round, key n is seen by the queries from n to
min(n + w - 1, n - n mod c + c - 1), and by all later ones if n < s. Both are intervals, so four
numbers per token, which are indices in the sequence, are enough:

    first   of a query: the first key that it sees, the first s keys left out
    last    of a key: the last query that sees it
    origin  of a token: the first token of its document, which also identifies the document
    kept    of a query: the end of the first s keys of its document

    query i sees key j  if  j <= i <= last_j  and  origin_i = origin_j

Kernels compute the bounds of their loops from them. Let a block have B_q queries or B_k keys. A
block of queries sees no key before the smallest `first` of its queries, and all of its queries see
the keys from the largest `first` on. A block of keys is seen by no query after the largest `last`
of its keys, and all of its keys are seen by queries up to the smallest `last`. Blocks outside the
outer bounds are not visited, and blocks inside the inner bounds need no mask. B_q adjacent queries
see at most w + B_q - 1 keys, so a block visits at most w + B_q + 2 B_k keys at any length.

A padding token is a document by itself; what is computed for it is not used.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pe.encodings.core.key_range import KeyRange


class Spans(NamedTuple):
    """The four numbers of each token, and what kernels are compiled for."""

    rows: Tensor
    """(1 or B, 4, T) int32: `first`, `last`, `origin` and `kept` of each token."""
    keeps: bool
    """Whether queries see some keys before `first`, those from `origin` to `kept`."""
    segmented: bool
    """Whether there are several documents, or padding."""
    near: int
    """Keys at this distance and farther are hidden; 0 if no distance has this property."""

    def mask(self) -> Tensor:
        """Return the mask (1 or B, 1, T, T), True where a query sees a key."""
        every = slice(None)
        return self.block(every, every)

    def block(self, queries: slice, keys: slice | Tensor) -> Tensor:
        """Return a part of `mask`, (1 or B, 1, q, k).

        Args:
            keys: a slice, or the indices of keys, (k,).
        """
        _, last, origin, _ = self.rows.unbind(1)
        index = torch.arange(last.shape[-1], device=last.device)
        key, query = index[keys], index[queries, None]
        seen = (key <= query) & (query <= last[:, None, keys])
        return (seen & (origin[:, queries, None] == origin[:, None, keys]))[:, None]

    def of_next_query(self) -> Tensor:
        """Return a mask (1 or B, T), True at keys that the next token may see.

        The next token continues the last document, after which there may be padding. If every
        document has a single token, nothing distinguishes documents from padding, and all keys are
        kept.
        """
        _, last, origin, _ = self.rows.long().unbind(1)
        index = torch.arange(last.shape[-1], device=last.device).expand_as(origin)
        count = torch.zeros_like(origin).scatter_add_(-1, origin, torch.ones_like(origin))
        end = torch.zeros_like(origin).scatter_reduce_(-1, origin, index, "amax")
        seen = last == end.gather(-1, origin)
        several = count.gather(-1, origin) > 1
        newest = torch.where(several, index, -1).amax(-1, keepdim=True)
        in_newest = origin == origin.gather(-1, newest.clamp(min=0))
        return seen & (in_newest | (newest < 0))


class Bounded(Spans):
    """Spans for a case that the kernels do not serve.

    `pe.attention.rows` computes attention for a block of queries at a time, with the keys that the
    block sees, so that no mask of T x T is made.
    """

    __slots__ = ()

    @torch.no_grad()
    def widest(self) -> int:
        """Return the largest number of keys from a query's `first` to the query itself."""
        first = self.rows[:, 0]
        return int((torch.arange(first.shape[-1], device=first.device) - first).max()) + 1

    @torch.no_grad()
    def keys_of(self, blocks: list[slice]) -> list[slice | Tensor]:
        """Return for each block of queries the indices of the keys that it may see, ascending.

        The last of these keys are the block itself. Some of them may be hidden from all queries of
        the block.
        """
        first, last, _, kept = self.rows.long().unbind(1)
        starts = torch.stack([first[:, block].min() for block in blocks]).tolist()
        index = torch.arange(first.shape[-1], device=first.device)
        # The first keys of documents, which later queries still see.
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
    """Return the spans of ``length`` queries and keys; their memory is linear in the length.

    Args:
        shown: window, chunk and first keys. padding: (B, T), 0 at padding.
        documents: (B, T), the document of each token, in any order.
    """
    rows = span_rows(length, device, *shown, padding, documents)
    limits = [limit for limit in (shown.window, shown.chunk) if limit is not None]
    near = min(limits) if limits and not shown.sinks else 0
    segmented = padding is not None or documents is not None
    return Spans(rows, shown.sinks > 0, segmented, near)


# This is an operator of its own because torch.compile can fail at the arithmetic of indices. The
# compiler of torch 2.11 raises "The argument '-511 + ((49152))' is not comparable" for a window of
# 512 on a GPU.
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
    """Compute `Spans.rows`, (1 or B, 4, T); `KeyRange` has window, chunk and sinks."""
    index = torch.arange(length, device=device)[None]
    # Documents may be mixed in the sequence, so tokens are sorted by document first. `order` has
    # the index of the token at each place of the sorted sequence, and `begin` the place at which
    # the document of each token begins. `number` numbers the tokens of a document from 0.
    order, begin, size = index, torch.zeros_like(index), torch.full_like(index, length)
    number = index
    if padding is not None or documents is not None:
        # Documents have even names and padding tokens odd ones, which are all different.
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
        chunk_start = number - number % chunk
        first, last = first.maximum(chunk_start), last.minimum(chunk_start + chunk - 1)
    last = torch.where(number < sinks, size - 1, last)
    last_kept = size.clamp(max=max(sinks, 1)) - 1
    numbers = (first, last, torch.zeros_like(number), last_kept)
    rows = torch.stack([order.gather(-1, begin + row) for row in numbers], 1)
    rows[:, 3] += 1  # `kept` is the end of these keys, one after the last
    return rows.int().contiguous()


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
    """Return whether distances of positions equal distances in the sequence.

    This is so if the tokens of each document are adjacent and their positions rise by one from
    token to token. Under torch.compile the answer is False, because it would have to wait for the
    device.

    Args:
        positions: (T,) or (B, T).
    """
    if torch.compiler.is_compiling():
        return False
    origin = spans.rows[:, 2].long()
    index = torch.arange(origin.shape[-1], device=origin.device)
    counts = torch.zeros_like(origin).scatter_add_(-1, origin, torch.ones_like(origin))
    ends = torch.where(counts > 0, index + counts, 0)
    adjacent = index < ends.gather(-1, origin)  # no token lies beyond first token plus count
    batch = max(len(origin), len(positions) if positions.dim() > 1 else 1)
    positions = positions.expand(batch, -1)
    start = positions.gather(-1, origin.expand_as(positions))
    rises = positions - start == index - origin
    return bool((adjacent & rises).all())
