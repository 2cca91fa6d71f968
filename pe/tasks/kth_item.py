"""The k-th item of a list.

    c a f b ? 3  ->  f

A list of n different items, the number k in decimal, and the item at place k, counted from 1. A
plain form of the lists that language models fail at although they find needles, in a paper that
proves that RoPE loses track of positions (arXiv:2605.15514): here the place is asked for, and what
is there helps nobody. n uniform in 5..20, then 21..40; 64 items. The form is ours.
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
    """Options: ``items``, how many there are to choose from."""

    items: Annotated[int, Field(ge=2)] = 64
    train_lengths: Lengths = (5, 20)
    ood_lengths: Lengths = (21, 40)

    def refuse_length(self, length: int) -> None:
        super().refuse_length(length)
        if length > self.items:
            raise ValueError(f"items: a list of {length} needs as many, got {self.items}")

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

        share = self.pooled(lambda n: 1 / n)
        return (
            Baseline("first", "The first item.", first, share),
            Baseline("last", "The last item.", last, share),
        )
