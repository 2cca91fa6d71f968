"""Cases of CoPE for its kernels, and what they are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable

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

    ``change`` writes into q and k. ``hidden`` is the spec of a window or a
    chunk, or of both.

    In float32 it is no judge: where a count is a whole number but for rounding, the gradient jumps.
    """
    torch.manual_seed(seed)
    wide = torch.float64 if backend == "dense" else torch.float32
    q, k, v = (
        torch.randn(batch, h, length, width).to(wide).requires_grad_() for h in (heads, kv, kv)
    )
    with torch.no_grad():
        k *= key_size
        if change is not None:
            change(q, k)
    direction = torch.randn(batch, heads, length, width)
    enc = copy.deepcopy(enc).to(wide)
    specs = [] if hidden is None else hidden.split("+")
    hiding = [pe.encoding(spec, head_dim=width, num_heads=heads) for spec in specs]
    whole = Composite([enc, *hiding]) if hiding else enc
    out = pe.attend(whole, spread * q, k, v, backend=backend)
    named = {"q": q, "k": k, "v": v, "table": enc.table}
    found = torch.autograd.grad((out * direction).sum(), list(named.values()))
    return {"out": out.detach()} | dict(zip(named, found, strict=True))


def agree(fast: dict[str, Tensor], exact: dict[str, Tensor]) -> None:
    for name, want in exact.items():
        assert torch.isfinite(fast[name]).all(), name
        error = float((fast[name] - want).norm())
        assert error <= 2e-5 * float(want.norm()) + 2e-5, (name, error, float(want.norm()))
