"""Long-range match: is the last token equal to the first?

    x_t uniform among 50 symbols;  with probability 1/2:  x_T = x_1, label "yes",
    otherwise  x_T = x_1 + max(1, d) mod 50,  d uniform in 0..48,  label "no"

The label is read from the last position. T is 64 in training and 256 out of distribution. The
definition is that of the comparison app's code (23f2002284/Notes-on-LMs,
possitional_emb/app/tasks.py @348846d0). A last token that differs is x_1 + 1 twice as often as any
other value, and never x_1 - 1. The README does not say what the answer looks like.
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


@register("match", title="Long-range match", paper=None, source=SOURCE)
class Match(Task):
    """Options: ``items``, the number of symbols."""

    shortest: ClassVar[int] = 3
    items: Annotated[int, Field(ge=2)] = 50
    train_lengths: Lengths = (64, 64)
    ood_lengths: Lengths = (256, 256)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.items)), "no", "yes")

    @property
    def answers(self) -> tuple[int, ...]:
        return self.items, self.items + 1

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(0, self.items, length)
        same = draws.happens(0.5)
        apart = 0 if same else max(1, draws.integer(0, self.items - 1))
        x[-1] = (x[0] + apart) % self.items
        return read_last(x, self.answers[same])

    def baselines(self) -> tuple[Baseline, ...]:
        no, yes = self.answers

        def neighbour(tokens: Int, places: Int) -> Int:
            return np.where(tokens[places] == tokens[np.maximum(places - 1, 0)], yes, no)

        return (
            Baseline("no", "They never match.", constant(no)),
            Baseline("neighbour", "They match if the last two tokens do.", neighbour),
        )
