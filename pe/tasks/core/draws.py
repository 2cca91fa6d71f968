"""The random numbers of one example.

The numbers are raw output of the Philox generator with the key (seed, index) and a counter that
begins at (0, 0, 0, stream). NumPy guarantees that raw output never changes, but not that its
distributions stay the same. Each split of a task has a stream: example 7 of training and example 7
of a test are different.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


class Draws:
    """A sequence of random numbers that depends only on (seed, index, stream).

    Raises:
        ValueError: the seed or the index is not a whole number from 0 to 2**64 - 1.
    """

    def __init__(self, seed: int, index: int, stream: int) -> None:
        for name, value in (("seed", seed), ("index", index)):
            if not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
                raise ValueError(
                    f"{name}: expected a whole number from 0 to 2**64 - 1, got {value!r}"
                )
        key = np.array([seed, index], dtype=np.uint64)
        counter = np.array([0, 0, 0, stream], dtype=np.uint64)
        self._generator = np.random.Philox(key=key, counter=counter)

    def raw(self, count: int) -> npt.NDArray[np.uint64]:
        """Return the next ``count`` numbers, each of 64 random bits."""
        numbers: npt.NDArray[np.uint64] = self._generator.random_raw(count)
        return numbers

    def integers(self, low: int, high: int, count: int) -> Int:
        """Return (count,) independent whole numbers from ``low`` to ``high`` - 1.

        The remainder of a division is not exactly uniform. For ranges up to 2**24 the
        relative error of a probability is below 2**-40.
        """
        return low + (self.raw(count) % np.uint64(high - low)).astype(np.int64)

    def integer(self, low: int, high: int) -> int:
        """Return a whole number from ``low`` to ``high`` - 1."""
        return low + int(self._generator.random_raw()) % (high - low)

    def units(self, count: int) -> npt.NDArray[np.float64]:
        """Return (count,) numbers from 0 to below 1."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def happens(self, probability: float) -> bool:
        """Return True with this probability."""
        return bool(self.units(1)[0] < probability)

    def distinct(self, population: int, count: int) -> Int:
        """Return (count,) different whole numbers below ``population``, in random order."""
        order: Int = np.argsort(self.raw(population), kind="stable")[:count].astype(np.int64)
        return order

    def weighted(self, weights: Sequence[int]) -> int:
        """Return the index of one of the weights, with a probability proportional to its weight."""
        left = self.integer(0, sum(weights))
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
        raise AssertionError("a weight is negative")

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to ``limit`` - 1; ``limit`` may have hundreds of digits."""
        words = limit.bit_length() // 64 + 2  # an extra word brings the remainder close to uniform
        return int.from_bytes(self.raw(words).astype("<u8").tobytes(), "little") % limit
