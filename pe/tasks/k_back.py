"""k-back: repeat the token that was read k positions ago.

    copy    y_t = x_{t-k},  t > k
    match   y_t = [x_t = x_{t-k}],  and "no" for the first k

x_t is uniform among 50 symbols. T is 64 in training and 128 out of distribution. ``copy`` is the
task in the code of the comparison app (23f2002284/Notes-on-LMs, possitional_emb/app/tasks.py
@348846d0), for which it reports results; ``match`` is the task that its README describes. A model
only needs to attend to a fixed distance.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task
from pe.tasks.core.draws import Draws
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import IGNORE, Baseline, back, constant

SOURCE = "23f2002284/Notes-on-LMs @348846d0"


@register("k_back", title="k-back", paper=None, source=SOURCE)
class KBack(Task):
    """Options: ``read``, copy or match; ``k``, the distance; ``items``, the number of symbols."""

    read: Literal["copy", "match"] = "copy"
    k: Annotated[int, Field(ge=1)] = 3
    items: Annotated[int, Field(ge=2)] = 50
    train_lengths: Lengths = (64, 64)
    ood_lengths: Lengths = (128, 128)

    def refuse_length(self, length: int) -> None:
        super().refuse_length(length)
        if length <= self.k:
            raise ValueError(f"k = {self.k} reaches back farther than a length of {length}")

    @property
    def symbols(self) -> tuple[str, ...]:
        flags = ("no", "yes") if self.read == "match" else ()
        return (*map(str, range(self.items)), *flags)

    @property
    def answers(self) -> tuple[int, ...]:
        if self.read == "copy":
            return tuple(range(self.items))
        return self.items, self.items + 1

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(0, self.items, length)
        if self.read == "copy":
            targets = np.full(length, IGNORE)
            targets[self.k :] = x[: -self.k]
        else:
            targets = np.full(length, self.items)
            targets[self.k :] += x[self.k :] == x[: -self.k]
        return Example(x, targets)

    def baselines(self) -> tuple[Baseline, ...]:
        if self.read == "copy":
            return (
                Baseline("one item", "Always item 0.", constant(0)),
                Baseline("here", "The item at the position.", back(0)),
                Baseline("neighbour", "The item before the position.", back(1)),
            )
        return (Baseline("no", "Nothing matches.", constant(self.items)),)
