"""Keeping a learned number inside an interval without trapping it on the edge."""

from typing import Any

import torch
from torch import Tensor


class Clamp(torch.autograd.Function):
    """Clamp whose gradient is stopped only where a descent step would lead further out."""

    generate_vmap_rule = True  # for several models at a time, `pe.tasks.measure.many`

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
"""``x`` in [low, high]. torch's own clamp gives what lies outside no gradient ever again."""
