"""xPos: rotates as RoPE does and scales each pair of channels down with the distance.

    q_p <- R_p q zeta^((p - c) / B),    k_s <- R_s k zeta^-((s - c) / B)
    zeta_i = (2i/d + gamma) / (1 + gamma),   gamma = 0.4,  B = 512,  c the middle of the sequence

q_p is a query at position p, k_s a key at position s and R_p the rotation of RoPE. In the logit,
pair i is multiplied by zeta_i^((p - s) / B), which is at most 1 for the keys that a decoder sees.
The fastest pairs fall most.

Sun et al. 2022 (arXiv:2212.10554), with layout interleaved as in torchscale. The centre c cancels
in the logit and keeps the factors small. It moves as the sequence grows, so keys are cached before
rotation. Over L positions the two factors together reach e^(0.00245 L) for B = 512, which must not
overflow. One centre therefore serves 24,521 positions (4,495 in float16, 245,217 in float64). A
longer sequence is split into chunks of that many positions, each with a centre, and queries and
keys become wider by the number of chunks.

xPos learns nothing and costs the same as RoPE times the number of chunks. It works at any position.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pe.encodings.core.base import Lengths, Prepared
from pe.encodings.core.checks import positive
from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE

# The product of a query's and a key's factor may reach e to this power. The largest number is 3e38
# in float32 and 65,504 in float16, and the queries and keys themselves need room below it.
ROOM = {torch.float64: 600.0, torch.float16: 11.0}
ROOM_ELSE = 60.0

Table = tuple[Tensor, Tensor]


@torch.library.custom_op("pe::powers", mutates_args=())
def powers(offset: Tensor, rate: Tensor, dtype: torch.dtype) -> Tensor:
    """Return exp(offset x rate), computed in float64: (..., T) and (F,) -> (..., T, F).

    One opaque operator for torch.compile, as `cos_sin` is.
    """
    return (offset.to(torch.float64)[..., None] * rate).exp().to(dtype)


@powers.register_fake
def _(offset: Tensor, rate: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty((*offset.shape, rate.shape[-1]), dtype=dtype, device=offset.device)


def _times(phase: Table, factor: Tensor) -> Table:
    factor = factor[None, None] if factor.dim() == 2 else factor[:, None]
    return phase[0] * factor, phase[1] * factor


def _span(spans: Tensor, length: int, width: int) -> int:
    """Return the largest number of positions from a row's first to its last, or a bound of it."""
    if not spans.numel():
        return 1
    if not torch.compiler.is_compiling():
        return int(spans.max())
    # A compiled graph has a fixed number of chunks, enough for positions without gaps.
    chunks = max(-(-length // width), 1)
    torch._assert_async(
        spans.max() <= chunks * width,
        "xpos: positions with gaps reach further than a compiled graph provides for; do not "
        "compile the model for them",
    )
    return length


@register("xpos", title="xPos", paper="2212.10554", family="rotary")
class XPos(RoPE):
    """RoPE with relative exponential decay.

    Args:
        scale_base: B in tokens.
        gamma: the larger, the weaker the decay.
    """

    rate: Tensor

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "interleaved",
        scale_base: float = 512.0,
        gamma: float = 0.4,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        self.scale_base = positive("scale_base", scale_base)
        self.gamma = positive("gamma", gamma)
        super().__init__(head_dim, theta, layout, transforms=transforms)

    @property
    def raw_keys(self) -> bool:
        return True

    def exact_buffers(self) -> dict[str, Tensor]:
        share = torch.arange(0, self.rotary_dim, 2, dtype=torch.float64, device="cpu")
        zeta = (share / self.rotary_dim + self.gamma) / (1 + self.gamma)
        return super().exact_buffers() | {"rate": zeta.log() / self.scale_base}

    def chunk(self, dtype: torch.dtype) -> int:
        """Return the number of positions that one centre serves."""
        fastest = math.log((1 + self.gamma) / self.gamma) / self.scale_base
        return max(int(ROOM.get(dtype, ROOM_ELSE) / fastest), 1)

    def prepare(
        self,
        q_positions: Tensor,
        k_positions: Tensor,
        dtype: torch.dtype = torch.float32,
        lengths: Lengths | None = None,
    ) -> Prepared:
        q_phase, k_phase = super().prepare(q_positions, k_positions, dtype, lengths).tables
        width = self.chunk(dtype)
        first = k_positions.amin(-1, keepdim=True)
        spans = k_positions.amax(-1, keepdim=True) + 1 - first
        chunks = max(-(-_span(spans, k_positions.shape[-1], width) // width), 1)
        # For a row that begins at 0 this is torchscale's centre, -floor(-L/2).
        middle = first + (spans + 1) // 2
        of_q, of_k = (
            ((p - middle) / width + chunks / 2).floor().clamp(0, chunks - 1)
            for p in (q_positions, k_positions)
        )
        q_tables, k_tables = [], []
        for index in range(chunks):
            centre = middle + (index - (chunks - 1) / 2) * width
            # A key belongs to one chunk. A query attends to its own chunk and earlier ones. The
            # clamps change masked entries only and keep them finite.
            ahead = (q_positions - centre).clamp(min=-width / 2)
            behind = (k_positions - centre).clamp(max=width / 2)
            q_factor = powers(ahead, self.rate, q_phase[0].dtype) * (of_q >= index)[..., None]
            k_factor = powers(behind, -self.rate, k_phase[0].dtype) * (of_k == index)[..., None]
            q_tables.append(_times(q_phase, q_factor))
            k_tables.append(_times(k_phase, k_factor))
        return Prepared(q_positions, k_positions, (q_tables, k_tables))

    def _rotate(self, x: Tensor, tables: Any) -> Tensor:
        rotated = [super(XPos, self)._rotate(x, table) for table in tables]
        return rotated[0] if len(rotated) == 1 else torch.cat(rotated, dim=-1)
