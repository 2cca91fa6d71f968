"""Clamping of parameters, with a gradient that can lead them back from the bound."""

from typing import Any

import torch
from torch import Tensor


class Clamp(torch.autograd.Function):
    """Clamps to [low, high]. Its gradient is 0 only if a descent step would lead further out."""

    generate_vmap_rule = True  # `pe.tasks.measure.many` trains several models at once

    @staticmethod
    def forward(x: Tensor, low: float, high: float) -> Tensor:
        return x.clamp(low, high)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float, float], output: Tensor) -> None:
        x, low, high = inputs
        ctx.save_for_backward(x)
        ctx.bounds = low, high

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        outward = ((x >= high) & (gradient < 0)) | ((x <= low) & (gradient > 0))
        return gradient.masked_fill(outward, 0.0), None, None


clamped = Clamp.apply
"""``x`` clamped to [low, high]. With torch.clamp, a value outside never gets a gradient again."""
