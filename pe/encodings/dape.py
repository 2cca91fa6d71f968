"""DAPE: a small network looks at all heads' logits and biases, and adds what it makes of them.

    z'(i, j) = z + b + f([z, b]),     f(u) = W2 leaky_relu(W1 u + c1) + c2

z = q k / sqrt(d) and b hold one number per head for this query and key, so that f maps 2H numbers
to H: a bias that depends on the content, and on the other heads'. b is a bias of the distance,
learned along with f: KERPLE's logarithm, with which the authors have their best results, or ALiBi.

Zheng et al. 2024 (arXiv:2405.14722). Learns f, with 32 hidden units as in the authors' code, and
KERPLE's two numbers per head, in each layer. f starts as torch starts linear layers, so a model
begins with a random, content-dependent bias. With DAPE V2 (arXiv:2410.04798) f would look at
neighbouring keys as well; this is the first version.

A reference: 3 W H multiplications for each query and key, W the hidden width, and no kernel that
would save the T^2 numbers per head. Intermediate results are held a block of query rows at a time.
Any position.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

from pe.encodings.alibi import ALiBi
from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least, choice
from pe.encodings.core.distance import DistanceBias, distances
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register
from pe.encodings.kerple import KerpleLog

PRIORS: dict[str, type[KerpleLog] | type[ALiBi]] = {"kerple_log": KerpleLog, "alibi": ALiBi}


@register("dape", title="DAPE", paper="2405.14722", family="bias")
class DAPE(Encoding):
    """Data-adaptive positional encoding over a bias of the distance.

    Options: ``prior``, b, ``kerple_log`` or ``alibi``; ``mlp_width``, hidden units of f.
    """

    content_dependent = True
    per_layer = True
    mixes_heads: ClassVar[bool] = True

    def __init__(self, num_heads: int, prior: str = "kerple_log", mlp_width: int = 32) -> None:
        super().__init__()
        self.num_heads = num_heads
        width = at_least("mlp_width", mlp_width, 1)
        self.prior: DistanceBias = PRIORS[choice("prior", prior, PRIORS)](num_heads)
        # Bare parameters: transformers draws every nn.Linear it finds by another rule.
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
        """f of the heads' logits and biases, (B, H, Tq, Tk) each -> the same."""
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
        """(B, H, Tq, Tk), float32; float64 where the queries are."""
        self.refuse_misfit(q, k, q_positions)
        batch, heads, length, width = q.shape
        known = k.shape[-2]
        wide = torch.promote_types(q.dtype, torch.float32)
        # The heads that share a key in a row.
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
