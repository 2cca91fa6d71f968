"""What a task is: options, and a generator that is a pure function of (seed, index).

    tokens    (T,) what the model reads
    targets   (T,) what it has to say at each position, having read the tokens up to it; -100 where
              nothing is asked

All tasks have this form, whether the answer is read from the last position (`read_last`), continues
the prompt (`continued`) or is filled into blank slots (`slots`), so that one decoder, one loss and
one score serve them all. The loss and the predictions of a model look at the logits of `answers`
only: what is no answer of the task is never predicted, and chance is one in ``len(answers)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import AfterValidator, Field, StrictInt, model_validator

from pe._errors import unknown
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.options import Options
from pe.tasks.core.scoring import IGNORE, Baseline, Guess, Score, score


def _in_order(lengths: tuple[int, int]) -> tuple[int, int]:
    low, high = lengths
    if not 1 <= low <= high:
        raise ValueError(f"expected (shortest, longest), from 1 on, got {lengths}")
    return lengths


Lengths = Annotated[tuple[StrictInt, StrictInt], Field(strict=False), AfterValidator(_in_order)]
"""Shortest and longest, both included."""


class Example(NamedTuple):
    """One example."""

    tokens: Int
    """(T,) token ids."""
    targets: Int
    """(T,) token ids, `IGNORE` where nothing is asked."""


class Batch(NamedTuple):
    """Several examples, padded at the right with token 0, which no causal model looks at."""

    tokens: Int
    """(B, T) token ids."""
    targets: Int
    """(B, T) token ids, `IGNORE` where nothing is asked."""
    lengths: Int
    """(B,) the length of each, as the task counts it."""
    sizes: Int
    """(B,) how many tokens of each row are no padding."""


def read_last(tokens: Int, answer: int) -> Example:
    """The answer is read from the last position."""
    targets = np.full(len(tokens), IGNORE)
    targets[-1] = answer
    return Example(tokens, targets)


def continued(prompt: Sequence[int] | Int, answer: Sequence[int] | Int) -> Example:
    """The answer follows the prompt, as text goes on; each token of it is predicted."""
    tokens = np.concatenate((prompt, answer[:-1])).astype(np.int64)
    targets = np.full(len(tokens), IGNORE)
    targets[len(prompt) - 1 :] = answer
    return Example(tokens, targets)


def slots(question: Int, answer: Int, blank: int, asked: int) -> Example:
    """Blank slots follow the question, one for each token of the answer; the first are asked for.

    No slot holds an answer, so that all are predicted at once.
    """
    tokens = np.concatenate((question, np.full(len(answer), blank)))
    targets = np.full(len(tokens), IGNORE)
    targets[len(question) : len(question) + asked] = answer[:asked]
    return Example(tokens, targets)


class Task(Options, ABC):
    """Base class. A subclass is a task: its fields are the options, `make` is the definition.

    Class attributes:
        name: what it is registered as.
        splits: "train", "id" (more examples like those of training) and those out of distribution.
        shortest: the least length that the task can have.
        later: options that came after the first records. At their defaults they are no part of the
            name of an experiment.
    """

    name: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("train", "id", "ood")
    shortest: ClassVar[int] = 1
    later: ClassVar[tuple[str, ...]] = ()

    train_lengths: Lengths
    ood_lengths: Lengths

    @model_validator(mode="after")
    def _lengths_are_possible(self) -> Task:
        for length in (*self.train_lengths, *self.ood_lengths):
            self.refuse_length(length)
        return self

    def refuse_length(self, length: int) -> None:
        """Raise ValueError for a length that no example can have."""
        if length < self.shortest:
            raise ValueError(f"{self.name} needs a length of {self.shortest} or more, got {length}")

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """What each token is written as; the token's id is its place here."""

    @property
    @abstractmethod
    def answers(self) -> tuple[int, ...]:
        """Tokens that an answer may be."""

    @abstractmethod
    def make(self, draws: Draws, length: int, split: str) -> Example:
        """An example of this length."""

    @abstractmethod
    def max_tokens(self, length: int) -> int:
        """The most tokens that an example of this length has."""

    @abstractmethod
    def baselines(self) -> tuple[Baseline, ...]:
        """Trivial strategies and what they score."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self.symbols)

    @property
    def chance(self) -> float:
        """Token accuracy of uniform guesses among the answers."""
        return 1 / len(self.answers)

    def if_default(self, measured: Mapping[str, float], **options: Any) -> Mapping[str, float]:
        """Scores that were measured with default options but these; empty where others differ."""
        return measured if self == type(self)(**options) else {}

    def pooled(
        self, right: Callable[[int], float], asked: Callable[[int], float] = lambda length: 1
    ) -> dict[str, float]:
        """Token accuracy by split from right answers and questions per example of each length."""
        share = {}
        for split in self.splits:
            low, high = self.lengths(split)
            lengths = range(low, high + 1)
            share[split] = float(sum(map(right, lengths)) / sum(map(asked, lengths)))
        return share

    def lengths(self, split: str) -> tuple[int, int]:
        """Shortest and longest length of a split, both included.

        Raises ValueError for a split that the task does not have.
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return self.train_lengths if split in ("train", "id") else self.ood_lengths

    def longest(self, *splits: str) -> int:
        """The most tokens that an example of these splits (default: of all) has."""
        return max(self.max_tokens(self.lengths(split)[1]) for split in splits or self.splits)

    def draw_length(self, draws: Draws, split: str) -> int:
        """The length of an example; uniform unless a task says otherwise."""
        low, high = self.lengths(split)
        return draws.integer(low, high + 1)

    def example(
        self, seed: int, index: int, split: str = "train", length: int | None = None
    ) -> Example:
        """Example ``index`` of an endless row, a pure function of the arguments.

        Args:
            length: None: drawn from the lengths of the split.

        Raises:
            ValueError: an unknown split, or a length that no example can have.
        """
        return self._drawn(seed, index, split, length)[0]

    def _drawn(self, seed: int, index: int, split: str, length: int | None) -> tuple[Example, int]:
        self.lengths(split)
        draws = Draws(seed, index, self.splits.index(split))
        if length is None:
            length = self.draw_length(draws, split)
        self.refuse_length(length)
        return self.make(draws, length, split), length

    def batch(
        self,
        seed: int,
        first: int,
        count: int,
        split: str = "train",
        length: int | None = None,
    ) -> Batch:
        """Examples ``first`` to ``first + count - 1``, padded to the longest of them.

        The arguments are those of `example`.
        """
        if count < 1:
            raise ValueError(f"count: expected 1 or more, got {count}")
        drawn = [self._drawn(seed, first + i, split, length) for i in range(count)]
        width = max(len(example.tokens) for example, _ in drawn)
        tokens = np.zeros((count, width), dtype=np.int64)
        targets = np.full((count, width), IGNORE)
        for row, (example, _) in enumerate(drawn):
            tokens[row, : len(example.tokens)] = example.tokens
            targets[row, : len(example.targets)] = example.targets
        lengths = np.array([length for _, length in drawn])
        return Batch(tokens, targets, lengths, np.array([len(e.tokens) for e, _ in drawn]))

    def chance_exact(self, batch: Batch) -> float:
        """Expected share of exact matches of uniform guesses at these examples."""
        asked = (batch.targets != IGNORE).sum(axis=1)
        return float(np.mean(self.chance**asked))

    def score_of(
        self, guess: Guess, split: str, examples: int = 1000, seed: int = 0, **more: Any
    ) -> Score:
        """What a strategy scores on the first examples of a split.

        Args:
            more: ``length``, as `example` takes it.
        """
        batch = self.batch(seed, 0, examples, split, **more)
        predictions = np.zeros_like(batch.targets)
        for row, targets in enumerate(batch.targets):
            (places,) = (targets != IGNORE).nonzero()
            predictions[row, places] = guess(batch.tokens[row], places)
        return score(predictions, batch.targets)

    def text(self, example: Example) -> str:
        """The example as people read it: ``3 1 4 -> _ _ 8``."""
        read = (self.symbols[token] for token in example.tokens)
        said = ("_" if t == IGNORE else self.symbols[t] for t in example.targets)
        return f"{' '.join(read)} -> {' '.join(said)}"
