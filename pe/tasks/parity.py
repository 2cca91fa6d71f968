"""Parity: is the number of ones even?

    x_1 x_2 ... x_n ?  ->  yes if x_1 + ... + x_n is even, else no,   x_i uniform in {0, 1}

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_parity_dataset.py). n is uniform in 1..8, and in 9..16 out of distribution; the authors also
train up to 20 and test up to 40. The answer depends on every bit, so a part of the sequence says
nothing about it.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"
ASK, YES, NO = 2, 3, 4


@register("parity", title="Parity", paper="2305.19466", source=SOURCE)
class Parity(Task):
    """Options: the lengths, in bits."""

    train_lengths: Lengths = (1, 8)
    ood_lengths: Lengths = (9, 16)

    @property
    def symbols(self) -> tuple[str, ...]:
        return "0", "1", "?", "yes", "no"

    @property
    def answers(self) -> tuple[int, ...]:
        return YES, NO

    def max_tokens(self, length: int) -> int:
        return length + 1

    def make(self, draws: Draws, length: int, split: str) -> Example:
        bits = draws.integers(0, 2, length)
        return read_last(np.append(bits, ASK), NO if bits.sum() % 2 else YES)

    def baselines(self) -> tuple[Baseline, ...]:
        def last(tokens: Int, places: Int) -> Int:
            return np.where(tokens[places - 1] == 0, YES, NO)

        return (
            Baseline("yes", "Always yes.", constant(YES)),
            Baseline("last bit", "Yes if the last bit is 0.", last),
        )
