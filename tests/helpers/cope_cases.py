"""Cases of CoPE for its kernels, and what they are compared with."""

from __future__ import annotations

from collections.abc import Callable

import kernel_cases
import torch
from torch import Tensor

import pe
from pe.encodings.cope import CoPE
from pe.encodings.core.composite import Composite


def made(width: int, npos: int, divide: bool = True, seed: int = 0) -> CoPE:
    """Return CoPE with a table of large values."""
    enc = CoPE(width, npos=npos, divide=divide)
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        enc.table.normal_(generator=generator).mul_(1.0 if divide else width**-0.5)
    return enc


def computed(
    enc: CoPE, backend: str, length: int, heads: int, kv: int, width: int, batch: int = 1,
    seed: int = 0, spread: float = 1.0, key_size: float = 1.0,
    change: Callable[[Tensor, Tensor], None] | None = None, hidden: str | None = None,
) -> dict[str, Tensor]:  # fmt: skip
    """Output and gradients by name; the definition's in float64.

    ``change`` writes into q and k. ``hidden`` is the spec of a window or a chunk, or of both.
    """
    torch.manual_seed(seed)
    q, k, v = (torch.randn(batch, h, length, width) for h in (heads, kv, kv))
    q, k = spread * q, key_size * k
    if change is not None:
        change(q, k)
    direction = torch.randn(batch, heads, length, width)
    specs = [] if hidden is None else hidden.split("+")
    hiding = [pe.encoding(spec, head_dim=width, num_heads=heads) for spec in specs]
    whole = Composite([enc, *hiding]) if hiding else enc
    return kernel_cases.computed(whole, backend, (q, k, v), direction)
