"""From the kernels' sums to the gradient of a bias' parameters."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def by_distance(tiles: Tensor, width: int, reach: int, by_sink: Tensor) -> Tensor:
    """Blocks summed along diagonals, (H, n, S, S) -> sums over equal distances (H, width).

    Entry (r, c) of block n is at distance n S + r - c. The sum over all distances and the sink,
    ``by_sink`` (H,) or nothing, is 0, since each row of dS sums to 0: so the entry ``reach``, for
    all from there on, is minus the sum before it and that of the sink.
    """
    heads, count, size, _ = tiles.shape
    flipped = pad(tiles.flip(-1), (0, size)).flatten(-2)[..., : size * (2 * size - 1)]
    skewed = flipped.view(heads, count, size, 2 * size - 1).sum(2)  # by r - c + S - 1
    sums = tiles.new_zeros(heads, (count + 1) * size)
    sums[:, : count * size] += skewed[..., :size].flatten(1)
    sums[:, size:] += pad(skewed[..., size:], (0, 1)).flatten(1)
    sums = sums[:, size - 1 :]  # from distance 0; ahead of a query there is nothing
    sums = pad(sums, (0, max(0, width - sums.shape[-1])))[:, :width].contiguous()
    if 0 < reach < width:
        sums[:, reach:] = 0
        sums[:, reach] = -sums[:, :reach].sum(-1)
        if by_sink.numel():
            sums[:, reach] -= by_sink
    return sums


def by_unit(above: Tensor, rising: Tensor, slopes: Tensor) -> Tensor:
    """Sums above each unit's corner, (H, 4, U + 1), the last over everything -> (H, 2U + 2).

    A unit is not 0 above its corner if it is ``rising``, else below it.
    """
    active = torch.where(rising, above[..., :-1], above[..., -1:] - above[..., :-1])
    numbers = (active[:, 2:] * slopes[:, None]).sum(-1)  # f' by those of c and m
    return torch.cat((active[:, 0], active[:, 1], numbers), -1)
