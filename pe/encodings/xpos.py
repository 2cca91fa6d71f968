"""xPos: RoPE whose pairs also shrink with distance, the fast ones most.

    q_p <- R_p q zeta^((p - c) / B),    k_s <- R_s k zeta^-((s - c) / B)
    zeta_i = (2i/d + gamma) / (1 + gamma),   gamma = 0.4,  B = 512,  c the middle of the sequence

so that pair i of the logit carries zeta_i^((p - s) / B): at most 1 for keys that a decoder sees.
Sun et al. 2022 (arXiv:2212.10554), pairing interleaved as in torchscale. Learns nothing.

The centre c cancels in the logit and only keeps the factors small. It moves as the sequence grows,
so keys are cached unrotated. Over L positions the two factors together reach e^(0.00245 L) for
B = 512, which must not overflow: one centre serves 24,521 positions (4,495 in float16, 245,217 in
float64). A longer sequence is cut into chunks of that many positions, each with its centre; queries
and keys become as many times wider.
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

# What the product of a query's and a key's factor may reach, as a power of e. Queries and keys of
# any size need some room below the largest number, 3e38 in float32 and 65,504 in float16.
ROOM = {torch.float64: 600.0, torch.float16: 11.0}
ROOM_ELSE = 60.0

Table = tuple[Tensor, Tensor]


@torch.library.custom_op("pe::powers", mutates_args=())
def powers(offset: Tensor, rate: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(offset x rate) in float64, (..., T) and (F,) -> (..., T, F); opaque, as `cos_sin` is."""
    return (offset.to(torch.float64)[..., None] * rate).exp().to(dtype)


@powers.register_fake
def _(offset: Tensor, rate: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty((*offset.shape, rate.shape[-1]), dtype=dtype, device=offset.device)


def _times(phase: Table, factor: Tensor) -> Table:
    factor = factor[None, None] if factor.dim() == 2 else factor[:, None]
    return phase[0] * factor, phase[1] * factor


def _span(spans: Tensor, length: int, width: int) -> int:
    """The largest of the spans from a row's first position to its last, or what bounds it."""
    if not spans.numel():
        return 1
    if not torch.compiler.is_compiling():
        return int(spans.max())
    # A graph has a fixed number of chunks: as many as positions without gaps take.
    chunks = max(-(-length // width), 1)
    torch._assert_async(
        spans.max() <= chunks * width,
        "xpos: positions with gaps reach further than a compiled graph provides for; do not "
        "compile the model for them",
    )
    return length


@register("xpos", title="xPos", paper="2212.10554", family="rotary")
class XPos(RoPE):
    """RoPE with relative exponential decay."""

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
        """Tokens that one centre serves."""
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
        # torchscale's centre of a row that begins at 0: -floor(-L/2)
        middle = first + (spans + 1) // 2
        of_q, of_k = (
            ((p - middle) / width + chunks / 2).floor().clamp(0, chunks - 1)
            for p in (q_positions, k_positions)
        )
        q_tables, k_tables = [], []
        for index in range(chunks):
            centre = middle + (index - (chunks - 1) / 2) * width
            # A key belongs to one chunk. A query looks at its own and at those before it. What
            # the clamps change is masked; they keep it finite.
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
