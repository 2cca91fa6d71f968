"""RoPE with other frequencies, for tests of what changes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pe.encodings import encoding
from pe.encodings.rope import RoPE

FAR = torch.tensor([0, 1, 5, 300, 4096, 65535, 99_999, 100_000])
L0 = 256


def build(spec: str, head_dim: int = 64, **options: Any) -> RoPE:
    sizes: dict[str, Any] = {"num_heads": 2, "original_length": L0}
    enc = encoding(spec, head_dim=head_dim, **(sizes | options))
    assert isinstance(enc, RoPE)
    return enc


def frequencies(spec: str, length: int | None = None, **options: Any) -> Tensor:
    given = None if length is None else torch.tensor(length)
    return build(spec, **options).frequencies(given).inv_freq


def turned(enc: RoPE, positions: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (torch.randn(2, 2, positions.shape[-1], 64, generator=torch.Generator().manual_seed(s))
            for s in (0, 1))  # fmt: skip
    return enc.rotate(q, k, positions, positions)


def equal(a: RoPE, b: RoPE, positions: Tensor) -> bool:
    pairs = zip(turned(a, positions), turned(b, positions), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)
