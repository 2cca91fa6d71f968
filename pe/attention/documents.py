"""How long the document is that each token belongs to, read off the mask."""

from __future__ import annotations

import torch
from torch import Tensor

from pe.encodings.core.base import Lengths


@torch.compiler.disable  # how often labels pass on depends on the mask
def document_lengths(mask: Tensor, q_positions: Tensor, k_positions: Tensor) -> Lengths:
    """How long the document is that each token belongs to.

    A document is what chains of "sees" connect: two keys that one query sees are in the same. Its
    length is its largest position plus one. Keys that no query sees are in none.

    Args:
        mask: (1 or B, heads, Tq, Tk), True where a query sees a key. q_positions, k_positions:
            (Tq,) or (B, Tq), and (Tk,) or (B, Tk).
    """
    seen = mask.any(1)
    batch = max(seen.shape[0], *(len(p) for p in (q_positions, k_positions) if p.dim() == 2), 1)
    seen, count = seen.expand(batch, -1, -1), seen.shape[-1]
    label = torch.arange(count, device=mask.device).expand(batch, -1)  # the first key of each
    while True:
        of_q = torch.where(seen, label[:, None], count).amin(-1)  # count where nothing is seen
        of_k = torch.where(seen, of_q[..., None], count).amin(1).minimum(label)
        of_k = of_k.gather(1, of_k)
        if torch.equal(of_k, label):
            break
        label = of_k
    ends = k_positions.expand(batch, -1) + 1
    longest = torch.zeros_like(ends).scatter_reduce(1, label, ends, "amax")
    longest = torch.cat((longest, longest.new_ones(batch, 1)), 1)
    return Lengths(longest.gather(1, of_q), longest.gather(1, label))
