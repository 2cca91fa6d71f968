"""Pictures of Self-Extend."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.self_extend import SelfExtend
from pictures.common import canvas, picture

LENGTH, LONGEST = 4096, 16384


def distances(positions: Tensor, **options: int) -> Tensor:
    """(T, T) the distance at which each query reads each key; keys ahead of it get 0."""
    enc = pe.encoding("self_extend", head_dim=2, num_heads=1, **options)
    assert isinstance(enc, SelfExtend)
    queries, keys = enc.grouped(positions, positions)
    plain = positions[:, None] - positions
    far = queries[:, None] - keys
    return torch.where(plain < enc.neighbor_window, plain, far).clamp(min=0)


def last_query(group_size: int) -> Tensor:
    """(LONGEST,) the distances of the last of LONGEST tokens to all of them, the nearest first."""
    enc = pe.encoding(
        "self_extend", head_dim=2, num_heads=1, original_length=LENGTH, group_size=group_size
    )
    assert isinstance(enc, SelfExtend)
    positions = torch.arange(LONGEST)
    queries, keys = enc.grouped(positions[-1:], positions)
    plain = positions[-1] - positions
    return torch.where(plain < enc.neighbor_window, plain, queries - keys).flip(0)


@picture("self-extend-distances")
def draw_self_extend_distances() -> Figure:
    figure, axes = canvas(columns=2, height=3.1)
    left, right = axes[0]
    ink = figures.colour("self_extend")
    true = torch.arange(LONGEST)
    left.plot(true, true, color=figures.colour("rope"), ls="--", label="RoPE")
    for group_size, line in ((5, "-"), (16, ":")):
        read = last_query(group_size)
        left.plot(true, read, color=ink, ls=line, label=f"groups of {group_size}")
    left.axhline(LENGTH, color=figures.INK, lw=0.8, ls=":")
    left.set(xlabel="distance in the text", ylabel="distance in the model", ylim=(0, 6000))
    left.legend(fontsize=8)
    small = distances(torch.arange(16), original_length=8, group_size=4, neighbor_window=4)
    for m in range(16):
        for n in range(m + 1):
            near = m - n < 4
            right.text(
                n, m, str(int(small[m, n])), ha="center", va="center", fontsize=7,
                color=figures.colour("rope") if near else ink,
            )  # fmt: skip
    right.set(xlim=(-0.7, 15.7), ylim=(15.7, -0.7), xlabel="key n", ylabel="query m")
    right.set(xticks=range(0, 16, 3), yticks=range(0, 16, 3))
    return figure
