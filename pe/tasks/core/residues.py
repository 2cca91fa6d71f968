"""Distributions of sums modulo m, from which baselines get their exact scores."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]


def residues(low: int, high: int, modulus: int) -> Float:
    """(modulus,) distribution of x mod ``modulus`` for x uniform from ``low`` to ``high`` - 1."""
    counts: Float = np.bincount(np.arange(low, high) % modulus, minlength=modulus) / (high - low)
    return counts


def sum_of(one: Float, count: int) -> Float:
    """Distribution of the sum, modulo ``len(one)``, of ``count`` independent residues.

    The transform of a distribution turns sums into products.
    """
    total: Float = np.fft.irfft(np.fft.rfft(one) ** count, len(one))
    return total
