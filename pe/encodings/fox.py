"""FoX: adds up the logarithms of forget gates, which depend on the tokens, between key and query.

    f_h(l) = sigmoid(w_h . x_l + beta_h)            x: the layer's input
    b_h(m, n) = sum_{l=n+1..m} ln f_h(l)            0 for the token itself

f_h(l) is the gate of token l in head h, and b_h is added to the logit of query m and key n. With
equal gates FoX is ALiBi. It needs no other encoding.

Lin, Nikishin, He, Courville 2025 (arXiv:2503.02130), the forgetting transformer. As in the authors'
code, w is drawn with a standard deviation of 0.02 and beta begins at 0. All gates are then about
1/2, which is a slope of ln 2 in every head. ``gate_bias`` sets another initial beta.

FoX learns hidden_size + 1 numbers per head and layer. It costs one small product per token and
works at any position. b is computed as C_m - C_n, where C is the running sum of ln f. C is summed
in float64 and split into two float32 numbers, so that the bias keeps its precision far into a
sequence.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, logsigmoid, pad

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32
from pe.encodings.core.forms import CHUNK, Form, by_key
from pe.encodings.core.query_rows import by_query_rows
from pe.encodings.core.registry import register

HELD = 8
"""Approximate count of float32 numbers that a block holds per head, query and key."""


@register("fox", title="FoX", paper="2503.02130", family="bias")
class FoX(Encoding):
    """Forget gates that depend on the data, one per token, head and layer.

    Args:
        hidden_size: width of the layer's input.
        gate_bias: the initial value of beta.
        gate_std: standard deviation of the initial w.
    """

    per_layer = True
    state_size = 1

    def __init__(
        self, num_heads: int, hidden_size: int, gate_bias: float = 0.0, gate_std: float = 0.02
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        if not math.isfinite(gate_bias):
            raise ValueError(f"gate_bias: expected a finite number, got {gate_bias!r}")
        self.gate_bias, self.gate_std = gate_bias, at_least("gate_std", gate_std, 0)
        # Not nn.Linear, because transformers initialises every nn.Linear by its own rule.
        self.weight = nn.Parameter(torch.empty(num_heads, hidden_size))
        self.beta = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.weight.normal_(0.0, self.gate_std, generator=generator)
        self.beta.fill_(self.gate_bias)

    def key_state(self, x: Tensor) -> Tensor:
        """Return ln f of each token and head: (B, T, hidden) -> (B, H, T, 1)."""
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_float32(x)
            logits = linear(x, self.weight.to(x.dtype), self.beta.to(x.dtype))
            return logsigmoid(logits).transpose(-1, -2)[..., None]

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return b, (B, H, Tq, Tk); float64 if the gates are, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        total = self._total(state)  # (B, H, Tk)
        assert state is not None
        whole = total.detach().to(state.dtype)
        rest = (total - whole).to(state.dtype)  # the rounding error; the gradient flows through it
        here = slice(state.shape[-2] - q.shape[-2], None)
        bias = whole[..., here, None] - whole[..., None, :]
        return bias.add_(rest[..., here, None]).sub_(rest[..., None, :])

    def masked_bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None,
        mask: Tensor,
    ) -> Tensor:
        """Return b without the gates of hidden tokens, which needs a sum per query and key."""
        self.refuse_misfit(q, k, q_positions)
        gates = self._gates(state)
        assert state is not None
        out, length, known = state.dtype, q.shape[-2], gates.shape[-1]
        before = known - length

        def block(start: int, stop: int) -> Tensor:
            seen = mask[..., start:stop, : before + stop]
            here = seen & seen.new_ones(seen.shape[-2:]).tril(before + start)
            total = running_sum(gates[:, :, None, : before + stop] * here)
            return (total[..., -1:] - total).to(out)

        return by_query_rows(block, length, known, HELD * gates.shape[0] * gates.shape[1])

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        """Return the spec of C_m - C_n, which is one number per key."""
        return by_key(-self._total(state))

    @classmethod
    def _total(cls, state: Tensor | None) -> Tensor:
        """Return C, (B, H, T) float64."""
        return running_sum(cls._gates(state))

    @staticmethod
    def _gates(state: Tensor | None) -> Tensor:
        """Return ln f, (B, H, T) float64."""
        if state is None:
            raise ValueError(
                "fox computes its gates from the layer's input: pass layer_input to pe.attend, or "
                "state=key_state(x) to bias"
            )
        return state[..., 0].double()


def running_sum(x: Tensor) -> Tensor:
    """Return the cumulative sum over the last axis, (..., T) -> (..., T).

    Multiplies chunks of `CHUNK` numbers by a triangle of ones and then adds the sums of the earlier
    chunks. torch's cumsum on a GPU adds in an order that may change from run to run, and
    torch.compile (2.11) fails when it fuses a cumsum with the operations before it.
    """
    length = x.shape[-1]
    chunks = pad(x, (0, -length % CHUNK)).unflatten(-1, (-1, CHUNK))
    sums = chunks @ x.new_ones(CHUNK, CHUNK).triu()
    if length > CHUNK:
        before = running_sum(sums[..., :-1, -1])
        sums = sums + pad(before, (1, 0))[..., None]
    total: Tensor = sums.flatten(-2)[..., :length]
    return total
