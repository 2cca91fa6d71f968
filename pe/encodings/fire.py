"""FIRE: adds a learned function of the distance relative to the query's position to the logits.

    b_h(m, n) = f_h( psi(m - n) / (psi(max(m, |eta L|)) + eps) ),    psi(x) = ln(1 + |c x|)
    f(u) = W2 relu(W1 u + b1) + b2,    u in [0, 1]

b_h is added to the logit of query m and key n in head h. |eta L| is the threshold: up to it the
bias depends on the distance alone. Beyond it the divisor depends on the query, so the bias is no
function of the distance and one query's row cannot be used for another.

Li et al. 2023 (arXiv:2310.04418). L is a constant, and eta is learned. The paper's listing has
L = 512 for every training length. Here L is the smaller of 512 and the training length, because no
query of a shorter training would reach the threshold.

FIRE learns c, eta and the network f (32 hidden units, one output per head) in each layer. It costs
32 (H + 1) multiplications per query and key in each layer with H heads. It works at any position,
since the input u of the network stays between 0 and 1.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least, positive
from pe.encodings.core.distance import distances
from pe.encodings.core.forms import Form
from pe.encodings.core.forms import fire as fire_form
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

AUTHORS_THRESHOLD = 512


@register("fire", title="FIRE", paper="2310.04418", family="bias", encoding_rate=10)
class FIRE(Encoding):
    """Functional interpolation for relative position encoding.

    Args:
        original_length: training length in tokens.
        mlp_width: hidden units of f.
        c: the initial value of c.
        threshold: L in tokens; by default the smaller of 512 and ``original_length``.
        eps: added to the divisor, so that it is never 0.
    """

    relative = False
    per_layer = True

    def __init__(
        self,
        num_heads: int,
        original_length: int | None = None,
        mlp_width: int = 32,
        c: float = 0.1,
        threshold: float | None = None,
        eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        if threshold is None:
            threshold = min(AUTHORS_THRESHOLD, original_length or AUTHORS_THRESHOLD)
        self.threshold = positive("threshold", threshold)
        self.initial_c, self.eps = positive("c", c), positive("eps", eps)
        width = at_least("mlp_width", mlp_width, 1)
        self.c = nn.Parameter(torch.empty(1))
        self.multiplier = nn.Parameter(torch.empty(1))
        # Not nn.Linear, because transformers initialises every nn.Linear by its own rule.
        self.hidden_weight = nn.Parameter(torch.empty(width, 1))
        self.hidden_bias = nn.Parameter(torch.empty(width))
        self.head_weight = nn.Parameter(torch.empty(num_heads, width))
        self.head_bias = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.c.fill_(self.initial_c)
        self.multiplier.fill_(1.0)
        # The ranges in which torch initialises linear layers.
        bound = 1 / math.sqrt(self.head_weight.shape[1])
        for parameter, most in (
            (self.hidden_weight, 1.0), (self.hidden_bias, 1.0),
            (self.head_weight, bound), (self.head_bias, bound),
        ):  # fmt: skip
            parameter.uniform_(-most, most, generator=generator)

    def share(self, q_positions: Tensor, k_positions: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the input u of the network for each query and key, (Tq, Tk) or (B, Tq, Tk)."""
        c, multiplier = self.c.to(dtype), self.multiplier.to(dtype)
        reach = torch.maximum(q_positions.to(dtype), (multiplier * self.threshold).abs())
        whole = (c * reach).abs().log1p() + self.eps
        return (c * distances(q_positions, k_positions)).abs().log1p() / whole[..., None]

    def network(self, share: Tensor) -> Tensor:
        """Return f of u: (...) -> (H, ...)."""
        hidden = self.hidden_weight.to(share.dtype) * share.flatten()
        hidden = (hidden + self.hidden_bias.to(share.dtype)[:, None]).relu()  # (width, n)
        values = self.head_weight.to(share.dtype) @ hidden
        values = values + self.head_bias.to(share.dtype)[:, None]
        return values.view(-1, *share.shape)

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return b, (1 or B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        q_length, k_length = q_positions.shape[-1], k_positions.shape[-1]
        rows = torch.broadcast_shapes(q_positions.shape[:-1], k_positions.shape[:-1]).numel()

        def block(start: int, stop: int) -> Tensor:
            seen = k_positions[..., : k_length - q_length + stop]
            values = self.network(self.share(q_positions[..., start:stop], seen, dtype))
            return values[None] if values.dim() == 3 else values.transpose(0, 1)

        with torch.autocast(q.device.type, enabled=False):
            width = rows * (2 * self.hidden_bias.numel() + self.head_bias.numel())
            return by_query_rows(block, q_length, k_length, width)

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        """Return f as an interpolated table, whose error `pe.encodings.core.forms.fire` gives."""
        return fire_form(
            self.c, self.multiplier, self.hidden_weight, self.hidden_bias, self.head_weight,
            self.head_bias, self.threshold, self.eps, length,
        )  # fmt: skip
