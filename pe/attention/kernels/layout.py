"""How tensors lie in memory, as the kernels read and write them."""

from __future__ import annotations

from torch import Tensor

from pe.encodings.core.rotation import tokens_first

__all__ = ["contiguous_last_dim", "strides_of", "tokens_first"]


def strides_of(x: Tensor) -> tuple[int, int, int]:
    """Strides of batch, head and token of (B, H, T, D), as a kernel is given them."""
    return x.stride(0), x.stride(1), x.stride(2)


def contiguous_last_dim(x: Tensor) -> Tensor:
    """``x``, copied if a token's channels are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()
