"""The random numbers of one example.

Raw output of the Philox generator, keyed by (seed, index) and counted from (0, 0, 0, stream): fixed
for good, which NumPy does not promise of its distributions. The splits of a task are streams of
their own, so that an example of training is no example of a test because both have index 7.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


class Draws:
    """A row of random numbers that depends on (seed, index, stream) alone.

    Raises ValueError for a seed or an index outside 0 to 2**64 - 1.
    """

    def __init__(self, seed: int, index: int, stream: int) -> None:
        for name, value in (("seed", seed), ("index", index)):
            if not 0 <= value < 2**64:
                raise ValueError(
                    f"{name}: expected a whole number from 0 to 2**64 - 1, got {value!r}"
                )
        key = np.array([seed, index], dtype=np.uint64)
        counter = np.array([0, 0, 0, stream], dtype=np.uint64)
        self._generator = np.random.Philox(key=key, counter=counter)

    def raw(self, count: int) -> npt.NDArray[np.uint64]:
        """The next ``count`` numbers, each of 64 random bits."""
        numbers: npt.NDArray[np.uint64] = self._generator.random_raw(count)
        return numbers

    def integers(self, low: int, high: int, count: int) -> Int:
        """(count,) independent whole numbers, ``low`` to ``high`` - 1.

        The remainder of a division is not exactly uniform; here it misses by 2**-40 at most.
        """
        return low + (self.raw(count) % np.uint64(high - low)).astype(np.int64)

    def integer(self, low: int, high: int) -> int:
        """A whole number, ``low`` to ``high`` - 1."""
        return low + int(self._generator.random_raw()) % (high - low)

    def units(self, count: int) -> npt.NDArray[np.float64]:
        """(count,) numbers from 0 to below 1."""
        return (self.raw(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def happens(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.units(1)[0] < probability)

    def distinct(self, population: int, count: int) -> Int:
        """(count,) different whole numbers below ``population``, in random order."""
        order: Int = np.argsort(self.raw(population), kind="stable")[:count].astype(np.int64)
        return order

    def weighted(self, weights: Sequence[int]) -> int:
        """The place of one of the weights, each as probable as its weight says."""
        left = self.integer(0, sum(weights))
        for place, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return place
        raise AssertionError("weights are not negative")

    def below(self, limit: int) -> int:
        """A whole number from 0 to ``limit`` - 1, which may have hundreds of digits."""
        words = limit.bit_length() // 64 + 2  # one word more: the remainder is close to uniform
        return int.from_bytes(self.raw(words).astype("<u8").tobytes(), "little") % limit
