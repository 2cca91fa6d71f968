"""The k-th item of a list.

    c a f b ? 3  ->  f

The prompt is a list of n different items and the number k in decimal. The answer is the item at
place k, counted from 1. The paper that proves that RoPE loses track of positions
(arXiv:2605.15514) has lists on which language models fail although they find needles. Ours is the
simplest form: the question names a place, so the content of the list does not help to find it. n is
uniform in 5..20, and in 21..40 out of distribution; there are 64 items.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from pe.tasks.addition import digits_of
from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline


@register("kth_item", title="k-th item", paper="2605.15514", source="ours")
class KthItem(Task):
    """Options: ``items``, the number of items to choose from."""

    items: Annotated[int, Field(ge=2)] = 64
    train_lengths: Lengths = (5, 20)
    ood_lengths: Lengths = (21, 40)

    def refuse_length(self, length: int) -> None:
        super().refuse_length(length)
        if length > self.items:
            raise ValueError(
                f"items: a list of {length} different items needs as many, got {self.items}"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*(f"i{i}" for i in range(self.items)), "?", *"0123456789")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.items))

    def max_tokens(self, length: int) -> int:
        return length + 1 + len(str(length))

    def make(self, draws: Draws, length: int, split: str) -> Example:
        items = draws.distinct(self.items, length)
        k = draws.integer(1, length + 1)
        digits = [self.items + 1 + digit for digit in digits_of(k)]
        return read_last(np.array([*items, self.items, *digits]), items[k - 1])

    def baselines(self) -> tuple[Baseline, ...]:
        def first(tokens: Int, places: Int) -> Int:
            return tokens[:1]

        def last(tokens: Int, places: Int) -> Int:
            return tokens[[int((tokens == self.items).argmax()) - 1]]

        return (
            Baseline("first", "The first item.", first),
            Baseline("last", "The last item.", last),
        )
