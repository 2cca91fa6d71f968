"""Selective copy: the symbols in their order, without the blanks between them.

    a . . b . c SEP  ->  a b c

CoPE (Golovneva et al. 2024, arXiv:2405.18719) uses this task of Gu and Dao 2023 (arXiv:2312.00752).
A sequence has 128 symbols and 128 blanks in random places. Out of distribution it has as many
symbols and 64 blanks (dense) or 256 (sparse). The length of an example is the number of blanks. We
have not seen the authors' generator: the number of 16 different symbols, the separator and the
answer that is written token by token are our reading of the text.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, continued
from pe.tasks.core.draws import Draws
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, back, constant


@register(
    "selective_copy",
    title="Selective copy",
    paper="2405.18719",
    source="text of arXiv:2405.18719",
)
class SelectiveCopy(Task):
    """Options: ``copied``, the symbols per sequence; ``items``, the number of different symbols.

    ``ood_lengths`` are the blanks of the dense and of the sparse split.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "id", "ood_dense", "ood_sparse")
    copied: Annotated[int, Field(ge=1)] = 128
    items: Annotated[int, Field(ge=2)] = 16
    train_lengths: Lengths = (128, 128)
    ood_lengths: Lengths = (64, 256)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.items)), ".", "SEP")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.items))

    def lengths(self, split: str) -> tuple[int, int]:
        low, high = super().lengths(split)
        return {"ood_dense": (low, low), "ood_sparse": (high, high)}.get(split, (low, high))

    def max_tokens(self, length: int) -> int:
        return length + 2 * self.copied

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(0, self.items, self.copied)
        tokens = np.full(length + self.copied, self.items)
        tokens[np.sort(draws.distinct(len(tokens), self.copied))] = x
        return continued([*tokens, self.items + 1], x)

    def baselines(self) -> tuple[Baseline, ...]:
        return (
            Baseline("one symbol", "Always symbol 0.", constant(0)),
            Baseline("repeat", "The symbol that was written last.", back(0)),
        )
