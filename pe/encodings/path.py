"""PaTH: on its way to the query, a key is reflected by every token that it passes.

    z(i, j) = q_i^T H_i H_(i-1) ... H_(j+1) k_j / sqrt(d),     H_s = 1 - beta_s w_s w_s^T
    w_s = the layer's input, projected, with length 1;   beta_s = 2 sigmoid(u . x_s + c) in (0, 2)

Yang et al. 2025 (arXiv:2505.16381). A token with beta near 0 changes nothing; near 1 it erases what
a key has along w; near 2 it flips the sign of that part. So a position is what happened in between.
Learned in each layer, for each key head: a projection to w, of rank 32 where there are as many key
heads as query heads, and one to beta. The authors' layer runs a short convolution over w as well;
here w follows from its own token, so that hidden tokens have no part in it.

Instead of multiplying matrices, follow the query back. What is left of it along w_s, a_s, solves

    a_s + sum_{r>s} a_r beta_r (w_r . w_s) = q_i . w_s,     s = i, i-1, ..

and z(i, j) = (q_i . k_j - sum_{s>j} a_s beta_s (w_s . k_j)) / sqrt(d): a triangular system for each
query. The second term is the bias here.

A float32 reference: T^2 numbers per head and T^3 / 2 multiplications, meant for up to 4,096 tokens.
Any position.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

HELD = 8
"""About how many numbers a block holds for each head, query and key."""
AUTHORS_RANK = 32
EPS = 1e-6
"""Under the root of the length of w, as in the authors' code."""


@register("path", title="PaTH", paper="2505.16381", family="bias")
class PaTH(Encoding):
    """Position encoding by accumulated Householder-like transformations.

    Options: ``rank`` of the projection to w; 0: not factored; unless given, as the authors have it.
    """

    content_dependent = True
    per_layer = True

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
        # Bare parameters: transformers draws every nn.Linear it finds by another rule.
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
        """w and beta of each token and head, (B, H, T, D + 1)."""
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
        """(B, H, Tq, Tk), float32; float64 where the queries are."""
        self.refuse_misfit(q, k, q_positions)
        if state is None:
            raise ValueError(
                "path takes its reflections from the layer's input: pass layer_input to "
                "pe.attend, or state=key_state(x) to bias"
            )
        batch, heads, length, width = q.shape
        known, before = k.shape[-2], k.shape[-2] - length
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, keys = q.to(wide), k.to(wide).repeat_interleave(heads // k.shape[1], dim=1)
        w, beta = state[..., :-1].to(wide), state[..., -1].to(wide)

        def block(start: int, stop: int) -> Tensor:
            end = before + stop
            ways, gates = w[:, :, :end], beta[:, :, None, :end]
            met = (ways @ ways.mT).tril(-1)  # w_r . w_s where r > s
            rest = queries[:, :, start:stop] @ ways.mT
            seen = rest.new_ones(rest.shape[-2:], dtype=torch.bool).tril(before + start)
            if mask is None:  # one system for all queries, each of which begins at its own token
                left = solve(gates.mT * met, rest * seen)
            else:  # a query's own: what it does not see reflects nothing
                gates = gates * (seen & mask[..., start:stop, :end])
                left = solve(gates[..., None] * met[:, :, None], rest[..., None, :]).squeeze(-2)
            return -(left * gates) @ (ways @ keys[:, :, :end].mT).tril(-1) / math.sqrt(width)

        with torch.autocast(q.device.type, enabled=False):
            held = HELD if mask is None else HELD + 3 * known
            return by_query_rows(block, length, known, held * batch * heads)

    masked_bias = bias


def solve(below: Tensor, right: Tensor) -> Tensor:
    """x (..., n, T) with x (1 + ``below``) = ``right``, where ``below`` (..., T, T) is strictly
    lower triangular."""
    x: Tensor = torch.linalg.solve_triangular(
        below, right, upper=False, left=False, unitriangular=True
    )
    return x
