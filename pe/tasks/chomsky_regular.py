"""Regular tasks of the Chomsky hierarchy: a finite automaton solves them (see `core.chomsky`).

    even_pairs            [is the number of unequal neighbours odd?]  = [x_1 differs from x_n]
    modular_arithmetic    d op d op ... d,  op one of + - *,  modulo 5
    parity_check          (x_1 + ... + x_n) mod 2
    cycle_navigation      steps -1, 0, +1 (written 0, 1, 2) on a circle of 5 places, from place 0

All symbols uniform. An expression has an odd length; an even one is reduced by one.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.chomsky import PAPER, SOURCE, Chomsky
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.residues import Float, residues, sum_of
from pe.tasks.core.scoring import Baseline, constant

MODULUS = 5
PLUS, MINUS, TIMES = 5, 6, 7


@register("even_pairs", title="Even pairs", paper=PAPER, source=SOURCE)
class EvenPairs(Chomsky):
    """No options but lengths."""

    written, outputs = "01", 2

    def question(self, draws: Draws, length: int) -> Int:
        return draws.integers(0, 2, length)

    def solution(self, question: Int) -> Int:
        return np.array([int((question[1:] != question[:-1]).sum()) % 2])

    def max_tokens(self, length: int) -> int:
        return length + 1

    def baselines(self) -> tuple[Baseline, ...]:
        def ends(tokens: Int, places: Int) -> Int:
            return np.array([int(tokens[0] != tokens[places[0] - 1])])

        zero = self.pooled(lambda n: 1 if n == 1 else 0.5)
        return (
            Baseline("zero", "It is always even.", constant(0), zero),
            Baseline("ends", "It is odd if the ends differ.", ends, self.pooled(lambda n: 1)),
        )


@register("modular_arithmetic", title="Modular arithmetic", paper=PAPER, source=SOURCE)
class ModularArithmetic(Chomsky):
    """No options but lengths."""

    written, outputs = "01234+-*_", MODULUS

    def question(self, draws: Draws, length: int) -> Int:
        numbers = (length + 1) // 2
        tokens = np.zeros(2 * numbers - 1, dtype=np.int64)
        tokens[::2] = draws.integers(0, MODULUS, numbers)
        tokens[1::2] = draws.integers(PLUS, TIMES + 1, numbers - 1)
        return tokens

    def solution(self, question: Int) -> Int:
        total, term = 0, int(question[0])
        for operator, number in zip(question[1::2], question[2::2], strict=True):
            if operator == TIMES:
                term *= int(number)
            else:
                total, term = total + term, int(number if operator == PLUS else -number)
            term %= MODULUS
        return np.array([(total + term) % MODULUS])

    def max_tokens(self, length: int) -> int:
        return length + 1

    def baselines(self) -> tuple[Baseline, ...]:
        longest = self.longest() // 2
        zero = expressions(longest)
        score = self.pooled(lambda n: zero[(n - 1) // 2])
        return (Baseline("zero", "The result is always 0.", constant(0), score),)


def expressions(numbers: int) -> list[float]:
    """How often an expression of 1, 2, ... ``numbers`` numbers is 0.

    ``state[s, t]`` is the probability of a sum s of finished terms and a current term t.
    """
    state: Float = np.zeros((MODULUS, MODULUS))
    state[0] = 1 / MODULUS
    total, term = np.indices(state.shape)
    share = []
    for _ in range(numbers):
        share.append(float(state[(total + term) % MODULUS == 0].sum()))
        following = np.zeros_like(state)
        for number in range(MODULUS):  # each with + and -, and once with *
            for s, t in np.ndindex(MODULUS, MODULUS):
                following[(s + t) % MODULUS, number] += state[s, t] * 2 / 3 / MODULUS
                following[s, t * number % MODULUS] += state[s, t] / 3 / MODULUS
        state = following
    return share


@register("parity_check", title="Parity check", paper=PAPER, source=SOURCE)
class ParityCheck(Chomsky):
    """No options but lengths."""

    written, outputs = "01", 2

    def question(self, draws: Draws, length: int) -> Int:
        return draws.integers(0, 2, length)

    def solution(self, question: Int) -> Int:
        return np.array([int(question.sum()) % 2])

    def max_tokens(self, length: int) -> int:
        return length + 1

    def baselines(self) -> tuple[Baseline, ...]:
        def last(tokens: Int, places: Int) -> Int:
            return tokens[places - 1]

        one_bit = self.pooled(lambda n: 1 if n == 1 else 0.5)
        return (
            Baseline("zero", "It is always even.", constant(0), self.pooled(lambda n: 0.5)),
            Baseline("last bit", "It is the last bit.", last, one_bit),
        )


@register("cycle_navigation", title="Cycle navigation", paper=PAPER, source=SOURCE)
class CycleNavigation(Chomsky):
    """No options but lengths."""

    written, outputs = "012", MODULUS

    def question(self, draws: Draws, length: int) -> Int:
        return draws.integers(0, 3, length)

    def solution(self, question: Int) -> Int:
        return np.array([int((question - 1).sum()) % MODULUS])

    def max_tokens(self, length: int) -> int:
        return length + 1

    def baselines(self) -> tuple[Baseline, ...]:
        step = residues(-1, 2, MODULUS)
        score = self.pooled(lambda n: sum_of(step, n)[0])
        return (Baseline("start", "It ends where it began.", constant(0), score),)
