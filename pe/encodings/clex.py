"""CLEX: learns how RoPE's frequencies change with the length of the sequence.

    z(t) = ln w(t),  z(1) = ln w,  t = length / L0
    dz/dt = act((z + ln w_ntk(t)) U) D - (4i / (d-2)) / (2t - 1)
    ln w_ntk_i(t) = -(2i/d) ln b - (2i/(d-2)) ln(2t - 1)

w are RoPE's d/2 frequencies, i is the index of a frequency, L0 the training length and b the base.
U (d/2 x width d) and D (width d x d/2) are the learned matrices of a network with the activation
act. D begins at 0, and w(t) is then NTK-aware scaling by alpha = 2t - 1.

Chen, Li, Meng, Liang, Bing 2023 (arXiv:2310.16450), as in the authors' code. In evaluation, t is
ceil(L / L0) for a row of L tokens. In training, t is drawn from 1 .. max_factor, and the n tokens
of a row get random increasing positions between 0 and n t - 1. Short sequences thus train the
frequencies that long ones need.

CLEX learns width x d^2 numbers for the whole model. Each forward pass solves the equation once for
all layers and rows. It works up to max_factor L0 tokens.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from pe.encodings.core.checks import at_least, choice, positive
from pe.encodings.core.clex_ode import ACTIVATIONS, solve
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register


@register("clex", title="CLEX", paper="2310.16450", family="frequencies", encoding_rate=0.1)
class CLEX(FrequencyTransform):
    """RoPE's frequencies as the solution of a learned differential equation.

    Args:
        original_length: L0 in tokens.
        max_factor: the largest t.
        width: hidden units of the network, in multiples of d.
        act: its activation, ``tanh`` or ``silu``.
        steps: steps of the solver per unit of t; the authors take 100.
        time_base: b in the input of the network. The authors' code always has 10,000 there. None
            is RoPE's theta.
    """

    learns: ClassVar[bool] = True
    length_dependent = True
    up: Tensor
    down: Tensor

    def __init__(
        self,
        original_length: int,
        max_factor: int = 16,
        width: int = 1,
        act: str = "tanh",
        steps: int = 10,
        time_base: float | None = None,
    ) -> None:
        super().__init__()
        self.original_length = at_least("original_length", original_length, 1)
        self.max_factor = at_least("max_factor", max_factor, 1)
        self.width = at_least("width", width, 1)
        self.act = choice("act", act, ACTIVATIONS)
        self.steps = at_least("steps", steps, 1)
        self.time_base = None if time_base is None else positive("time_base", time_base)
        self.reach = self.max_positions = self.max_factor * self.original_length

    def attach(self, frequencies: Frequencies) -> None:
        dim = frequencies.dim
        if dim < 4:
            raise ValueError(
                f"rotated width {dim}: CLEX keeps the first frequency and slows the last, so it "
                "needs two; use a larger head_dim or rotary_fraction"
            )
        self.up = nn.Parameter(torch.empty(dim // 2, self.width * dim))
        self.down = nn.Parameter(torch.empty(self.width * dim, dim // 2))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw U uniformly within 1/sqrt(its columns), as in the authors' code, and set D to 0."""
        bound = 1 / math.sqrt(self.up.shape[1])
        self.up.uniform_(-bound, bound, generator=generator)
        self.down.zero_()

    def forward(self, frequencies: Frequencies, length: Tensor | None = None) -> Frequencies:
        inv_freq = frequencies.inv_freq
        if length is None:
            length = torch.tensor(self.original_length, device=inv_freq.device)
        if self.training:
            tokens = length.max()
            t = torch.randint(1, self.max_factor + 1, (), device=length.device)
            order = torch.randperm(self.original_length * self.max_factor**2, device=length.device)
            frequencies = frequencies._replace(
                warp=stretched(order, tokens, t, self.original_length, self.reach)
            )
        else:
            t = -(-length // self.original_length)
            t = t.clamp(1, self.max_factor)
        rows = self.table(frequencies, t.amax()).exp().index_select(0, t.reshape(-1) - 1)
        moved = rows.reshape(*t.shape[:-1], -1)  # (F,), (B, F) or (B, T, F)
        # At t = 1 the result is bit-identical to RoPE.
        return frequencies._replace(inv_freq=torch.where(t > 1, moved, inv_freq))

    def table(self, frequencies: Frequencies, last: Tensor) -> Tensor:
        """Solve for ln w(t), t = 1 .. max_factor, up to ``last``: (max_factor, F) float64."""
        start = frequencies.inv_freq.log()
        base = self.time_base or frequencies.theta
        pair = torch.arange(len(start), dtype=start.dtype, device=start.device)
        origin = -2 * pair / frequencies.dim * math.log(base)
        network = self.up.double(), self.down.double()
        solution: Tensor = solve(
            start, origin, *network, last, self.max_factor, self.steps, self.act
        )
        return solution


def stretched(order: Tensor, tokens: Tensor, t: Tensor, original: int, reach: int) -> Tensor:
    """Return the positions of the ``tokens`` tokens of a training sequence, (reach,) float64.

    Of n tokens, the first is at 0 and the last at n t - 1. The others are at the first n - 2
    numbers below n t - 2 in the permutation ``order``, plus 1, sorted. Positions of sequences of
    n >= 2 L0 tokens are divided by n // L0. Entries after the n-th have no meaning. All arguments
    are tensors, so that the CPU never waits for the device.
    """
    squeeze = (tokens // original).clamp(min=1)
    inside = order < tokens * t - 2
    taken = inside & (inside.cumsum(0) <= tokens - 2)
    drawn = torch.zeros_like(order).scatter(0, order, taken.to(order.dtype)).cumsum(0)
    token = torch.arange(reach, device=order.device)
    moved = (torch.searchsorted(drawn, token) + 1) / squeeze.to(torch.float64)
    moved = torch.where(token < tokens - 1, moved, (tokens * t // squeeze - 1).to(moved.dtype))
    return torch.where((token == 0) | (t == 1), token.to(moved.dtype), moved)
