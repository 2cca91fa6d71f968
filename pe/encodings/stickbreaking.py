"""Stick-breaking: from the query backwards, each key breaks its share off what is left of a stick.

    A(i, j) = sigmoid(z_ij) prod_{j<l<i} (1 - sigmoid(z_il)),      z = q k / sqrt(d),  j < i

Tan, Shen, Yang, Courville, Panda 2024 (arXiv:2410.17980). Learns nothing. No softmax and no other
encoding: a key that matches ends the search, so of two equal keys the nearer one wins. Weights add
up to less than 1; what is left of the stick goes nowhere, and the first query gets 0. By default a
token does not see itself, as in the authors' code; with ``attend_current`` it does.

Since A(i, j) = exp(z_ij - sum_{j<=l<i} ln(1 + e^z_il)), and the rest of the stick is the same with
z_ij left out and the sum over all keys, this is softmax with a bias and one more logit:

    b(i, j) = S_i - sum_{j<=l<i} ln(1 + e^z_il),     S_i the sum over all keys,     sink logit 0

and softmax, of which only differences count, forgets S_i. It is added up to `REST` only, where the
rest of the stick is below 1e-17: so sums near the query stay small, and exact, in long texts.

A float32 reference: T^2 numbers per head, which no kernel saves yet. Any position; weights agree
with float64 to 1e-5 over 16,384 keys.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pe.encodings.core.base import Encoding
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

HELD = 8
"""About how many numbers a block holds for each head, query and key."""
REST = 40.0
"""Sums above this leave e^-40 of the stick, less than float64 tells from 0 beside 1."""
NEVER = -1e4
"""What a token that does not see itself adds to its logit; the sink's is 0, so its weight is 0."""


@register("stickbreaking", title="Stick-breaking", paper="2410.17980", family="bias")
class StickBreaking(Encoding):
    """Stick-breaking weights in place of softmax, from logits of queries and keys alone."""

    content_dependent = True
    exclusive: ClassVar[bool] = True
    nothing: Tensor

    def __init__(self, num_heads: int, attend_current: bool = False) -> None:
        super().__init__()
        self.num_heads, self.attend_current = num_heads, attend_current
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(self.num_heads or 0)}

    def sink_logit(self) -> Tensor:
        """(H,) zeros: the rest of the stick, in the units of `bias`."""
        return self.nothing

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """(B, H, Tq, Tk), float32; float64 where the queries are."""
        self.refuse_misfit(q, k, q_positions)
        batch, heads, length, width = q.shape
        known = k.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)
        # The heads that share a key in a row.
        grouped = q.to(wide).view(batch, k.shape[1], -1, length, width)
        keys = k.to(wide)[:, :, None].transpose(-1, -2) / math.sqrt(width)
        before = known - length

        def block(start: int, stop: int) -> Tensor:
            logits = grouped[..., start:stop, :] @ keys[..., : before + stop]
            logits = logits.flatten(1, 2)
            ones = logits.new_ones(logits.shape[-2:], dtype=torch.bool)
            own = before + start  # the number of the first query's own key
            passed = ones.tril(own if self.attend_current else own - 1)
            if mask is not None:
                passed = passed & mask[..., start:stop, : before + stop]
            broken = softplus(logits) * passed
            sums = broken.flip(-1).cumsum(-1).flip(-1)
            values = sums[..., :1].clamp(max=REST) - sums
            if self.attend_current:
                return values
            return values.masked_fill(ones.tril(own).triu(own), NEVER)

        with torch.autocast(q.device.type, enabled=False):
            return by_query_rows(block, length, known, HELD * batch * heads)

    masked_bias = bias
