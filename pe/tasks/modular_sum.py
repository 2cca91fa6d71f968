"""Modular sum: the sum of all numbers modulo ten.

    final     y_T = (x_1 + ... + x_T) mod m,  read from the last position
    running   y_t = (x_1 + ... + x_{t-1}) mod m,  at every position, 0 at the first

x_t is uniform in 0..19. T is 64 in training and 256 out of distribution. ``final`` is the task in
the code of the comparison app (23f2002284/Notes-on-LMs, possitional_emb/app/tasks.py @348846d0),
for which it reports results; ``running`` is the task that its README describes. The order of the
numbers does not matter, so positions only help to count. In the app all encodings stayed at chance.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "23f2002284/Notes-on-LMs @348846d0"


@register("modular_sum", title="Modular sum", paper=None, source=SOURCE)
class ModularSum(Task):
    """Options: ``read``, final or running; x_t is below ``numbers``; the sum is mod ``modulus``."""

    read: Literal["final", "running"] = "final"
    numbers: Annotated[int, Field(ge=2)] = 20
    modulus: Annotated[int, Field(ge=2)] = 10
    train_lengths: Lengths = (64, 64)
    ood_lengths: Lengths = (256, 256)

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(max(self.numbers, self.modulus))))

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.modulus))

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(0, self.numbers, length)
        if self.read == "final":
            return read_last(x, int(x.sum()) % self.modulus)
        return Example(x, (np.cumsum(x) - x) % self.modulus)

    def baselines(self) -> tuple[Baseline, ...]:
        def last(tokens: Int, places: Int) -> Int:
            return tokens[places] % self.modulus

        return (
            Baseline("zero", "The sum is always 0.", constant(0)),
            Baseline("last number", "The sum is the number at the position.", last),
        )
