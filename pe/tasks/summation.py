"""Summation: the sum of digits modulo ten.

    x_1 + x_2 + ... + x_n =  ->  (x_1 + ... + x_n) mod 10,   x_i uniform in 1..9

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_sum_dataset.py with ``--modular``). n is uniform in 1..8, and in 9..16 out of distribution. By
default the authors' builder begins at 4.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, back, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"
PLUS, EQUALS = 10, 11


@register("summation", title="Summation", paper="2305.19466", source=SOURCE)
class Summation(Task):
    """Options: the lengths, in digits."""

    train_lengths: Lengths = (1, 8)
    ood_lengths: Lengths = (9, 16)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*"0123456789", "+", "=")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(10))

    def max_tokens(self, length: int) -> int:
        return 2 * length

    def make(self, draws: Draws, length: int, split: str) -> Example:
        x = draws.integers(1, 10, length)
        tokens = np.full(2 * length, PLUS)
        tokens[::2] = x
        tokens[-1] = EQUALS
        return read_last(tokens, int(x.sum()) % 10)

    def baselines(self) -> tuple[Baseline, ...]:
        return (
            Baseline("zero", "The sum is always 0.", constant(0)),
            Baseline("last number", "The sum is the last number.", back(1)),
        )
