"""Is there a linear map from the vector of every position to the vector k positions later?

    M = argmin sum_{p < n} | M P(p) - P(p + k) |^2           error = its root, as a share of |P|

Sinusoidal positions have such a map for every n: a rotation. It is the reason given for sines *and*
cosines (arXiv:1706.03762, section 3.5). With at most as many positions as columns, any linearly
independent vectors have such a map too. A rotation adds that the same map holds for positions that
were not seen. So the error is measured twice: on the positions that M was fitted to, and on the
same number of positions after them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pe.encodings.core.additive import Additive


class Errors(NamedTuple):
    """Root mean square errors, divided by the root mean square of the vectors."""

    inside: float
    """On the positions that the map was fitted to."""
    beyond: float
    """On the same number of positions after them."""


def shift_errors(enc: Additive, length: int, shift: int) -> Errors:
    """The errors of the best linear map from each vector of an encoding to a later one.

    Args:
        length: the number of positions that the map is fitted to. shift: the k of the formula.
    """
    vectors = enc.rows(torch.arange(2 * length + shift), torch.float64)
    before, after = vectors[: 2 * length], vectors[shift:]
    # Of all maps that fit equally well, this is the one with the least norm.
    best = torch.linalg.lstsq(before[:length], after[:length], driver="gelsd").solution

    def error(rows: slice) -> float:
        missed = before[rows] @ best - after[rows]
        return float((missed.square().mean() / after[rows].square().mean()).sqrt())

    return Errors(error(slice(0, length)), error(slice(length, 2 * length)))
