"""A bias that is expensive to compute, a block of query rows at a time.

What a block needs on its way is dropped when it is done and computed again for the gradient, so
that of all intermediate results only those of one block are ever held. Nothing is approximated.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from pe._recompute import checkpoint

NUMBERS = 2**23
"""How many numbers of intermediate results a block may hold: 32 MB in float32."""


def by_query_rows(
    block: Callable[[int, int], Tensor], q_length: int, k_length: int, width: int
) -> Tensor:
    """(..., Tq, Tk) from ``block(start, stop)``, which gives the rows of these queries.

    A block leaves out the keys ahead of its last query, those from ``Tk - Tq + stop`` on; they are
    masked by the caller and get 0 here. ``width`` is the count of numbers held for each query and
    key. A compiler makes its own blocks, so there everything is one block.
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
