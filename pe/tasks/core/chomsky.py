"""What the fifteen tasks of the Chomsky hierarchy share.

A question of symbols below `inputs`, then one blank slot per symbol of the answer, all of which are
filled at once. Ruoss et al. 2023, "Randomized Positional Encodings Boost Length Generalization of
Transformers" (arXiv:2305.16843; google-deepmind/randomized_positional_encodings @e8c64749), after
Delétang et al. 2022 (arXiv:2207.02098). Lengths uniform in 1..40, and 41..100 out of distribution,
as in their example; up to 500 in the paper. Their score is the mean over lengths of the token
accuracy. Where an answer is padded, what follows its end is not scored, as there; it has no part in
the loss either, which it has there. Their encoder sees both sides; a causal model sees the whole
question from every slot. They write input and output as separate one-hot vectors, here both are
tokens, so that an answer 1 is the token 1.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pe.tasks.core.base import Example, Lengths, Task, slots
from pe.tasks.core.draws import Draws, Int

SOURCE = "google-deepmind/randomized_positional_encodings @e8c64749"
PAPER = "2305.16843"


class Chomsky(Task):
    """Base class. ``written`` are the input symbols; answers are the first ``outputs`` digits."""

    written: ClassVar[str]
    outputs: ClassVar[int]
    train_lengths: Lengths = (1, 40)
    ood_lengths: Lengths = (41, 100)

    @property
    def symbols(self) -> tuple[str, ...]:
        digits = "0123456789"[len(self.written) : self.outputs]
        return (*self.written, *digits, "[]")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.outputs))

    @abstractmethod
    def question(self, draws: Draws, length: int) -> Int:
        """Random symbols of the input."""

    @abstractmethod
    def solution(self, question: Int) -> Int:
        """All symbols of the output, with padding."""

    def asked(self, answer: Int) -> int:
        """How many symbols of the output are scored; the rest is padding."""
        return len(answer)

    def make(self, draws: Draws, length: int, split: str) -> Example:
        question = self.question(draws, length)
        answer = self.solution(question)
        return slots(question, answer, self.vocab_size - 1, self.asked(answer))

    def max_tokens(self, length: int) -> int:
        return 2 * length + 1
