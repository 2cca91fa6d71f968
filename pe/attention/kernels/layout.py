"""The layouts in memory that kernels read and write."""

from __future__ import annotations

from torch import Tensor

from pe.encodings.core.rotation import tokens_first

__all__ = ["contiguous_last_dim", "strides_of", "tokens_first"]


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Return the strides of batch, head and token of (B, H, T, D), which kernels take."""
    return x.stride(0), x.stride(1), x.stride(2)


def contiguous_last_dim(x: Tensor) -> Tensor:
    """Return ``x``, or a copy if the channels of a token are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
