"""A task has options and a generator that is a pure function of (seed, index).

    tokens    (T,) the tokens that the model reads
    targets   (T,) the token to predict at each position from the tokens up to it; -100 at positions
              that ask for nothing

All tasks have this form. The answer may be read from the last position (`read_last`), continue the
prompt (`continued`) or fill blank slots (`slots`). So one decoder, one loss and one score serve
them all. The loss and the predictions of a model use only the logits of `answers`: a model never
predicts a token that is not an answer of the task, and chance is 1 in ``len(answers)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationError,
    model_validator,
)

from pe._errors import explain, unknown
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.scoring import IGNORE, Baseline


def _pair(lengths: Any) -> Any:
    if not isinstance(lengths, list | tuple) or len(lengths) != 2:
        raise ValueError(f"expected two lengths, (shortest, longest), got {lengths!r}")
    return lengths


def _in_order(lengths: tuple[int, int]) -> tuple[int, int]:
    low, high = lengths
    if not 1 <= low <= high:
        raise ValueError(f"expected (shortest, longest), from 1 on, got {lengths}")
    return lengths


Lengths = Annotated[
    tuple[StrictInt, StrictInt],
    Field(strict=False),
    BeforeValidator(_pair),
    AfterValidator(_in_order),
]
"""The shortest and the longest length, both included."""


class Example(NamedTuple):
    """One example."""

    tokens: Int
    """(T,) token ids."""
    targets: Int
    """(T,) token ids, or `IGNORE`."""


class Batch(NamedTuple):
    """Several examples, padded on the right with token 0. Causal models do not see the padding."""

    tokens: Int
    """(B, T) token ids."""
    targets: Int
    """(B, T) token ids, or `IGNORE`."""
    lengths: Int
    """(B,) the length of each example, in the unit of the task."""
    sizes: Int
    """(B,) the number of tokens in each row without the padding."""


def read_last(tokens: Int, answer: int) -> Example:
    """Return an example whose answer is read from the last position."""
    targets = np.full(len(tokens), IGNORE)
    targets[-1] = answer
    return Example(tokens, targets)


def continued(prompt: Sequence[int] | Int, answer: Sequence[int] | Int) -> Example:
    """Return an example whose answer continues the prompt.

    Each token of the answer is predicted.
    """
    tokens = np.concatenate((prompt, answer[:-1])).astype(np.int64)
    targets = np.full(len(tokens), IGNORE)
    targets[len(prompt) - 1 :] = answer
    return Example(tokens, targets)


def slots(question: Int, answer: Int, blank: int, asked: int) -> Example:
    """Return an example with a blank slot after the question for each token of the answer.

    The slots stay blank, so all tokens are predicted at once.

    Args:
        asked: how many of the slots are scored, from the first on.
    """
    tokens = np.concatenate((question, np.full(len(answer), blank)))
    targets = np.full(len(tokens), IGNORE)
    targets[len(question) : len(question) + asked] = answer[:asked]
    return Example(tokens, targets)


class Options(BaseModel):
    """Base class whose fields are the options. Values are not converted, and an instance is frozen.

    Raises:
        ValueError: an unknown option (the message names the nearest known one) or a wrong value.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
    called: ClassVar[str] = "option"
    """What an error message calls an unknown option."""

    def __init__(self, **options: Any) -> None:
        try:
            super().__init__(**options)
        except ValidationError as error:
            lines = explain(error, self.called, type(self).model_fields)
            raise ValueError("; ".join(lines)) from None


