"""FoX: every token says how much of the past to forget, and penalties add up along the way.

    f_h(l) = sigmoid(w_h . x_l + beta_h)            x: the layer's input
    b_h(i, j) = sum_{l=j+1..i} ln f_h(l)            0 for the token itself

Lin, Nikishin, He, Courville 2025 (arXiv:2503.02130), the forgetting transformer. Learns a linear
map from the layer's input to one gate per head, in each layer. With all gates equal it is ALiBi.
Any position, and no other encoding needed. The authors begin at w ~ N(0, 0.02), beta = 0: every
gate is about 1/2, a slope of ln 2 in all heads; ``gate_bias`` begins elsewhere.

b is C_i - C_j with C the running sum of ln f. The sum is taken in float64 and handed on as a pair
of float32 numbers, so that far into a sequence neighbours still differ by what their gates say.
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
"""About how many float32 numbers a block holds for each head, query and key."""


@register("fox", title="FoX", paper="2503.02130", family="bias")
class FoX(Encoding):
    """Forget gates that depend on the data; one for each head and layer."""

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
        # Bare parameters: transformers draws every nn.Linear it finds by another rule.
        self.weight = nn.Parameter(torch.empty(num_heads, hidden_size))
        self.beta = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        self.weight.normal_(0.0, self.gate_std, generator=generator)
        self.beta.fill_(self.gate_bias)

    def key_state(self, x: Tensor) -> Tensor:
        """ln f of each token and head, (B, H, T, 1)."""
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
        """(B, H, Tq, Tk), float32; float64 where the gates are."""
        self.refuse_misfit(q, k, q_positions)
        total = self._total(state)  # (B, H, Tk)
        assert state is not None
        whole = total.detach().to(state.dtype)
        rest = (total - whole).to(state.dtype)  # what rounding took, and the path of the gradient
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
        """The gates of hidden tokens are left out, so a sum for each query and key."""
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
        """C_i - C_j: one number per key."""
        return by_key(-self._total(state))

    @classmethod
    def _total(cls, state: Tensor | None) -> Tensor:
        """C, (B, H, T) float64."""
        return running_sum(cls._gates(state))

    @staticmethod
    def _gates(state: Tensor | None) -> Tensor:
        """ln f, (B, H, T) float64."""
        if state is None:
            raise ValueError(
                "fox takes its gates from the layer's input: pass layer_input to pe.attend, or "
                "state=key_state(x) to bias"
            )
        return state[..., 0].double()


def running_sum(x: Tensor) -> Tensor:
    """Sums of the last axis up to and with each entry, (..., T) as ``x``: a cumsum.

    By products with triangles of ones, `CHUNK` numbers at a time, then the sums of the chunks.
    torch's scan on a GPU adds in an order that may change from run to run, and its compiler (2.11)
    fails where it merges a scan with what comes before it.
    """
    length = x.shape[-1]
    chunks = pad(x, (0, -length % CHUNK)).unflatten(-1, (-1, CHUNK))
    sums = chunks @ x.new_ones(CHUNK, CHUNK).triu()
    if length > CHUNK:
        before = running_sum(sums[..., :-1, -1])
        sums = sums + pad(before, (1, 0))[..., None]
    total: Tensor = sums.flatten(-2)[..., :length]
    return total
