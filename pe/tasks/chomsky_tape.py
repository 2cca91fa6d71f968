"""Tasks of the Chomsky hierarchy that need a bounded tape (context-sensitive languages).

    duplicate_string           x_1 .. x_n  ->  x_1 .. x_n x_1 .. x_n
    missing_duplicate_string   w w with one bit replaced by 2  ->  that bit;  3 is added at the end
                               where n is odd
    odds_first                 x_1 .. x_n  ->  x_2 x_4 .. x_1 x_3 ..
    binary_addition            a 2 b, little-endian  ->  a + b, 2, zeros up to length n + 1
    binary_multiplication      a 2 b, little-endian  ->  a b, 2, zeros up to length n
    compute_sqrt               a number, big-endian  ->  floor of its root, ceil(n / 2) bits
    bucket_sort                x_1 .. x_n of 0..4  ->  sorted

See `core.chomsky`. The length of a is uniform in 1..n-2, and numbers are uniform from 1 on. Short
lengths follow the authors' code: for n = 1 or 2 the sum is the number itself and the product is
n - 1 zeros, and for n = 1 the missing bit is 1. ``odds_first`` puts the second, fourth, ... bits
first, as the authors' code does; their docstring says the opposite.
"""

from __future__ import annotations

import math

import numpy as np

from pe.tasks.core.chomsky import PAPER, SOURCE, Bits, Chomsky, OneSymbol, in_order
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

END = SEPARATOR = MISSING = 2
PADDING = 3


def bits_of(number: int, length: int = 0) -> list[int]:
    """Return the little-endian bits of a number, padded with zeros to ``length``; at least one."""
    return [int(bit) for bit in reversed(f"{number:b}".zfill(length))]


def number_of(bits: Int) -> int:
    """Return the number with these little-endian bits."""
    return sum(int(bit) << place for place, bit in enumerate(bits))


@register("duplicate_string", title="Duplicate string", paper=PAPER, source=SOURCE)
class DuplicateString(Bits):
    """Answer the bits twice."""

    def solution(self, question: Int) -> Int:
        return np.concatenate((question, question))

    def max_tokens(self, length: int) -> int:
        return 3 * length

    def baselines(self) -> tuple[Baseline, ...]:
        def once(tokens: Int, places: Int) -> Int:
            length = len(places) // 2
            return np.concatenate((tokens[:length], np.zeros(length, dtype=np.int64)))

        return *super().baselines(), Baseline("once", "The string, then zeros.", once)


@register("missing_duplicate_string", title="Missing duplicate", paper=PAPER, source=SOURCE)
class MissingDuplicateString(OneSymbol):
    """Answer the bit that is hidden in one of two copies of a string."""

    written, outputs = "0123", 2

    def question(self, draws: Draws, length: int) -> Int:
        if length == 1:
            return np.ones(1, dtype=np.int64)
        half = draws.integers(0, 2, length // 2)
        tokens = np.concatenate((half, half, np.full(length % 2, PADDING)))
        tokens[draws.integer(0, 2 * len(half))] = MISSING
        return tokens

    def solution(self, question: Int) -> Int:
        if len(question) == 1:
            return np.ones(1, dtype=np.int64)
        half = len(question) // 2
        return question[[((question == MISSING).argmax() + half) % (2 * half)]]

    def baselines(self) -> tuple[Baseline, ...]:
        return (Baseline("one", "It is always 1.", constant(1)),)


@register("odds_first", title="Odds first", paper=PAPER, source=SOURCE)
class OddsFirst(Bits):
    """Answer the second, fourth, ... bit, and then the first, third, ... bit."""

    def solution(self, question: Int) -> Int:
        return np.concatenate((question[1::2], question[::2]))

    def baselines(self) -> tuple[Baseline, ...]:
        return *super().baselines(), Baseline("in order", "The string as it is.", in_order)


class Binary(Chomsky):
    """Base class of the tasks with two little-endian numbers."""

    written, outputs = "012", 3

    def question(self, draws: Draws, length: int) -> Int:
        if length <= 2:
            return np.array(bits_of(draws.integer(0, 2**length - 1), length))
        first = draws.integer(1, length - 1)
        lengths = first, length - 1 - first
        a, b = (bits_of(1 + draws.below(2**bits - 1), bits) for bits in lengths)
        return np.array([*a, SEPARATOR, *b])

    def asked(self, answer: Int) -> int:
        return int((answer == END).argmax()) + 1


@register("binary_addition", title="Binary addition", paper=PAPER, source=SOURCE)
class BinaryAddition(Binary):
    """Answer the sum of two binary numbers."""

    def solution(self, question: Int) -> Int:
        parts = np.split(question, (question == SEPARATOR).nonzero()[0])
        total = sum(number_of(part[part != SEPARATOR]) for part in parts)
        bits = np.array([*bits_of(total), END])
        return np.pad(bits, (0, len(question) + 1 - len(bits)))

    def baselines(self) -> tuple[Baseline, ...]:
        return *super().baselines(), Baseline("as read", "The question as it is.", in_order)


@register("binary_multiplication", title="Binary multiplication", paper=PAPER, source=SOURCE)
class BinaryMultiplication(Binary):
    """Answer the product of two binary numbers."""

    def solution(self, question: Int) -> Int:
        if len(question) <= 2:
            return np.array([*[0] * (len(question) - 1), END])
        middle = int((question == SEPARATOR).argmax())
        product = number_of(question[:middle]) * number_of(question[middle + 1 :])
        bits = np.array([*bits_of(product), END])
        return np.pad(bits, (0, len(question) - len(bits)))


@register("compute_sqrt", title="Square root", paper=PAPER, source=SOURCE)
class ComputeSqrt(Chomsky):
    """Answer the square root of a binary number, rounded down."""

    written, outputs = "01", 2

    def question(self, draws: Draws, length: int) -> Int:
        number = 1 + draws.below(2**length - 1)
        return np.array(bits_of(number, length)[::-1])

    def solution(self, question: Int) -> Int:
        root = math.isqrt(number_of(question[::-1]))
        return np.array(bits_of(root, math.ceil(len(question) / 2))[::-1])

    def baselines(self) -> tuple[Baseline, ...]:
        return (Baseline("one", "It is all ones.", constant(1)),)


@register("bucket_sort", title="Bucket sort", paper=PAPER, source=SOURCE)
class BucketSort(Chomsky):
    """Answer the symbols in increasing order."""

    written, outputs = "01234", 5

    def solution(self, question: Int) -> Int:
        return np.sort(question)

    def baselines(self) -> tuple[Baseline, ...]:
        def even(tokens: Int, places: Int) -> Int:
            """Return the symbols in order, each at a fifth of the places."""
            return np.arange(len(places)) * self.outputs // len(places)

        return *super().baselines(), Baseline("even", "As many of each symbol.", even)
