"""Partial RoPE: rotates the first channels of a head and leaves the others without position.

    r = d * fraction, an even number;  channels 0 .. r-1 are rotated as a head of width r would be
    w_i = theta^(-2i/r),  i = 0 .. r/2-1;   channels r .. d-1 pass through

w_i is the frequency of pair i and theta the base. This is RoPE (arXiv:2104.09864) as in GPT-J and
GPT-NeoX. The frequencies still span 1 .. 1/theta, but there are fewer of them. Layout ``half``
pairs channel i with i + r/2 (GPT-NeoX, Phi), and ``interleaved`` pairs 2i with 2i + 1 (GPT-J).

Partial RoPE learns nothing, costs less than RoPE in proportion to r, and works at any position.
"""

from collections.abc import Sequence

from pe.encodings.core.frequencies import FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("partial", title="Partial RoPE", paper="2104.09864", family="rotary")
class PartialRoPE(RoPE):
    """RoPE on the share ``rotary_fraction`` of the channels, a quarter by default."""

    def __init__(
        self,
        head_dim: int,
        theta: float = 10000.0,
        layout: str = "half",
        rotary_fraction: float = 0.25,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        super().__init__(head_dim, theta, layout, rotary_fraction, transforms)
