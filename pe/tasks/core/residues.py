"""Distributions of sums modulo m. The exact scores of several baselines follow from them."""

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

    The Fourier transform of a sum's distribution is the product of the summands' transforms.
    """
    total: Float = np.fft.irfft(np.fft.rfft(one) ** count, len(one))
    return total.clip(min=0)  # rounding errors may lie below 0
