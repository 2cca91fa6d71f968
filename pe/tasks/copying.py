"""Copy and reverse: the answer is the sequence again, in one order or another.

    copy     repeat         a a a     ->  a a a </s>
             repeat_twice   a a a     ->  a a a a a a </s>
             replace        a b : a a a  ->  b b b </s>
             random         a b c     ->  a b c </s>
             random_twice   a b c     ->  a b c NEXT a b c </s>
    reverse  once           a b c     ->  c b a </s>
             twice          a b c     ->  c b a NEXT c b a </s>
             then_copy      a b c     ->  c b a NEXT a b c </s>

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_copy_dataset.py and make_reverse_dataset.py, where they are rsc, rsc2x, rdc, cmc, cmc2x; mc,
mc2x, mcrv). Lengths uniform in 2..20, as in the authors' exported runs, then 21..40. One token per
symbol in place of their text of T5 tokens; 100 symbols in every kind, where theirs repeat and
replace some thousands of T5 tokens. The first three kinds are counting, the others copying. Their
prompts begin with words that are always the same; with ``marked`` ours begin with a token that is
nowhere else, from which a decoder without an encoding can count.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, continued
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, Guess, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"


class Copying(Task):
    """What copy and reverse share.

    Options: ``items``, how many symbols there are; ``marked``, whether a mark comes first.
    """

    later: ClassVar[tuple[str, ...]] = ("marked",)

    items: Annotated[int, Field(ge=2)] = 100
    marked: bool = False
    train_lengths: Lengths = (2, 20)
    ood_lengths: Lengths = (21, 40)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.items)), "NEXT", "</s>", "SEP", *["<s>"] * self.marked)

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.items + 2))

    @abstractmethod
    def answer(self, x: Int) -> Int:
        """What the sequence ``x`` is answered with, without the end token."""

    def _asked(self, x: Int) -> Example:
        end, separator = self._ends
        return self._continued([*x, separator], [*self.answer(x), end])

    @property
    def _ends(self) -> tuple[int, int]:
        """The tokens that end an answer and a prompt."""
        return self.items + 1, self.items + 2

    def _continued(self, prompt: list[int], answer: list[int]) -> Example:
        mark = self.items + 3
        return continued([mark] * self.marked + prompt, answer)

    def make(self, draws: Draws, length: int, split: str) -> Example:
        return self._asked(draws.integers(0, self.items, length))

    def max_tokens(self, length: int) -> int:
        return self.marked + length + 1 + len(self.answer(np.arange(length)))

    def baselines(self) -> tuple[Baseline, ...]:
        marks = len(self.answer(np.arange(2))) % 2  # a NEXT in the middle
        return (
            self._stated("the end", "It ends here.", constant(self.items + 1), 0.0, 1),
            self._stated("one symbol", "Always symbol 0.", constant(0), 1 / self.items, 0, marks),
        )

    def _stated(
        self, name: str, meaning: str, guess: Guess, share: float, ends: int, marks: int = 0
    ) -> Baseline:
        """A baseline that is right at a share of the symbols, and at the end or not."""

        def size(length: int) -> int:
            return len(self.answer(np.arange(length)))

        score = self.pooled(lambda n: share * (size(n) - marks) + ends, lambda n: size(n) + 1)
        return Baseline(name, meaning, guess, score)


@register("copy", title="Copy", paper="2305.19466", source=SOURCE)
class Copy(Copying):
    """Options: ``kind``, ``items``, ``marked``."""

    kind: Literal["repeat", "repeat_twice", "replace", "random", "random_twice"] = "random"

    def answer(self, x: Int) -> Int:
        match self.kind:
            case "repeat_twice":
                return np.concatenate((x, x))
            case "random_twice":
                return np.concatenate((x, [self.items], x))
            case _:
                return x

    def make(self, draws: Draws, length: int, split: str) -> Example:
        if self.kind.startswith("random"):
            return super().make(draws, length, split)
        one, other = draws.distinct(self.items, 2)
        if self.kind != "replace":
            return self._asked(np.full(length, one))
        end, separator = self._ends
        prompt = [one, other, separator, *[one] * length, separator]
        return self._continued(prompt, [*[other] * length, end])

    def max_tokens(self, length: int) -> int:
        return super().max_tokens(length) + 3 * (self.kind == "replace")

    def baselines(self) -> tuple[Baseline, ...]:
        if self.kind.startswith("random"):
            return super().baselines()
        meaning = "Always the symbol to write, without an end."
        return (
            *super().baselines(),
            self._stated("no end", meaning, self._symbol_to_write, 1.0, 0),
        )

    def _symbol_to_write(self, tokens: Int, places: Int) -> Int:
        return np.full(len(places), tokens[1 + self.marked])


@register("reverse", title="Reverse", paper="2305.19466", source=SOURCE)
class Reverse(Copying):
    """Options: ``kind``, ``items``, ``marked``."""

    kind: Literal["once", "twice", "then_copy"] = "once"

    def answer(self, x: Int) -> Int:
        if self.kind == "once":
            return x[::-1]
        second = x if self.kind == "then_copy" else x[::-1]
        return np.concatenate((x[::-1], [self.items], second))
