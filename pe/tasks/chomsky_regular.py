"""Regular tasks of the Chomsky hierarchy, which a finite automaton solves (see `core.chomsky`).

    even_pairs            [is the number of unequal neighbours odd?]  = [x_1 differs from x_n]
    modular_arithmetic    d op d op ... d,  op one of + - *,  modulo 5
    parity_check          (x_1 + ... + x_n) mod 2
    cycle_navigation      steps -1, 0, +1 (written 0, 1, 2) on a circle of 5 places, from place 0

All symbols are uniform. Expressions have odd lengths; an even length is reduced by one.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.chomsky import PAPER, SOURCE, OneSymbol
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

MODULUS = 5
PLUS, MINUS, TIMES = 5, 6, 7


@register("even_pairs", title="Even pairs", paper=PAPER, source=SOURCE)
class EvenPairs(OneSymbol):
    """Answer 1 if the number of neighbours that differ is odd, else 0."""

    written, outputs = "01", 2

    def solution(self, question: Int) -> Int:
        return np.array([int((question[1:] != question[:-1]).sum()) % 2])

    def baselines(self) -> tuple[Baseline, ...]:
        def ends(tokens: Int, places: Int) -> Int:
            return np.array([int(tokens[0] != tokens[places[0] - 1])])

        return *super().baselines(), Baseline("ends", "It is odd if the ends differ.", ends)


@register("modular_arithmetic", title="Modular arithmetic", paper=PAPER, source=SOURCE)
class ModularArithmetic(OneSymbol):
    """Answer the value of an expression without brackets, modulo 5."""

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


@register("parity_check", title="Parity check", paper=PAPER, source=SOURCE)
class ParityCheck(OneSymbol):
    """Answer 1 if the number of ones is odd, else 0."""

    written, outputs = "01", 2

    def solution(self, question: Int) -> Int:
        return np.array([int(question.sum()) % 2])

    def baselines(self) -> tuple[Baseline, ...]:
        def last(tokens: Int, places: Int) -> Int:
            return tokens[places - 1]

        return *super().baselines(), Baseline("last bit", "It is the last bit.", last)


@register("cycle_navigation", title="Cycle navigation", paper=PAPER, source=SOURCE)
class CycleNavigation(OneSymbol):
    """Answer the place on a circle of five after all steps."""

    written, outputs = "012", MODULUS

    def solution(self, question: Int) -> Int:
        return np.array([int((question - 1).sum()) % MODULUS])

    def baselines(self) -> tuple[Baseline, ...]:
        return (Baseline("start", "It ends where it began.", constant(0)),)