class Task(Options, ABC):
    """Base class of tasks. The fields of a subclass are its options, and `make` defines the task.

    Class attributes:
        name: the name in the registry.
        splits: "train", "id" (in distribution: more examples like those of training) and one or
            more splits out of distribution.
        shortest: the least length that an example can have.
        step: all lengths are multiples of this number.
        same_lengths: the splits out of distribution differ from training by more than their
            lengths, so they may use the lengths of training.
        later: options that were added after the first records. An experiment's name contains them
            only where they differ from their defaults.
    """

    name: ClassVar[str] = ""
    splits: ClassVar[tuple[str, ...]] = ("train", "id", "ood")
    shortest: ClassVar[int] = 1
    step: ClassVar[int] = 1
    same_lengths: ClassVar[bool] = False
    later: ClassVar[tuple[str, ...]] = ()

    train_lengths: Lengths
    ood_lengths: Lengths

    @model_validator(mode="after")
    def _lengths_are_possible(self) -> Task:
        for length in (*self.train_lengths, *self.ood_lengths):
            self.refuse_length(length)
        shortest, longest = self.train_lengths
        for split in self.splits[2:]:
            low, high = self.lengths(split)
            if low <= longest and shortest <= high and not self.same_lengths:
                raise ValueError(
                    f"ood_lengths: the split {split!r} has lengths {low} to {high}, and training "
                    f"has {shortest} to {longest}; expected lengths that training does not have"
                )
        return self

    def refuse_length(self, length: int) -> None:
        """Raise ValueError for a length that no example can have."""
        if not isinstance(length, int | np.integer) or isinstance(length, bool):
            raise ValueError(f"length: expected a whole number, got {length!r}")
        if length < self.shortest:
            raise ValueError(f"{self.name} needs a length of {self.shortest} or more, got {length}")
        if length % self.step:
            raise ValueError(f"length {length}: expected a multiple of {self.step}")

    def allows(self, length: int) -> bool:
        """Return whether an example can have this length."""
        try:
            self.refuse_length(length)
        except ValueError:
            return False
        return True

    @property
    @abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """The text of each token. A token's id is its index here."""

    @property
    @abstractmethod
    def answers(self) -> tuple[int, ...]:
        """The tokens that can be an answer."""

    @abstractmethod
    def make(self, draws: Draws, length: int, split: str) -> Example:
        """Make an example of this length."""

    @abstractmethod
    def baselines(self) -> tuple[Baseline, ...]:
        """Return the trivial strategies."""

    def max_tokens(self, length: int) -> int:
        """Return the most tokens that an example of this length has.

        It has as many as its length, in a task whose lengths are in tokens.
        """
        return length

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
        return len(self.symbols)

    @property
    def chance(self) -> float:
        """Token accuracy of uniform guessing among the answers."""
        return 1 / len(self.answers)

    def lengths(self, split: str) -> tuple[int, int]:
        """Return the shortest and the longest length of a split, both included.

        Raises:
            ValueError: the task has no such split.
        """
        if split not in self.splits:
            raise unknown("split", split, self.splits)
        return self.train_lengths if split in ("train", "id") else self.ood_lengths

    def longest(self, *splits: str) -> int:
        """Return the most tokens that an example of these splits (default: all splits) has."""
        return max(self.max_tokens(self.lengths(split)[1]) for split in splits or self.splits)

    def draw_length(self, draws: Draws, split: str) -> int:
        """Draw the length of an example. It is uniform unless a task overrides this method."""
        low, high = self.lengths(split)
        return self.step * draws.integer(low // self.step, high // self.step + 1)

    def example(
        self, seed: int, index: int, split: str = "train", length: int | None = None
    ) -> Example:
        """Return example number ``index``, a pure function of the arguments.

        Args:
            length: None: drawn from the lengths of the split.

        Raises:
            ValueError: an unknown split, a length that no example can have, or a seed or index that
                is not a whole number from 0 to 2**64 - 1.
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
        """Return examples ``first`` to ``first + count - 1``, padded to the longest of them.

        The arguments are those of `example`.
        """
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"count: expected a whole number from 1 on, got {count!r}")
        drawn = [self._drawn(seed, first + i, split, length) for i in range(count)]
        width = max(len(example.tokens) for example, _ in drawn)
        tokens = np.zeros((count, width), dtype=np.int64)
        targets = np.full((count, width), IGNORE)
        for row, (example, _) in enumerate(drawn):
            tokens[row, : len(example.tokens)] = example.tokens
            targets[row, : len(example.targets)] = example.targets
        lengths = np.array([length for _, length in drawn])
        return Batch(tokens, targets, lengths, np.array([len(e.tokens) for e, _ in drawn]))

    def text(self, example: Example) -> str:
        """Return the example as text, tokens and then targets: ``3 1 4 -> _ _ 8``."""
        read = (self.symbols[token] for token in example.tokens)
        said = ("_" if t == IGNORE else self.symbols[t] for t in example.targets)
        return f"{' '.join(read)} -> {' '.join(said)}"
