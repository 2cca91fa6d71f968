"""What the fifteen tasks of the Chomsky hierarchy share.

An example is a question, followed by one blank slot per symbol of the answer. All slots are filled
at once. The tasks are from Ruoss et al. 2023, "Randomized Positional Encodings Boost Length
Generalization of Transformers" (arXiv:2305.16843;
google-deepmind/randomized_positional_encodings @e8c64749), after Delétang et al. 2022
(arXiv:2207.02098). Lengths are uniform in 1..40, and in 41..100 out of distribution, as in the
authors' example script; the paper goes up to 500.

Differences from the authors' code:

- Their score is the mean over lengths of the token accuracy.
- Some answers are padded. In both, symbols after the end of an answer are not scored; in their code
  they are part of the loss, and here they are not.
- Their encoder sees both sides. A causal model sees the whole question from every slot.
- They write input and output as separate one-hot vectors. Here both are tokens, and an answer 1 is
  the token 1.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from pe.tasks.core.base import Example, Lengths, Task, slots
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "google-deepmind/randomized_positional_encodings @e8c64749"
PAPER = "2305.16843"


class Chomsky(Task):
    """Base class of the fifteen tasks.

    Class attributes:
        written: the symbols of the question.
        outputs: answers are the digits below this number.
    """

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

    def question(self, draws: Draws, length: int) -> Int:
        """Draw the symbols of a question; uniform unless a task overrides this method."""
        return draws.integers(0, len(self.written), length)

    @abstractmethod
    def solution(self, question: Int) -> Int:
        """Return all symbols of the answer, with its padding."""

    def asked(self, answer: Int) -> int:
        """Return how many symbols of the answer are scored. The others, at the end, are padding."""
        return len(answer)

    def make(self, draws: Draws, length: int, split: str) -> Example:
        question = self.question(draws, length)
        answer = self.solution(question)
        return slots(question, answer, self.vocab_size - 1, self.asked(answer))

    def max_tokens(self, length: int) -> int:
        return 2 * length + 1

    def baselines(self) -> tuple[Baseline, ...]:
        return (Baseline("zero", "All symbols of the answer are 0.", constant(0)),)


class OneSymbol(Chomsky):
    """Base class of the tasks whose answer is one symbol."""

    def max_tokens(self, length: int) -> int:
        return length + 1


class Bits(Chomsky):
    """Base class of the tasks that rearrange uniform bits."""

    written, outputs = "01", 2


def in_order(tokens: Int, places: Int) -> Int:
    """Return the strategy that answers with the question, from its first symbol on."""
    return tokens[: len(places)]
