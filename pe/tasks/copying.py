"""Copy and reverse: the answer repeats the sequence, in the same or in the opposite order.

    copy     repeat         a a a     ->  a a a </s>
             repeat_twice   a a a     ->  a a a a a a </s>
             replace        a b : a a a  ->  b b b </s>
             random         a b c     ->  a b c </s>
             random_twice   a b c     ->  a b c NEXT a b c </s>
    reverse  once           a b c     ->  c b a </s>
             twice          a b c     ->  c b a NEXT c b a </s>
             then_copy      a b c     ->  c b a NEXT a b c </s>

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_copy_dataset.py and make_reverse_dataset.py, which call the kinds rsc, rsc2x, rdc, cmc, cmc2x;
mc, mc2x, mcrv). Lengths are uniform in 2..20, as in the authors' exported runs, and in 21..40 out
of distribution. Each symbol is one token here, and every kind has 100 symbols; the authors write
text of T5 tokens, and take some thousand of them for repeat and replace. The first three kinds test
counting, the others copying. The authors' prompts always begin with the same words. With ``marked``
ours begin with a token that occurs nowhere else, from which a decoder without an encoding can
count.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, continued
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"


class Copying(Task):
    """Base class of copy and reverse.

    Options: ``items``, the number of symbols; ``marked``, whether a mark comes first.
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
        """Return the answer to the sequence ``x``, without the end token."""

    def _asked(self, x: Int) -> Example:
        end, separator = self._ends
        return self._continued([*x, separator], [*self.answer(x), end])

    @property
    def _ends(self) -> tuple[int, int]:
        """The tokens that end the answer and the prompt."""
        return self.items + 1, self.items + 2

    def _continued(self, prompt: list[int], answer: list[int]) -> Example:
        mark = self.items + 3
        return continued([mark] * self.marked + prompt, answer)

    def make(self, draws: Draws, length: int, split: str) -> Example:
        return self._asked(draws.integers(0, self.items, length))

    def max_tokens(self, length: int) -> int:
        return self.marked + length + 1 + len(self.answer(np.arange(length)))

    def baselines(self) -> tuple[Baseline, ...]:
        return (
            Baseline("the end", "Always the end of the answer.", constant(self.items + 1)),
            Baseline("one symbol", "Always symbol 0.", constant(0)),
        )


@register("copy", title="Copy", paper="2305.19466", source=SOURCE)
class Copy(Copying):
    """Options: ``kind``, and those of `Copying`."""

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
        meaning = "Always the symbol to write, and never the end."
        return (
            *super().baselines(),
            Baseline("no end", meaning, self._symbol_to_write),
        )

    def _symbol_to_write(self, tokens: Int, places: Int) -> Int:
        return np.full(len(places), tokens[1 + self.marked])


@register("reverse", title="Reverse", paper="2305.19466", source=SOURCE)
class Reverse(Copying):
    """Options: ``kind``, and those of `Copying`."""

    kind: Literal["once", "twice", "then_copy"] = "once"

    def answer(self, x: Int) -> Int:
        if self.kind == "once":
            return x[::-1]
        second = x if self.kind == "then_copy" else x[::-1]
        return np.concatenate((x[::-1], [self.items], second))
