"""What several pictures need: numbers from the package, a canvas, colours."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe.encodings.rope import RoPE

BASE = 10_000.0
# Transparent at zero only, so that small values show and the page's background does not matter.
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, "#2f7fc4ff"), (0.5, "#2f7fc400"), (0.5, "#d9541e00"), (1, "#d9541eff")]
)


PICTURES: dict[str, Callable[[], Figure]] = {}
"""By name, the functions that draw; `picture` fills it."""


def picture(name: str) -> Callable[[Callable[[], Figure]], Callable[[], Figure]]:
    """Register the function below as the one that draws the picture ``name``.

    Raises:
        ValueError: another picture has this name.
    """

    def register(draw: Callable[[], Figure]) -> Callable[[], Figure]:
        if name in PICTURES:
            raise ValueError(f"two pictures are called {name!r}")
        PICTURES[name] = draw
        return draw

    return register


def randn(*shape: int, seed: int) -> Tensor:
    """Return standard normal float64 numbers, always the same ones for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


NARROW = 4.4
"""Inches: as wide as a figure may be whose smallest text, 9 points, has 9 pixels on a phone."""


def canvas(
    columns: int = 1, rows: int = 1, height: float = 2.9, width: float = 6.8
) -> tuple[Figure, np.ndarray]:
    """Return a figure of ``width`` by ``height`` inches and its axes, shape (rows, columns)."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def frequencies(name: str, head_dim: int, **options: Any) -> Tensor:
    """Return the angular frequencies (P,) of an encoding, in radians per position."""
    encoding = pe.encoding(name, head_dim=head_dim, num_heads=1, hidden_size=head_dim, **options)
    assert isinstance(encoding, RoPE)
    return encoding.frequencies().inv_freq


def rotated(name: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys, both (T, d), of positions 0 to T-1."""
    encoding = pe.encoding(name, head_dim=q.shape[-1], num_heads=1, hidden_size=q.shape[-1])
    positions = torch.arange(q.shape[0])
    with torch.no_grad():
        out_q, out_k = encoding.rotate(q[None, None], k[None, None], positions, positions)
    return out_q[0, 0], out_k[0, 0]


def logits_by_distance(name: str, q: Tensor, k: Tensor, length: int) -> Tensor:
    """Return logits (T,) of one query at position T-1 and one key at distances 0 to T-1.

    ``q`` and ``k`` are (1, d).
    """
    turned_q, turned_k = rotated(name, q.expand(length, -1), k.expand(length, -1))
    return (turned_k @ turned_q[-1]).flip(0) / math.sqrt(q.shape[-1])
