"""Training batches as a pure function of (seed, step).

The text is cut into windows. An epoch is a permutation of them, drawn from the Philox generator
with the key (seed, epoch), and epochs follow one another without end. Batch ``step`` consists of
windows step * B ... step * B + B - 1 of this order. So every encoding sees the same tokens in the
same order, a resumed run needs only its step, and processes share a batch by taking some of its
windows each.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pe.data.shards import Split

Int = npt.NDArray[np.int64]


class Batch(NamedTuple):
    """Windows of text; each array is (B, T) int64.

    targets[b, t] is the token after input_ids[b, t]. documents numbers the documents of a window
    from 0. positions restart at 0 with every document, and with the window, which may begin inside
    a document.
    """

    input_ids: Int
    targets: Int
    documents: Int
    positions: Int


@lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, windows: int) -> Int:
    """Return the order of an epoch, (windows,).

    It is made of Philox's raw output, which NumPy never changes, unlike its `permutation`.
    """
    raw = np.random.Philox(key=[seed, epoch]).random_raw(windows)
    order: Int = np.argsort(raw, kind="stable").astype(np.int64)
    order.flags.writeable = False
    return order


class Batches:
    """Training batches of a split.

    A window has context_length + 1 tokens. The inputs of two windows do not overlap, and the last
    target of a window is the first input of the next one. So an epoch predicts every token once,
    except the first token and a rest that is shorter than a window.

    Args:
        first_token: replaces the first input of each window, while targets stay as they are. So
            every sequence begins in the same way, in training as in evaluation. None: nothing is
            replaced.

    Raises:
        ValueError: the split is shorter than a window, or a number is too small.
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
        """Number of windows in an epoch."""
        if self.windows < 1:
            raise ValueError(
                f"the split has {len(split.tokens):,} tokens, too few for one window of "
                f"{context_length + 1:,}; use a larger corpus or a shorter context_length"
            )

    def offsets(self, step: int) -> Int:
        """Return the offset in the split at which each window of batch ``step`` begins, (B,)."""
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
        """Return batch ``step``, or only some of its windows; a function of (seed, step)."""
        batch = self.windows_of(step, rows)
        if self.first_token is not None:
            batch.input_ids[:, 0] = self.first_token
        return batch

    def windows_of(self, step: int, rows: slice) -> Batch:
        """Return the windows of a batch before `first_token` replaces their first inputs."""
        return rows_at(self.split, self.offsets(step)[rows], self.context_length)


def rows_at(split: Split, offsets: npt.ArrayLike, length: int) -> Batch:
    """Return windows of ``length`` inputs that begin at these offsets, (B,), of a split."""
    begin = np.asarray(offsets, dtype=np.int64)
    count = len(begin)
    text = np.empty((count, length + 1), dtype=np.int64)
    for row, offset in enumerate(begin):
        text[row] = split.tokens[offset : offset + length + 1]
    # Documents that start inside a window, after its first token: starts[first:last].
    first = np.searchsorted(split.starts, begin, side="right")
    last = np.searchsorted(split.starts, begin + length, side="left")
    counts = last - first
    row_of = np.repeat(np.arange(count), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    column = split.starts[np.repeat(first, counts) + within] - begin[row_of]
    starts_here = np.zeros((count, length), dtype=np.int64)
    starts_here[row_of, column] = 1
    index = np.arange(length, dtype=np.int64)
    document_start = np.maximum.accumulate(np.where(starts_here, index, 0), axis=1)
    return Batch(
        # Copies, since otherwise a change of an input would change the target of the same token.
        input_ids=text[:, :-1].copy(),
        targets=text[:, 1:].copy(),
        documents=np.cumsum(starts_here, axis=1),
        positions=index - document_start,
    )
