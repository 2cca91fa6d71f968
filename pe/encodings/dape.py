"""DAPE: corrects each logit by a small network of all heads' logits and biases.

    z'(m, n) = z + b + f([z, b]),     f(u) = W2 leaky_relu(W1 u + c1) + c2

z = q k / sqrt(d) holds the logits of query m and key n and b their biases, one number per head. The
network f maps these 2H numbers to H corrections, so a bias depends on the content and on the other
heads. b is a bias of the distance: KERPLE's logarithm with its learned parameters, with which the
authors report their best results, or ALiBi.

Zheng et al. 2024 (arXiv:2405.14722). f has 32 hidden units, as in the authors' code, and the
initial values of torch's linear layers. The initial model thus has a random bias that depends on
the content. This is the first version; DAPE V2 (arXiv:2410.04798) lets f see neighbouring keys too.

DAPE learns f and the parameters of b in each layer. It costs 3 W H multiplications per query and
key for W hidden units. The kernels in `pe.attention.kernels.dape` compute f in registers. Elsewhere
intermediate results are computed in blocks of query rows. It works at any position.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from pe.encodings.alibi import ALiBi
from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least, choice
from pe.encodings.core.distance import DistanceBias, distances
from pe.encodings.core.forms import HEADS, Form, by_heads
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register
from pe.encodings.kerple import KerpleLog

MOST_HEADS, MOST_UNITS = 32, 32
"""The largest network for which the kernels have registers."""
PRIORS: dict[str, type[KerpleLog] | type[ALiBi]] = {"kerple_log": KerpleLog, "alibi": ALiBi}


@register("dape", title="DAPE", paper="2405.14722", family="bias")
class DAPE(Encoding):
    """Data-adaptive positional encoding on top of a bias of the distance.

    Args:
        prior: the bias b, ``kerple_log`` or ``alibi``.
        mlp_width: hidden units W of f.
    """

    content_dependent = True
    per_layer = True
    form_kind = HEADS
    mixes_heads = True

    def __init__(self, num_heads: int, prior: str = "kerple_log", mlp_width: int = 32) -> None:
        super().__init__()
        self.num_heads = num_heads
        width = at_least("mlp_width", mlp_width, 1)
        self.prior: DistanceBias = PRIORS[choice("prior", prior, PRIORS)](num_heads)
        # Not nn.Linear, because transformers initialises every nn.Linear by its own rule.
        self.hidden_weight = nn.Parameter(torch.empty(width, 2 * num_heads))
        self.hidden_bias = nn.Parameter(torch.empty(width))
        self.head_weight = nn.Parameter(torch.empty(num_heads, width))
        self.head_bias = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.prior.reset_parameters(generator)
        for weight, offset in (
            (self.hidden_weight, self.hidden_bias), (self.head_weight, self.head_bias)
        ):  # fmt: skip
            most = 1 / math.sqrt(weight.shape[1])
            weight.uniform_(-most, most, generator=generator)
            offset.uniform_(-most, most, generator=generator)

    def network(self, logits: Tensor, prior: Tensor) -> Tensor:
        """Return f of logits and biases, each (B, H, Tq, Tk) -> (B, H, Tq, Tk)."""
        kind = logits.dtype
        heads = torch.cat((logits, prior.expand_as(logits)), 1).movedim(1, -1)
        hidden = linear(heads, self.hidden_weight.to(kind), self.hidden_bias.to(kind))
        values = linear(leaky_relu(hidden), self.head_weight.to(kind), self.head_bias.to(kind))
        return values.movedim(-1, 1)

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return b + f, (B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        batch, heads, length, width = q.shape
        known = k.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)
        # Query heads that share a key head are multiplied together.
        grouped = q.to(wide).view(batch, k.shape[1], -1, length, width)
        keys = k.to(wide)[:, :, None].transpose(-1, -2) / math.sqrt(width)

        def block(start: int, stop: int) -> Tensor:
            seen = known - length + stop
            logits = (grouped[..., start:stop, :] @ keys[..., :seen]).flatten(1, 2)
            distance = distances(q_positions[..., start:stop], k_positions[..., :seen])
            prior = self.prior.distance_bias(distance).to(wide)
            prior = prior[None] if prior.dim() == 3 else prior.transpose(0, 1)
            return prior + self.network(logits, prior)

        with torch.autocast(q.device.type, enabled=False):
            held = batch * (6 * heads + 2 * self.hidden_bias.numel())
            return by_query_rows(block, length, known, held)

    @property
    def has_form(self) -> bool:
        heads, units = self.head_weight.shape
        return heads <= MOST_HEADS and units <= MOST_UNITS

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        table = self.prior.distance_bias(torch.arange(length, device=device))
        # c2 adds the same number to all logits of a query, which the softmax ignores. It is used
        # here only so that it has a gradient, which is 0.
        table = table + 0.0 * self.head_bias[:, None]
        return by_heads(table, self.hidden_weight, self.hidden_bias, self.head_weight)
