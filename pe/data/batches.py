"""Batches as a pure function of (seed, step).

The split is cut into windows; an epoch is one permutation of them, drawn from Philox keyed by
(seed, epoch). Batch ``step`` takes rows step * B ... step * B + B - 1 of the endless row of
epochs. So every encoding sees the same tokens in the same order, a resumed run needs no state but
its step, and any number of processes can share a batch by taking some of its rows each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pe.data.shards import Split

Int = npt.NDArray[np.int64]
IGNORED = -100
"""The target value that a loss leaves out; a batch of real text has none."""


class Batch(NamedTuple):
    """Rows of text, each array (B, T) int64.

    targets[b, t] is the token after input_ids[b, t]. documents counts the documents of a row from
    0; positions restart at 0 with every document (and with the row, which may begin inside one).
    """

    input_ids: Int
    targets: Int
    documents: Int
    positions: Int


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, windows: int) -> Int:
    """Return the order of an epoch. Philox' raw output is fixed for good, unlike `permutation`."""
    raw = np.random.Philox(key=[seed, epoch]).random_raw(windows)
    order: Int = np.argsort(raw, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


class Batches:
    """Training batches of a split.

    A window is context_length + 1 tokens: its inputs overlap no other window's, and its last
    target is the next window's first input, so an epoch predicts every token but the first once
    (a rest shorter than a window is left out). With ``first_token`` that token takes the place of
    each window's first input, and the targets stay as they are: every sequence then begins in the
    same way, in training as in evaluation. Raises ValueError if there is no whole window.
    """

    def __init__(
        self,
        split: Split,
        context_length: int,
        batch_size: int,
        seed: int,
        first_token: int | None = None,
    ) -> None:
        for name, value, least in (
            ("context_length", context_length, 1),
            ("batch_size", batch_size, 1),
            ("seed", seed, 0),
        ):
            if value < least:
                raise ValueError(f"{name} is {value}; it must be {least} or more")
        self.split = split
        self.context_length, self.batch_size, self.seed = context_length, batch_size, seed
        self.first_token = first_token
        self.windows = (len(split.tokens) - 1) // context_length
        """Windows of an epoch."""
        if self.windows < 1:
            raise ValueError(
                f"the split has {len(split.tokens):,} tokens, too few for one window of "
                f"{context_length + 1:,}; use a larger corpus or a shorter context_length"
            )

    def offsets(self, step: int) -> Int:
        """Return where in the split each row of batch ``step`` begins, (B,)."""
        if step < 0:
            raise ValueError(f"step is {step}; it must be 0 or more")
        rows = step * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        epochs, places = np.divmod(rows, self.windows)
        window = np.empty_like(rows)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            window[here] = _permutation(self.seed, int(epoch), self.windows)[places[here]]
        return window * self.context_length

    def at(self, step: int, rows: slice = slice(None)) -> Batch:
        """Return batch ``step``, or only some of its rows; the same for the same (seed, step)."""
        batch = self.windows_of(step, rows)
        if self.first_token is not None:
            batch.input_ids[:, 0] = self.first_token
        return batch

    def windows_of(self, step: int, rows: slice) -> Batch:
        """The windows of a batch, before the first token takes its place."""
        return rows_at(self.split, self.offsets(step)[rows], self.context_length)


def rows_at(split: Split, offsets: npt.ArrayLike, length: int) -> Batch:
    """Return the windows of ``length`` inputs that begin at these offsets of a split."""
    begin = np.asarray(offsets, dtype=np.int64)
    count = len(begin)
    text = np.empty((count, length + 1), dtype=np.int64)
    for row, offset in enumerate(begin):
        text[row] = split.tokens[offset : offset + length + 1]
    # Documents that start inside a row, after its first token: starts[first:last].
    first = np.searchsorted(split.starts, begin, side="right")
    last = np.searchsorted(split.starts, begin + length, side="left")
    many = last - first
    row_of = np.repeat(np.arange(count), many)
    within = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
    place = split.starts[np.repeat(first, many) + within] - begin[row_of]
    opens = np.zeros((count, length), dtype=np.int64)
    opens[row_of, place] = 1
    index = np.arange(length, dtype=np.int64)
    begun = np.maximum.accumulate(np.where(opens, index, 0), axis=1)
    # Copies: a changed input must not change the target that is the same token.
    return Batch(text[:, :-1].copy(), text[:, 1:].copy(), np.cumsum(opens, axis=1), index - begun)
