"""CoPE: measures the distance of a key by how many tokens between it and the query are counted.

    g(m, t) = sigmoid(q_m . k_t / sqrt(d))          does the query count token t?
    p(m, n) = min( sum_{t=n..m} g(m, t),  npos - 1 )
    b(m, n) = q_m . e(p(m, n)) / sqrt(d)            e: a table, interpolated between its rows

g is the gate of token t for query m, p(m, n) the contextual position of key n, and b is added to
the logit. The gates depend on the order of the tokens and not on their position numbers: a query
never counts a key ahead of it, nor a key that is hidden from it.

Golovneva, Wang, Weston, Sukhbaatar 2024 (arXiv:2405.18719). The authors' code divides b by sqrt(d)
as here; the paper's listing does not (``divide=False``). As in the authors' code, npos is the
training length plus one unless it is given.

CoPE learns a table of npos x d numbers per layer, shared by the heads. It begins at zero, so that
the initial model has no encoding. CoPE works at any position, but counts of npos - 1 and more share
one row. Its bias depends on the logits of all keys in between, which torch's fused attention cannot
express. The kernel in `pe.attention.kernels.cope.forward` goes from each query to the left and
counts as it goes.
"""

import math

import torch
from torch import Tensor, nn

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.forms import COUNTS, Form, by_count
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

HELD = 10
"""Approximate count of numbers that a block holds per head, query and key."""


@register("cope", title="CoPE", paper="2405.18719", family="bias", encoding_rate=1)
class CoPE(Encoding):
    """Contextual position encoding with one table per layer.

    Args:
        original_length: training length in tokens; npos is one more unless it is given.
        npos: rows of the table.
        divide: whether the bias is divided by sqrt(d).
    """

    content_dependent = True
    form_kind = COUNTS
    per_layer = True

    def __init__(
        self,
        head_dim: int,
        original_length: int | None = None,
        npos: int | None = None,
        divide: bool = True,
    ) -> None:
        super().__init__()
        if npos is None:
            if original_length is None:
                raise ValueError("'cope' needs original_length, or the option npos")
            npos = original_length + 1
        self.head_dim = head_dim
        self.npos, self.divide = at_least("npos", npos, 2), divide
        self.table = nn.Parameter(torch.zeros(self.npos, head_dim))

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.table.zero_()

    def gates(self, q: Tensor, k: Tensor, first: int = 0, mask: Tensor | None = None) -> Tensor:
        """Return the gates g, (B, H, Tq, Tk), between 0 and 1.

        ``first`` is the index of the key that belongs to the first query. The gate is 0 for keys
        that come after a query or that ``mask`` hides from it.
        """
        batch, heads, q_length, width = q.shape
        grouped = q.reshape(batch, k.shape[1], -1, width)  # query heads that share a key head
        logits = (grouped @ k.transpose(-1, -2)).view(batch, heads, q_length, -1)
        seen = logits.new_ones(q_length, k.shape[-2], dtype=torch.bool).tril(first)
        seen = seen if mask is None else seen & mask
        return (logits / math.sqrt(width)).sigmoid() * seen

    def counts(self, gates: Tensor) -> Tensor:
        """Return p of each query and key: the sum of the gates from the key up to the query."""
        return gates.flip(-1).cumsum(-1).flip(-1).clamp(max=self.npos - 1)

    def read(self, q: Tensor, counts: Tensor) -> Tensor:
        """Return q . e(p), (B, H, Tq, Tk), interpolated between products of q with rows of e."""
        products = q @ self.table.to(q.dtype).t()  # (B, H, Tq, npos)
        below = counts.detach().long()
        above = (below + 1).clamp(max=self.npos - 1)
        return products.gather(-1, below).lerp(products.gather(-1, above), counts - below)

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return b, (B, H, Tq, Tk); float64 if the queries are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        wide = torch.promote_types(q.dtype, torch.float32)
        queries, keys = q.to(wide), k.to(wide)
        q_length, k_length = q.shape[-2], k.shape[-2]
        before = k_length - q_length

        def block(start: int, stop: int) -> Tensor:
            rows = queries[:, :, start:stop].contiguous()
            allowed = None if mask is None else mask[..., start:stop, : before + stop]
            gates = self.gates(rows, keys[:, :, : before + stop], before + start, allowed)
            values = self.read(rows, self.counts(gates))
            return values / math.sqrt(q.shape[-1]) if self.divide else values

        with torch.autocast(q.device.type, enabled=False):
            return by_query_rows(block, q_length, k_length, HELD * q.shape[0] * q.shape[1])

    masked_bias = bias

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        reachable = self.table[: length + 2]  # each gate is at most 1
        return by_count(reachable / math.sqrt(self.table.shape[-1]) if self.divide else reachable)
