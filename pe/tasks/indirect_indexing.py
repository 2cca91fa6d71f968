"""Indirect indexing: the letter a given number of places to the right or left of a given letter.

    q w e r t y , e , + 2 ,  ->  y

PoPE (Gopalakrishnan et al. 2025, arXiv:2509.10534). The prompt has a string of 20..40 different
letters from a-z and A-Z, a letter of it, and a shift from -15 to 15. The answer is the letter at
the shifted place. Each character is one token, and only the answer is scored. The model has to keep
what and where apart: it finds the given letter by its identity, and the answer by its position.

The paper leaves some details open. Here all pairs of a letter and a shift that lead to a place
inside the string are equally probable, a shift of 0 is written +0, and there are no spaces. Strings
of 41..52 letters are out of distribution; the paper has no such split.
"""

from __future__ import annotations

import string
from typing import Annotated

import numpy as np
from pydantic import Field

from pe.tasks.addition import digits_of
from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline

LETTERS = len(string.ascii_letters)
COMMA, PLUS, MINUS = LETTERS + 10, LETTERS + 11, LETTERS + 12


@register(
    "indirect_indexing",
    title="Indirect indexing",
    paper="2509.10534",
    source="text of arXiv:2509.10534",
)
class IndirectIndexing(Task):
    """Options: ``farthest``, the largest shift. Lengths are in letters, at most 52."""

    farthest: Annotated[int, Field(ge=1)] = 15
    train_lengths: Lengths = (20, 40)
    ood_lengths: Lengths = (41, LETTERS)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*string.ascii_letters, *string.digits, ",", "+", "-")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(LETTERS))

    def max_tokens(self, length: int) -> int:
        return length + 5 + len(str(self.farthest))

    def _pairs(self, length: int) -> tuple[Int, Int]:
        """Return all pairs (place, shift) that lead to a place inside the string."""
        place, shift = np.mgrid[:length, -self.farthest : self.farthest + 1].reshape(2, -1)
        inside = (place + shift >= 0) & (place + shift < length)
        return place[inside], shift[inside]

    def refuse_length(self, length: int) -> None:
        super().refuse_length(length)
        if length > LETTERS:
            raise ValueError(f"there are {LETTERS} letters, too few for a length of {length}")

    def make(self, draws: Draws, length: int, split: str) -> Example:
        letters = draws.distinct(LETTERS, length)
        places, shifts = self._pairs(length)
        chosen = draws.integer(0, len(places))
        place, shift = places[chosen], int(shifts[chosen])
        digits = [LETTERS + digit for digit in digits_of(abs(shift))]
        query = [COMMA, letters[place], COMMA, MINUS if shift < 0 else PLUS, *digits, COMMA]
        return read_last(np.append(letters, query), letters[place + shift])

    def baselines(self) -> tuple[Baseline, ...]:
        def shifted(tokens: Int, by: int) -> Int:
            comma = int((tokens == COMMA).argmax())
            place = int((tokens[:comma] == tokens[comma + 1]).argmax())
            return tokens[[min(place + by, comma - 1)]]

        def same(tokens: Int, places: Int) -> Int:
            return shifted(tokens, 0)

        def neighbour(tokens: Int, places: Int) -> Int:
            return shifted(tokens, 1)

        def first(tokens: Int, places: Int) -> Int:
            return tokens[:1]

        return (
            Baseline("same", "The letter that is asked about.", same),
            Baseline("neighbour", "The letter to its right.", neighbour),
            Baseline("first", "The first letter of the string.", first),
        )
