"""Fixed evaluation windows, which have the same targets after contexts of every length.

A window is given by its end e. The scored targets are tokens[e - target_tokens : e]. A context of L
tokens has the inputs tokens[e - L - 1 : e - 1] and the targets tokens[e - L : e]. The longest
context lies inside one document, and so do all shorter ones. So perplexities at different lengths
are measured on exactly the same tokens.
"""

from __future__ import annotations

import numpy as np

from pe.data.shards import Split


def evaluation_windows(split: Split, length: int, target_tokens: int, count: int) -> list[int]:
    """Return up to ``count`` ends of windows, ascending; no target is scored twice.

    The windows are spread over as many documents as possible, and evenly inside a document.

    Args:
        length: the longest context, in tokens. target_tokens: how many targets are scored.

    Raises:
        ValueError: no document is longer than ``length``, or ``target_tokens`` or ``count`` is out
            of range.
    """
    if not 1 <= target_tokens <= length:
        raise ValueError(
            f"target_tokens is {target_tokens}; it must be between 1 and the length {length}"
        )
    if count < 1:
        raise ValueError(f"the count of evaluation windows is {count}; it must be 1 or more")
    room = split.lengths - (length + 1)
    documents = np.flatnonzero(room >= 0)
    if not len(documents):
        longest = int(split.lengths.max(initial=0))
        raise ValueError(
            f"0 evaluation windows of {length:,} tokens are possible: the longest of "
            f"{len(split.starts):,} documents has {longest:,} tokens; evaluate at most at "
            f"{max(longest - 1, 0):,} or use a corpus with longer documents"
        )
    slots = room[documents] // target_tokens + 1
    shares = _share_out(slots, count)
    ends: list[int] = []
    for document, possible, share in zip(documents, slots, shares, strict=True):
        # The middles of `share` equal parts of the possible places.
        places = (2 * np.arange(share) + 1) * possible // (2 * share) if share else []
        first = int(split.starts[document]) + length + 1
        ends += [first + int(place) * target_tokens for place in places]
    return ends


def _share_out(slots: np.ndarray, count: int) -> np.ndarray:
    """Divide ``count`` windows among documents that have room for ``slots`` each, (D,) -> (D,).

    They are divided as evenly as the room allows.
    """
    shares = np.zeros_like(slots)
    left = min(count, int(slots.sum()))
    while left:
        unfilled = np.flatnonzero(shares < slots)
        if left < len(unfilled):  # fewer windows than documents, which are taken at equal distances
            shares[unfilled[(2 * np.arange(left) + 1) * len(unfilled) // (2 * left)]] += 1
            break
        step = min(left // len(unfilled), int((slots - shares)[unfilled].min()))
        shares[unfilled] += step
        left -= step * len(unfilled)
    return shares
