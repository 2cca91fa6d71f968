"""Shift-invariant pattern: does A B occur? It is near the start in training, later near the end.

    x_t uniform among 48 symbols;  with probability 1/2:  x_p = A, x_{p+1} = B, label "yes"
    training    p uniform in 2 .. min(10, T-2) - 1       (positions counted from 0)
    elsewhere   p uniform in max(2, T-10) .. T-3

The label is read from the last position. T is 64 in training and 256 out of distribution. The
definition is that of the comparison app's code (23f2002284/Notes-on-LMs,
possitional_emb/app/tasks.py @348846d0). The validation examples there have the shifted positions
too, so ``id`` has the length of training, but not its distribution. The background contains neither
A nor B, so finding an A solves the task without any order. The README does not say what the answer
looks like.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "23f2002284/Notes-on-LMs @348846d0"


@register("pattern", title="Shift-invariant pattern", paper=None, source=SOURCE)
class Pattern(Task):
    """Options: ``items``, the number of symbols in the background."""

    shortest: ClassVar[int] = 5
    items: Annotated[int, Field(ge=1)] = 48
    train_lengths: Lengths = (64, 64)
    ood_lengths: Lengths = (256, 256)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.items)), "A", "B", "no", "yes")

    @property
    def answers(self) -> tuple[int, ...]:
        return self.items + 2, self.items + 3

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(0, self.items, length)
        occurs = draws.happens(0.5)
        if occurs:
            if split == "train":
                place = draws.integer(2, min(10, length - 2))
            else:
                place = draws.integer(max(2, length - 10), length - 2)
            x[place : place + 2] = self.items, self.items + 1
        return read_last(x, self.answers[occurs])

    def baselines(self) -> tuple[Baseline, ...]:
        no, yes = self.answers

        def finds_a(tokens: Int, places: Int) -> Int:
            seen = (tokens == self.items).cumsum() > 0
            return np.where(seen[places], yes, no)

        return (
            Baseline("no", "It never occurs.", constant(no)),
            Baseline("detect A", "It occurs if the token A does.", finds_a),
        )
