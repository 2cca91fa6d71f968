"""Derive the length of each token's document from an attention mask."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.encodings.core.base import Lengths


@torch.compiler.disable  # the number of iterations depends on the mask
def document_lengths(mask: Tensor, q_positions: Tensor, k_positions: Tensor) -> Lengths:
    """Return the length of the document to which each token belongs.

    Two keys that one query sees belong to the same document, and so do keys that a chain of such
    pairs connects. The length of a document is its largest position plus one. A key that no query
    sees is a document by itself.

    Args:
        mask: (1 or B, heads, Tq, Tk), True where a query sees a key.
        q_positions: (Tq,) or (B, Tq). k_positions: (Tk,) or (B, Tk).

    Returns:
        The lengths of queries, (B, Tq), and of keys, (B, Tk). A query that sees no key has 1.
    """
    seen = mask.any(1)
    batch = max(seen.shape[0], *(len(p) for p in (q_positions, k_positions) if p.dim() == 2), 1)
    seen, count = seen.expand(batch, -1, -1), seen.shape[-1]
    # A key's label is the first key that is known to be in its document, at first the key itself.
    # Each query passes the smallest label that it sees to all keys that it sees.
    label = torch.arange(count, device=mask.device).expand(batch, -1)
    while True:
        q_label = torch.where(seen, label[:, None], count).amin(-1)  # count if nothing is seen
        k_label = torch.where(seen, q_label[..., None], count).amin(1).minimum(label)
        k_label = k_label.gather(1, k_label)  # the label of the label is smaller or equal
        if torch.equal(k_label, label):
            break
        label = k_label
    ends = k_positions.expand(batch, -1) + 1
    longest = torch.zeros_like(ends).scatter_reduce(1, label, ends, "amax")
    longest = torch.cat((longest, longest.new_ones(batch, 1)), 1)  # entry `count` is 1
    return Lengths(longest.gather(1, q_label), longest.gather(1, label))
