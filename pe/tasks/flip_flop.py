"""Flip-flop: a one-bit memory. Read the bit that was written last, and ignore all others.

    w 1 i 0 i 1 r  ->  1

A sequence consists of pairs of an instruction and a bit. ``w`` writes its bit, the bit of ``i``
must be ignored, and ``r`` is followed by the stored bit. The first instruction writes and the last
reads. The others are i with probability p, and w and r with (1 - p) / 2 each. Bits after w and i
are uniform. Liu et al. 2023 (arXiv:2306.00946); CoPE (arXiv:2405.18719) uses it for positional
encodings. Training has p = 0.8 and 512 tokens; out of distribution p is 0.98 (sparse) or 0.1
(dense) at the same length. Only bits after r are scored. An automaton with two states solves it.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task
from pe.tasks.core.draws import Draws
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import IGNORE, Baseline, back, constant

WRITE, READ, SKIP = 2, 3, 4


@register("flip_flop", title="Flip-flop", paper="2306.00946", source="text of arXiv:2306.00946")
class FlipFlop(Task):
    """Options: the probability of ``i`` in training (``ignored``) and in the two other splits.

    Lengths are in tokens and even.
    """

    splits: ClassVar[tuple[str, ...]] = ("train", "id", "ood_sparse", "ood_dense")
    shortest: ClassVar[int] = 4
    step: ClassVar[int] = 2  # an instruction and a bit
    same_lengths: ClassVar[bool] = True
    ignored: Annotated[float, Field(ge=0, le=1)] = 0.8
    sparse: Annotated[float, Field(ge=0, le=1)] = 0.98
    dense: Annotated[float, Field(ge=0, le=1)] = 0.1
    train_lengths: Lengths = (512, 512)
    ood_lengths: Lengths = (512, 512)

    @property
    def symbols(self) -> tuple[str, ...]:
        return "0", "1", "w", "r", "i"

    @property
    def answers(self) -> tuple[int, ...]:
        return 0, 1

    def max_tokens(self, length: int) -> int:
        return length - 1

    def _ignored(self, split: str) -> float:
        return {"ood_sparse": self.sparse, "ood_dense": self.dense}.get(split, self.ignored)

    def make(self, draws: Draws, length: int, split: str) -> Example:
        pairs, p = length // 2, self._ignored(split)
        chance = draws.units(pairs)
        written = np.where(chance < p + (1 - p) / 2, WRITE, READ)
        instructions = np.where(chance < p, SKIP, written)
        instructions[0], instructions[-1] = WRITE, READ
        # The index of the last pair that wrote, for each pair.
        writer = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(pairs), 0))
        bits = draws.integers(0, 2, pairs)
        bits = np.where(instructions == READ, bits[writer], bits)
        tokens = np.stack((instructions, bits), axis=1).ravel()
        targets = np.full(length, IGNORE)
        targets[::2][instructions == READ] = bits[instructions == READ]
        return Example(tokens[:-1], targets[:-1])

    def baselines(self) -> tuple[Baseline, ...]:
        return (
            Baseline("zero", "The bit is always 0.", constant(0)),
            Baseline("latest", "The bit before, whatever its instruction.", back(1)),
        )
