"""Whether queries and keys are turned by kernels of ours (`pe.attention.kernels.rotary`)."""

from __future__ import annotations

import torch
from torch import Tensor


def by_kernel(x: Tensor, *tables: Tensor) -> bool:
    """On a GPU, in 16 bits, with tables that learn nothing and a power of two of entries a token.

    Everywhere else torch does it, by the formula that stands with the encoding.
    """
    if not x.is_cuda or x.dtype not in (torch.bfloat16, torch.float16) or x.numel() == 0:
        return False
    width = tables[0].shape[-1]
    if width & (width - 1) or any(t.requires_grad or t.dtype != torch.float32 for t in tables):
        return False
    from pe.attention.choose import missing  # brings the encodings, which bring this file

    return missing(x.device) is None
