"""Counting: the value of a variable after a program of assignments and increments.

    pass; a = 0 ; pass; a ++; b = 0 ; a ++; print a  ->  2

CoPE (Golovneva et al. 2024, arXiv:2405.18719; facebookresearch/RAM, projects/cope/scripts/
count_data_gen.py @e6f051fb). A program has 3..512 statements, and the number is uniform. A
statement sets a variable to 0 (weight 1), does nothing (50) or increments a variable that is set
(7). A statement that is not possible, because no variable is set or the value is 10, is redrawn. A
program that sets no variable is redrawn together with its length, which makes short programs rarer.
Tokens are the words between spaces. A model has to find the last assignment and count increments,
not tokens, from there.

In training a program of more than ``block`` tokens is cut at the left, as in the authors' training,
so its assignment may be lost. Programs out of distribution have 513..1024 statements and are whole.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from pe.tasks.core.base import Example, Lengths, Task, read_last
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "facebookresearch/RAM @e6f051fb"
LARGEST = 10
WEIGHTS = SET, PASS, INCREMENT = 1, 50, 7


def value_of(program: Sequence[str], variable: str) -> int:
    """Return the value of a variable at the end of a program.

    Raises:
        KeyError: the program never sets it.
    """
    values: dict[str, int] = {}
    for word, following in zip(program, [*program[1:], ""], strict=True):
        if following == "=":
            values[word] = 0
        elif following == "++;":
            values[word] += 1
    return values[variable]


def draw_program(draws: Draws, statements: int, variables: Sequence[str]) -> tuple[list[str], str]:
    """Draw the words of a program, and a variable that it sets."""
    while True:
        words: list[str] = []
        values: dict[str, int] = {}
        for _ in range(statements):
            words += _draw_statement(draws, variables, values)
        if values:
            return words, list(values)[draws.integer(0, len(values))]


def _draw_statement(draws: Draws, variables: Sequence[str], values: dict[str, int]) -> list[str]:
    while True:
        kind = WEIGHTS[draws.weighted(WEIGHTS)]
        if kind == PASS:
            return ["pass;"]
        if kind == SET:
            variable = variables[draws.integer(0, len(variables))]
            values[variable] = 0
            return [variable, "=", "0", ";"]
        if values:
            variable = list(values)[draws.integer(0, len(values))]
            if values[variable] < LARGEST:
                values[variable] += 1
                return [variable, "++;"]


@register("counting", title="Counting", paper="2405.18719", source=SOURCE)
class Counting(Task):
    """Options: ``variables``, their number (1, 3 and 5 in the paper); ``block``, in tokens."""

    shortest: ClassVar[int] = 3
    variables: Annotated[int, Field(ge=1, le=26)] = 3
    block: Annotated[int, Field(ge=8)] = 512
    train_lengths: Lengths = (3, 512)
    ood_lengths: Lengths = (513, 1024)

    @property
    def symbols(self) -> tuple[str, ...]:
        names = string.ascii_lowercase[: self.variables]
        return (*map(str, range(LARGEST + 1)), "pass;", "=", ";", "++;", "print", *names)

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(LARGEST + 1))

    def max_tokens(self, length: int) -> int:
        whole = 4 * length + 2
        return whole if length > self.train_lengths[1] else min(whole, self.block)

    def draw_length(self, draws: Draws, split: str) -> int:
        """Draw a uniform length, and redraw it where the program sets no variable.

        Increments are not possible before an assignment, so until then a statement is an assignment
        or does nothing. Hence n statements set no variable with probability (50/51)**n.
        """
        while True:
            length = super().draw_length(draws, split)
            if draws.happens(1 - (PASS / (PASS + SET)) ** length):
                return length

    def make(self, draws: Draws, length: int, split: str) -> Example:
        names = string.ascii_lowercase[: self.variables]
        words, variable = draw_program(draws, length, names)
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        tokens: Int = np.array([ids[word] for word in (*words, "print", variable)])
        if split != "ood":
            tokens = tokens[-self.block :]
        return read_last(tokens, value_of(words, variable))

    def baselines(self) -> tuple[Baseline, ...]:
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}

        def recent(tokens: Int, places: Int) -> Int:
            """Return the increments of all variables since the last assignment."""
            seen = tokens[: places[0]]
            (assigned,) = (seen == ids["="]).nonzero()
            begin = assigned[-1] if len(assigned) else 0
            return np.array([min(LARGEST, int((seen[begin:] == ids["++;"]).sum()))])

        return (
            Baseline("ten", "Always 10.", constant(LARGEST)),
            Baseline("zero", "Always 0.", constant(0)),
            Baseline(
                "any variable",
                "The number of increments, of any variable, since the last assignment.",
                recent,
            ),
        )
