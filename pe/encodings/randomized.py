"""Randomized positions: gives the tokens random increasing positions in each forward pass.

    p_0 < p_1 < ... < p_n-1     n integers drawn without replacement from 0 .. N-1, then sorted

The other encodings of the sum see token i of n at position p_i: ``rope+randomized``,
``alibi+randomized``, ``sinusoidal+randomized``. Alone it means ``rope+randomized``.

Ruoss et al. 2023 (arXiv:2305.16843). As in the authors' code, one draw serves all rows of a batch,
each layer draws again, the embeddings draw once, and evaluation draws too. Their randomized ALiBi
differs: it draws distances instead of positions.

It learns nothing and works for up to N tokens. The draws come from torch's global generator, so a
seed and a checkpoint determine them.
"""

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding, Lengths, Prepared
from pe.encodings.core.checks import at_least
from pe.encodings.core.registry import register


@register("randomized", title="Randomized", paper="2305.16843", family="positions")
class Randomized(Encoding):
    """Random increasing positions below ``max_position``.

    Args:
        original_length: training length in tokens.
        max_position: N; by default 16 times the training length.

    Raises:
        ValueError: neither is given, or N is less than the training length.
    """

    relative = False
    random = True
    alone_with = "rope"

    def __init__(self, original_length: int | None = None, max_position: int | None = None) -> None:
        super().__init__()
        if max_position is None:
            if original_length is None:
                raise ValueError("'randomized' needs original_length, or the option max_position")
            max_position = 16 * original_length
        self.max_position = at_least("max_position", max_position, original_length or 1)
        self.max_positions = self.max_position

    def prepare(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        dtype: torch.dtype = torch.float32,
        lengths: Lengths | None = None,
    ) -> Prepared:
        if not k_positions.numel():
            return Prepared(q_positions, k_positions)
        self.refuse_too_far(k_positions)
        # The positions whose entry of a random permutation is below n are a draw without
        # replacement. All shapes depend on N alone, so the CPU never waits for a GPU to report n,
        # and one compiled graph serves every length.
        shuffled = torch.randperm(self.max_position, device=k_positions.device)
        drawn = (shuffled < k_positions.max() + 1).cumsum(0)  # drawn positions up to each

        def moved_to(positions: Tensor) -> Tensor:
            """Return the drawn position of each token: token i gets the i-th smallest one."""
            return torch.searchsorted(drawn, positions.long().contiguous() + 1)

        moved = moved_to(k_positions)
        # Keep one tensor for both if it was one, so that RoPE computes one pair of tables.
        return Prepared(moved if q_positions is k_positions else moved_to(q_positions), moved)
