"""PaTH: reflects a key by every token between it and the query.

    z(m, n) = q_m^T H_m H_(m-1) ... H_(n+1) k_n / sqrt(d),     H_s = 1 - beta_s w_s w_s^T
    w_s = the layer's input, projected, with length 1;   beta_s = 2 sigmoid(u . x_s + c) in (0, 2)

z is the logit of query m and key n, x_s the layer's input at token s, and u and c are learned. A
token with beta near 0 leaves a key unchanged. With beta near 1 it removes the part of the key along
w, and near 2 it flips the sign of that part.

Yang et al. 2025 (arXiv:2505.16381). The authors' layer applies a short convolution to w. Here w
depends on its own token alone, so that hidden tokens have no influence. The projection to w has
rank 32 if there are as many key heads as query heads, and is a full matrix otherwise. Comments in
their code advise this, but its default is rank 32 in both cases.

A query passes the tokens from its own back to the key, in chunks of C, as in the paper. What a
chunk does to all queries after it is one matrix, which a triangular system of C x C gives
(`pe.encodings.core.reflections`). The bias is z less the logits without positions.

PaTH learns a projection to w and one to beta per key head and layer. The bias takes T^2 numbers and
about 1.5 T^2 d multiplications per head, in float32. `pe.attention.kernels.path` computes attention
without these numbers. The formula works at any position.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.forms import REFLECTED, Form, by_reflections
from pe.encodings.core.reflections import reflect
from pe.encodings.core.registry import register

AUTHORS_RANK = 32
EPS = 1e-6
"""Added to the squared length of w, as in the authors' code."""


@register("path", title="PaTH", paper="2505.16381", family="bias")
class PaTH(Encoding):
    """Position encoding by accumulated Householder-like transformations.

    Args:
        hidden_size: width of the layer's input.
        rank: of the projection to w; 0 is a full matrix. By default 32 if num_kv_heads is
            num_heads, otherwise 0.
        std: standard deviation of the initial weights.
    """

    content_dependent = True
    form_kind = REFLECTED
    per_layer = True
    corrects_logits: ClassVar[bool] = True

    def __init__(
        self,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        hidden_size: int,
        rank: int | None = None,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.head_dim, self.num_heads, self.num_kv_heads = head_dim, num_heads, num_kv_heads
        self.group = num_heads // num_kv_heads
        self.state_size = head_dim + 1  # type: ignore[misc]
        if rank is None:
            rank = AUTHORS_RANK if num_kv_heads == num_heads else 0
        rank, self.std = at_least("rank", rank, 0), at_least("std", std, 0.0)
        # Not nn.Linear, because transformers initialises every nn.Linear by its own rule.
        self.down = nn.Parameter(torch.empty(rank, hidden_size)) if rank else None
        self.up = nn.Parameter(torch.empty(num_kv_heads * head_dim, rank or hidden_size))
        self.gate = nn.Parameter(torch.empty(num_kv_heads, hidden_size))
        self.gate_bias = nn.Parameter(torch.empty(num_kv_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for weight in (self.down, self.up, self.gate):
            if weight is not None:
                weight.normal_(0.0, self.std, generator=generator)
        self.gate_bias.zero_()

    def key_state(self, x: Tensor) -> Tensor:
        """Return w and beta of each token and head: (B, T, hidden) -> (B, H, T, D + 1)."""
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_float32(x)
            factors = [] if self.down is None else [self.down]
            w = x
            for weight in (*factors, self.up):
                w = linear(w, weight.to(x.dtype))
            w = w.unflatten(-1, (-1, self.head_dim or 1))
            w = w * (w.square().sum(-1, keepdim=True) + EPS).rsqrt()
            gates = linear(x, self.gate.to(x.dtype), self.gate_bias.to(x.dtype))
            state = torch.cat((w, 2 * gates.sigmoid()[..., None]), -1).transpose(1, 2)
            return state.repeat_interleave(self.group, dim=1)

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
        out: Tensor = reflect(q, k, self._required(state), mask)
        return out

    masked_bias = bias

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        return by_reflections(self._required(state))

    @staticmethod
    def _required(state: Tensor | None) -> Tensor:
        if state is None:
            raise ValueError(
                "path computes its reflections from the layer's input: pass layer_input to "
                "pe.attend, or state=key_state(x) to bias"
            )
        return state
