"""Partial RoPE: rotate the first channels of a head, leave the others without position.

    r = d * fraction, an even number;  channels 0 .. r-1 are rotated as a head of width r would be
    w_i = theta^(-2i/r),  i = 0 .. r/2-1;   channels r .. d-1 pass through

RoPE (arXiv:2104.09864) as GPT-J and GPT-NeoX use it. The spectrum still spans 1 .. 1/theta, with
fewer frequencies in between. Of the pairings, `half` pairs channel i with i + r/2 (GPT-NeoX, Phi),
`interleaved` 2i with 2i + 1 (GPT-J). Learns nothing; any position; fewer multiply-adds than RoPE.
"""

from collections.abc import Sequence

from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("partial", title="Partial RoPE", paper="2104.09864", family="rotary")
class PartialRoPE(RoPE):
    """RoPE on a quarter of the channels, unless another fraction is given."""

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 0.25,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        super().__init__(head_dim, theta, layout, rotary_fraction, transforms)
