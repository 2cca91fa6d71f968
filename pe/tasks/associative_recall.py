"""Multi-query associative recall: the value that followed a key.

    k1 v1 k2 v2 k3 v3 . k2 . . k1 . k3 .  ->  v2 at k2, v1 at k1, v3 at k3

Arora et al. 2023 (arXiv:2312.04927; HazyResearch/zoology, multiquery_ar.py @dbcb60d2). Keys are
different tokens from the lower half of the vocabulary (without 0), and values are different tokens
from the upper half. After the pairs each key occurs once more, at an even distance from their end:
the n-th such place has the weight n**(a - 1) with a = 0.01. All other tokens there are random. The
answers at the repeated keys are scored. A sequence has 8 pairs in 64 tokens, and in 256 tokens out
of distribution. The vocabulary has 512 tokens, the authors' has 8,192.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, model_validator

from pe.tasks.core.base import Example, Lengths, Task
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import IGNORE, Baseline, Guess, constant

SOURCE = "HazyResearch/zoology @dbcb60d2"


@register(
    "associative_recall",
    title="Multi-query associative recall",
    paper="2312.04927",
    source=SOURCE,
)
class AssociativeRecall(Task):
    """Options: ``pairs`` per sequence; ``vocabulary``, its size; ``power``, the a of the formula.

    Lengths are in tokens, even, and at least four times the number of pairs.
    """

    step: ClassVar[int] = 2  # a key and a value
    pairs: Annotated[int, Field(ge=1)] = 8
    vocabulary: Annotated[int, Field(ge=4, multiple_of=2)] = 512
    power: Annotated[float, Field(gt=0)] = 0.01
    train_lengths: Lengths = (64, 64)
    ood_lengths: Lengths = (256, 256)

    @model_validator(mode="after")
    def _enough_keys(self) -> AssociativeRecall:
        if self.pairs >= self.vocabulary // 2:
            raise ValueError(
                f"a vocabulary of {self.vocabulary} has too few keys for {self.pairs} pairs"
            )
        return self

    def refuse_length(self, length: int) -> None:
        super().refuse_length(length)
        if length < 4 * self.pairs:
            raise ValueError(
                f"length {length}: expected at least {4 * self.pairs}, four tokens per pair"
            )

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.vocabulary)))

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.vocabulary // 2, self.vocabulary))

    def make(self, draws: Draws, length: int, split: str) -> Example:
        half, told = self.vocabulary // 2, 2 * self.pairs
        keys = 1 + draws.distinct(half - 1, self.pairs)
        values = half + draws.distinct(half, self.pairs)
        # Draw places without replacement by weight: those with the largest u**(1/w), where u is
        # uniform (Efraimidis and Spirakis 2006). The logarithm keeps small numbers apart.
        space = (length - told) // 2
        weights = np.arange(1, space + 1) ** (self.power - 1)
        gaps = np.argsort(np.log1p(-draws.units(space)) / weights)[::-1][: self.pairs]
        tokens = draws.integers(0, self.vocabulary, length)
        tokens[:told:2], tokens[1:told:2] = keys, values
        targets = np.full(length, IGNORE)
        tokens[told + 2 * gaps] = keys
        targets[told + 2 * gaps] = values
        return Example(tokens, targets)

    def baselines(self) -> tuple[Baseline, ...]:
        def value(number: int) -> Guess:
            def guess(tokens: Int, places: Int) -> Int:
                return np.full(len(places), tokens[2 * number + 1])

            return guess

        return (
            Baseline("first value", "The value of the first pair.", value(0)),
            Baseline("last value", "The value of the last pair.", value(self.pairs - 1)),
            Baseline("one value", "Always the same value.", constant(self.answers[0])),
        )
