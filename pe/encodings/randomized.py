"""Randomized positions: in each forward pass, tokens get random positions in the right order.

    p_0 < p_1 < ... < p_n-1     n integers drawn without replacement from 0 .. N-1, then sorted

and token i is treated as if it were at p_i, by whatever encodes positions beside this:
``rope+randomized``, ``alibi+randomized``, ``sinusoidal+randomized``. Named alone it brings RoPE.
Ruoss et al. 2023 (arXiv:2305.16843). One draw serves all rows of a batch; each layer draws again,
the embeddings once; in evaluation too, as in the authors' code. Learns nothing; at most N tokens.

Drawn from torch's global generator, so that a seed and a checkpoint fix what is drawn.
"""

import torch
from torch import Tensor

from pe.encodings.core.base import Encoding, Lengths, Prepared
from pe.encodings.core.checks import at_least
from pe.encodings.core.registry import register


@register("randomized", title="Randomized", paper="2305.16843", family="positions")
class Randomized(Encoding):
    """Random increasing positions below ``max_position``, N; None: 16 times the training length."""

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
        # Of N shuffled positions the first n are a draw without replacement. All shapes are those
        # of N, so nothing waits for a GPU to tell n, and one graph serves every length.
        shuffled = torch.randperm(self.max_position, device=k_positions.device)
        drawn = (shuffled < k_positions.max() + 1).cumsum(0)  # drawn positions up to and with each

        def moved_to(positions: Tensor) -> Tensor:
            """The position with as many drawn ones before it as there are tokens before."""
            return torch.searchsorted(drawn, positions.long().contiguous() + 1)

        moved = moved_to(k_positions)
        # One tensor for both where it was one: RoPE then makes one pair of tables.
        return Prepared(moved if q_positions is k_positions else moved_to(q_positions), moved)
