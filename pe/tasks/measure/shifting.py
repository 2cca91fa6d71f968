"""Is there a linear map that takes the vector of every position to that of the one k later?

    M = argmin sum_{p < n} | M P(p) - P(p + k) |^2           error = its root, as a share of |P|

Sinusoidal positions have one, a rotation, whatever n is. It is the reason given for sines *and*
cosines (arXiv:1706.03762, section 3.5). With at most as many positions as columns, vectors that are
linearly independent have one too, rotation or not; what a rotation adds is that the same map holds
for positions that were not seen. So the error is measured twice: on the positions that M was fitted
to, and on as many behind them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from pe.encodings.core.additive import Additive


class Errors(NamedTuple):
    """Root of the mean square error, as a share of the vectors' own."""

    inside: float
    """On the positions that the map was fitted to."""
    beyond: float
    """On as many positions behind them."""


def shift_errors(enc: Additive, length: int, shift: int) -> Errors:
    """How well one linear map shifts the vectors of an encoding.

    Args:
        length: positions that the map is fitted to.
    """
    vectors = enc.rows(torch.arange(2 * length + shift), torch.float64)
    before, after = vectors[: 2 * length], vectors[shift:]
    # Of all maps that fit equally well, the least one.
    found = torch.linalg.lstsq(before[:length], after[:length], driver="gelsd").solution

    def error(rows: slice) -> float:
        missed = before[rows] @ found - after[rows]
        return float((missed.square().mean() / after[rows].square().mean()).sqrt())

    return Errors(error(slice(0, length)), error(slice(length, 2 * length)))
