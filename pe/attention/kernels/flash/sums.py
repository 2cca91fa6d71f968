"""Turn the sums that kernels leave into the gradients of a bias's parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def by_distance(tiles: Tensor, width: int, reach: int, by_sink: Tensor) -> Tensor:
    """Sum dS over equal distances.

    A row of dS sums to 0, so the sum over all distances and the sink is 0. This gives the entry
    ``reach``, which stands for all distances from there on.

    Args:
        tiles: (H, n, S, S) float32. Tile n is the sum of dS over the n-th diagonal of blocks, and
            its entry (r, c) is at distance n S + r - c.
        width: the number of distances.
        reach: the distance from which on the table is constant; 0: none.
        by_sink: (H,), the gradient of the sink, or an empty tensor.

    Returns:
        (H, width) float32.
    """
    heads, count, size, _ = tiles.shape
    flipped = pad(tiles.flip(-1), (0, size)).flatten(-2)[..., : size * (2 * size - 1)]
    skewed = flipped.view(heads, count, size, 2 * size - 1).sum(2)  # by r - c + S - 1
    sums = tiles.new_zeros(heads, (count + 1) * size)
    sums[:, : count * size] += skewed[..., :size].flatten(1)
    sums[:, size:] += pad(skewed[..., size:], (0, 1)).flatten(1)
    sums = sums[:, size - 1 :]  # from distance 0; dS of keys ahead of a query is 0
    sums = pad(sums, (0, max(0, width - sums.shape[-1])))[:, :width].contiguous()
    if 0 < reach < width:
        sums[:, reach:] = 0
        sums[:, reach] = -sums[:, :reach].sum(-1)
        if by_sink.numel():
            sums[:, reach] -= by_sink
    return sums


def by_unit(above: Tensor, rising: Tensor, slopes: Tensor) -> Tensor:
    """Return the gradient of FIRE's network and of its two parameters c and m, (H, 2U + 2).

    Args:
        above: (H, 4, U + 1), sums of dS, dS u, dS du/dc and dS du/dm over the entries whose u is
            above the corner of each of U units; the last ones are over all entries.
        rising: (U,), whether a unit is nonzero above its corner; otherwise it is nonzero below it.
        slopes: (H, U), the slope that each unit adds to f.
    """
    active = torch.where(rising, above[..., :-1], above[..., -1:] - above[..., :-1])
    numbers = (active[:, 2:] * slopes[:, None]).sum(-1)  # the chain rule, for c and m
    return torch.cat((active[:, 0], active[:, 1], numbers), -1)
