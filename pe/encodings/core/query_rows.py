"""Computes an expensive bias in blocks of query rows.

The intermediate results of a block are dropped when it is finished and computed again for the
gradient. Memory thus holds the intermediate results of one block only. Nothing is approximated.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from pe._recompute import checkpoint

NUMBERS = 2**23
"""How many intermediate numbers a block may hold, 32 MB in float32."""


def by_query_rows(
    block: Callable[[int, int], Tensor], q_length: int, k_length: int, width: int
) -> Tensor:
    """Return a bias (..., Tq, Tk), given ``block(start, stop)``, its rows of these queries.

    A block omits the keys ahead of its last query, which are those from ``Tk - Tq + stop`` on. They
    get 0 here, and the caller masks them. ``width`` is the count of numbers held per query and key.
    torch.compile chooses blocks itself, so under it everything is one block.
    """
    rows = max(1, NUMBERS // max(1, width * k_length))
    if rows >= q_length or torch.compiler.is_compiling():
        return block(0, q_length)
    pieces = []
    for start in range(0, q_length, rows):
        stop = min(start + rows, q_length)
        if torch.is_grad_enabled():
            piece = checkpoint(block, start, stop, use_reentrant=False, preserve_rng_state=False)
        else:
            piece = block(start, stop)
        pieces.append(pad(piece, (0, k_length - piece.shape[-1])))
    return torch.cat(pieces, dim=-2)
