"""Addition of two numbers, written digit by digit.

    a_1 .. a_n + b_1 .. b_m =  ->  c_1 .. c_k </s>,   c = a + b, the largest digit first

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_addition_dataset.py). The pair (n, m) is uniform over the grid of 1..8 by 1..8. Out of
distribution it is uniform over the pairs up to 16 in which at least one number is above 8. The
length is the larger of n and m; the smaller begins at 1, whatever the shortest length.
No number begins with 0, except 0 itself. Each digit is one token, as in the authors' text.
"""

from __future__ import annotations

import numpy as np

from pe.tasks.core.base import Example, Lengths, Task, continued
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"
END, PLUS, EQUALS = 10, 11, 12


def digits_of(number: int) -> list[int]:
    """Return the decimal digits, the largest first."""
    return [int(digit) for digit in str(number)]


def number_with(draws: Draws, digits: int) -> int:
    """Draw a uniform number with this many digits. A number with one digit may be 0."""
    low = 10 ** (digits - 1) if digits > 1 else 0
    return low + draws.below(10**digits - low)


@register("addition", title="Addition", paper="2305.19466", source=SOURCE)
class Addition(Task):
    """Options: the lengths, in digits of the longer number."""

    train_lengths: Lengths = (1, 8)
    ood_lengths: Lengths = (9, 16)

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*"0123456789", "</s>", "+", "=")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(11))

    def max_tokens(self, length: int) -> int:
        return 3 * length + 3

    def draw_length(self, draws: Draws, split: str) -> int:
        """Draw the larger number of digits of a uniform pair: it is n in 2n - 1 pairs."""
        low, high = self.lengths(split)
        return low + draws.weighted([2 * n - 1 for n in range(low, high + 1)])

    def make(self, draws: Draws, length: int, split: str) -> Example:
        pair = draws.integer(0, 2 * length - 1)
        lengths = (length, pair + 1) if pair < length else (pair - length + 1, length)
        a, b = (number_with(draws, digits) for digits in lengths)
        prompt = [*digits_of(a), PLUS, *digits_of(b), EQUALS]
        return continued(prompt, [*digits_of(a + b), END])

    def baselines(self) -> tuple[Baseline, ...]:
        def longer(tokens: Int, places: Int) -> Int:
            """Return the longer number, and the end."""
            plus, equals = (int((tokens == mark).argmax()) for mark in (PLUS, EQUALS))
            a, b = tokens[:plus], tokens[plus + 1 : equals]
            answer: Int = np.append(a if len(a) >= len(b) else b, END)
            shown: Int = answer[np.minimum(places - places[0], len(answer) - 1)]
            return shown

        return (
            Baseline("the end", "Always the end of the answer.", constant(END)),
            Baseline("longer number", "The sum is the longer number.", longer),
        )
