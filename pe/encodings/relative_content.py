"""Relative logits from content: adds a function of the distance, which each query chooses.

    b_h(m, n) = a_hm . p_(m-n),     a_hm = W_h x_m,     0 from a distance of D on

b_h is added to the logit of query m and key n in head h. x_m is the layer's input, a_hm holds d_rel
numbers, and p_r is a learned vector for each of D distances, shared by the heads. The query thus
mixes d_rel learned profiles of the distance.

Products of content with vectors of the distance are from Shaw et al. 2018 (arXiv:1803.02155) and
Transformer-XL (Dai et al. 2019, arXiv:1901.02860). The projection W with d_rel = 16, D = 1,024 and
the absence of any other encoding are Inkling's, as in transformers' code. Its norm of queries and
keys, its scale 1/d and its temperature belong to its layers and are not part of this encoding. D is
the training length or the window if that is less, because larger distances would not be trained.

It learns d_rel (H hidden_size + D) numbers per layer with H heads. Kernels read a_hm . p_r for all
queries m and distances r < D, so memory grows with T D. It works at any position, but gives no
order beyond D.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from pe.encodings.core.base import Encoding
from pe.encodings.core.checks import at_least
from pe.encodings.core.distance import at_least_float32, distances
from pe.encodings.core.forms import ROWS, Form, by_query
from pe.encodings.core.registry import register

REACH = 1024


@register("relative_content", title="Relative content", paper="1901.02860", family="bias")
class RelativeContent(Encoding):
    """Content-dependent relative logits, which replace a rotation in Inkling.

    Args:
        hidden_size: width of the layer's input.
        original_length: training length in tokens.
        d_rel: numbers per token and head.
        reach: D; by default the smallest of 1,024, ``original_length`` and ``visible``.
        std: standard deviation of the initial weights.
        visible: number of the last keys that a query sees; None: all.
    """

    per_layer = True
    form_kind = ROWS

    def __init__(
        self,
        num_heads: int,
        hidden_size: int,
        original_length: int | None = None,
        d_rel: int = 16,
        reach: int | None = None,
        std: float = 0.02,
        visible: int | None = None,
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        if reach is None:
            reach = min(REACH, original_length or REACH, visible or REACH)
        self.reach = at_least("reach", reach, 1)
        self.state_size = at_least("d_rel", d_rel, 1)  # type: ignore[misc]
        self.std = at_least("std", std, 0.0)
        # Not nn.Linear, because transformers initialises every nn.Linear by its own rule.
        self.weight = nn.Parameter(torch.empty(num_heads * d_rel, hidden_size))
        self.profiles = nn.Parameter(torch.empty(d_rel, self.reach))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        for parameter in (self.weight, self.profiles):
            parameter.normal_(0.0, self.std, generator=generator)

    def key_state(self, x: Tensor) -> Tensor:
        """Return a of each token and head: (B, T, hidden) -> (B, H, T, d_rel)."""
        with torch.autocast(x.device.type, enabled=False):
            x = at_least_float32(x)
            mixed: Tensor = linear(x, self.weight.to(x.dtype)).unflatten(-1, (-1, self.state_size))
            return mixed.transpose(1, 2)

    def bias(
        self,
        q: Tensor,
        k: Tensor,
        q_positions: Tensor,
        k_positions: Tensor,
        state: Tensor | None = None,
    ) -> Tensor:
        """Return b, (B, H, Tq, Tk); float64 if the state is, otherwise float32."""
        self.refuse_misfit(q, k, q_positions)
        by_distance = self._by_distance(q.shape[-2], state)
        distance = distances(q_positions, k_positions)
        distance = distance[None, None] if distance.dim() == 2 else distance[:, None]
        near = distance.clamp(max=self.reach - 1).expand(*by_distance.shape[:-1], -1)
        return by_distance.gather(-1, near).masked_fill(distance >= self.reach, 0.0)

    def bias_form(self, length: int, device: torch.device, state: Tensor | None) -> Form:
        return by_query(self._mixed(length, state), self.profiles)

    def _by_distance(self, length: int, state: Tensor | None) -> Tensor:
        """a_hm . p_r for the last ``length`` tokens and all distances r < D, (B, H, length, D)."""
        mixed = self._mixed(length, state)
        with torch.autocast(mixed.device.type, enabled=False):
            return mixed @ self.profiles.to(mixed.dtype)

    def _mixed(self, length: int, state: Tensor | None) -> Tensor:
        """a_hm of the last ``length`` tokens, (B, H, length, d_rel)."""
        if state is None:
            raise ValueError(
                "relative_content computes its weights from the layer's input: pass layer_input to "
                "pe.attend, or state=key_state(x) to bias"
            )
        return state[..., state.shape[-2] - length :, :]
