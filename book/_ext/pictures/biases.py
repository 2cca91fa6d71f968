"""Biases as functions of the distance, side by side."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import pe
from pe.encodings.distance import DistanceBias

HEADS = 8


def distance_bias(name: str, distance: Tensor, heads: int = HEADS, **options: Any) -> Tensor:
    """(H, n) float64: what an encoding adds at each of n distances, as it is initialised."""
    encoding = pe.encoding(name, head_dim=32, num_heads=heads, **options)
    assert isinstance(encoding, DistanceBias)
    encoding.reset_parameters(torch.Generator().manual_seed(1))
    with torch.no_grad():
        return encoding.distance_bias(distance).double()
