"""What published code computes for a method, from tests/golden, and ours to hold against it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pe.encodings import encoding
from pe.encodings.rope import RoPE

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


@cache
def golden(method: str) -> dict[str, Tensor]:
    with np.load(GOLDEN / f"{method}.npz") as arrays:
        return {k: torch.from_numpy(arrays[k]) for k in arrays if not k.endswith("_json")}


@cache
def given(method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((GOLDEN / f"{method}.json").read_text())["configs"]
    return found


def build(name: str, head_dim: int = 64, **options: Any) -> RoPE:
    enc = encoding(name, head_dim=head_dim, num_heads=2, **options)
    assert isinstance(enc, RoPE)
    return enc.eval()


def error(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours.detach().double() - theirs.double()).abs().max())
