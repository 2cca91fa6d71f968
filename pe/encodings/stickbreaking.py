"""Stick-breaking: weighs keys from the query backwards, each by a share of what nearer keys left.

    A(m, n) = sigmoid(z_mn) prod_{n<l<m} (1 - sigmoid(z_ml)),      z = q k / sqrt(d),  n < m

A(m, n) is the weight of key n for query m. There is no softmax and no other encoding. A key that
matches leaves little for keys behind it, so of two equal keys the nearer one gets more weight. The
weights add up to less than 1, and the rest of the stick is dropped. The first query gets 0.

Tan, Shen, Yang, Courville, Panda 2024 (arXiv:2410.17980). As in the authors' code, a token does not
see itself; with ``attend_current`` it does.

Because A(m, n) = exp(z_mn - sum_{n<=l<m} ln(1 + e^z_ml)), the weights are a softmax with a bias and
one more logit for the rest of the stick:

    b(m, n) = S_m - sum_{n<=l<m} ln(1 + e^z_ml),     S_m the sum over all keys,     sink logit 0

Softmax ignores S_m as a common term. S_m is limited to `REST`, where the rest of the stick is below
1e-17, so that the sums near the query stay small and exact in long sequences.

It learns nothing. The bias here has T^2 numbers per head; `pe.attention.kernels.stickbreaking`
computes attention without them. It works at any position; the weights agree with float64 to 1e-5
over 16,384 keys.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus

from pe.encodings.core.base import Encoding
from pe.encodings.core.forms import STICKS, Form, by_sticks
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

HELD = 8
"""Approximate count of numbers that a block holds per head, query and key."""
REST = 40.0
"""A sum of this leaves e^-40 of the stick, which float64 cannot distinguish from 0 beside 1."""
NEVER = -1e4
"""Bias of a token's own key if it does not see itself; beside the sink's 0 its weight is 0."""


@register("stickbreaking", title="Stick-breaking", paper="2410.17980", family="bias")
class StickBreaking(Encoding):
    """Stick-breaking weights instead of softmax.

    ``attend_current`` is whether a token sees itself.
    """

    content_dependent = True
    form_kind = STICKS
    exclusive: ClassVar[bool] = True
    nothing: Tensor

    def __init__(self, num_heads: int, attend_current: bool = False) -> None:
        super().__init__()
        self.num_heads, self.attend_current = num_heads, attend_current
        self.register_exact_buffers()

    def exact_buffers(self) -> dict[str, Tensor]:
        return {"nothing": torch.zeros(self.num_heads or 0)}

    def sink_logit(self) -> Tensor:
        """Return zeros, (H,), the logit of the rest of the stick."""
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
        """Return the bias, (B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        batch, heads, length, width = q.shape
        known = k.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)
        # Query heads that share a key head are multiplied together.
        grouped = q.to(wide).view(batch, k.shape[1], -1, length, width)
        keys = k.to(wide)[:, :, None].transpose(-1, -2) / math.sqrt(width)
        before = known - length

        def block(start: int, stop: int) -> Tensor:
            logits = grouped[..., start:stop, :] @ keys[..., : before + stop]
            logits = logits.flatten(1, 2)
            ones = logits.new_ones(logits.shape[-2:], dtype=torch.bool)
            own = before + start  # index of the first query's key
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

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        return by_sticks(self.attend_current)
