"""iRoPE: applies RoPE in three of four layers, and a temperature instead in every fourth.

    layer l rotates unless (l + 1) mod 4 = 0:   q, k <- RMS-normalised, then RoPE (theta = 500,000)
    the others:   logits of query p times  1 + a ln(1 + floor((p + 1) / F)),   a = 0.1, F = 8192

p is the position of the query, so the temperature grows with the length of the context. This is
RoPE (arXiv:2104.09864) in the schedule of Llama 4, as in transformers' code, with layout
interleaved. Llama 4 normalises after the rotation, and this code before it. A rotation keeps
lengths, so the results are equal, except with a transform's magnitude (YaRN's m), which a
normalisation after the rotation would remove.

iRoPE learns nothing, costs a normalisation more than RoPE in the layers that rotate, and works at
any position. Each layer has an instance, which knows its layer from ``layer_index``.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pe.encodings.core.checks import UNSET, at_least
from pe.encodings.core.frequencies import Frequencies, FrequencyTransform
from pe.encodings.core.registry import register
from pe.encodings.rope import RoPE


@register("irope", title="iRoPE", paper="2104.09864", family="rotary")
class IRoPE(RoPE):
    """One layer of Llama 4's schedule.

    Args:
        layer_index: number of the layer, from 0.
        nope_every: n; layers n-1, 2n-1, ... do not rotate.
        floor_scale: F in tokens, 8192 by default.
        attn_scale: a.
        qk_norm: whether queries and keys are normalised before they are rotated.
        norm_eps: added to the mean square in the normalisation, 1e-5 by default.
    """

    per_layer = True

    def __init__(
        self,
        head_dim: int,
        layer_index: int = 0,
        theta: float = 500000.0,
        layout: str = "interleaved",
        nope_every: int = 4,
        floor_scale: int = UNSET,
        attn_scale: float = 0.1,
        qk_norm: bool = True,
        norm_eps: float = UNSET,
        transforms: Sequence[FrequencyTransform] = (),
    ) -> None:
        at_least("nope_every", nope_every, 2)
        self.rotating = (layer_index + 1) % nope_every != 0
        # In the other layers a transform that learns would never get a gradient.
        super().__init__(head_dim, theta, layout, transforms=transforms if self.rotating else ())
        if attn_scale == 0 and floor_scale is not UNSET:
            raise ValueError("floor_scale: with attn_scale 0 it has no effect; leave it out")
        if not qk_norm and norm_eps is not UNSET:
            raise ValueError("norm_eps: without qk_norm it has no effect; leave it out")
        floor_scale = 8192 if floor_scale is UNSET else floor_scale
        norm_eps = 1e-5 if norm_eps is UNSET else norm_eps
        self.floor_scale = at_least("floor_scale", floor_scale, 1)
        self.attn_scale = at_least("attn_scale", attn_scale, 0.0)
        self.norm_eps = at_least("norm_eps", norm_eps, 0.0) if qk_norm else None
        if not self.rotating:
            self.relative = attn_scale == 0

    def select_frequencies(self, spectrum: Frequencies) -> Frequencies:
        return spectrum if self.rotating else spectrum._replace(inv_freq=spectrum.inv_freq[:0])

    def _rotate(self, x: Tensor, tables: Any) -> Tensor:
        return super()._rotate(self._normalised(x), tables).to(x.dtype) if self.rotating else x

    def _normalised(self, x: Tensor) -> Tensor:
        if self.norm_eps is None:
            return x
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return wide * (wide.square().mean(-1, keepdim=True) + self.norm_eps).rsqrt()

    def logit_scale(self, q_positions: Tensor) -> Tensor | None:
        if self.rotating or self.attn_scale == 0:
            return None
        steps = (q_positions + 1) // self.floor_scale  # integers, so exact at any position
        scale = 1.0 + self.attn_scale * steps.to(torch.float64).log1p()
        return scale[..., None, :]  # (B, 1, T) or (1, T), float64; the caller rounds it
