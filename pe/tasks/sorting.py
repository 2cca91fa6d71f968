"""Sorting: the items in increasing order.

    symbols   c a b a SEP  ->  a a b c </s>,       of 50 symbols, with repetition
    numbers   3 1 7 , 2 0 , SEP  ->  2 0 , 3 1 7 , </s>,   uniform in 10..9999

Kazemnejad et al. 2023 (arXiv:2305.19466; McGill-NLP/length-generalization @40f8a445,
make_sort_dataset.py). The number of items is uniform in 1..8, and in 9..16 out of distribution. The
authors' 50 T5 tokens have an arbitrary fixed order; to a model the order of our token ids is
arbitrary too. Numbers begin at 10 as in the authors' code; their paper says 0. Here a comma follows
each number, while their text has commas between numbers.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from pe.tasks.addition import digits_of
from pe.tasks.core.base import Example, Lengths, Task, continued
from pe.tasks.core.draws import Draws, Int
from pe.tasks.core.registry import register
from pe.tasks.core.scoring import Baseline, constant

SOURCE = "McGill-NLP/length-generalization @40f8a445"
LOW, HIGH = 10, 10_000


@register("sorting", title="Sorting", paper="2305.19466", source=SOURCE)
class Sorting(Task):
    """Options: ``kind``; ``items``, the number of symbols of the kind symbols."""

    kind: Literal["symbols", "numbers"] = "symbols"
    items: Annotated[int, Field(ge=2)] = 50
    train_lengths: Lengths = (1, 8)
    ood_lengths: Lengths = (9, 16)

    @model_validator(mode="after")
    def _numbers_have_no_items(self) -> Sorting:
        if self.kind == "numbers" and self.items != Sorting.model_fields["items"].default:
            raise ValueError(f"items: has no effect with kind 'numbers', got {self.items}")
        return self

    @property
    def symbols(self) -> tuple[str, ...]:
        written = map(str, range(self.items)) if self.kind == "symbols" else "0123456789,"
        return (*written, "</s>", "SEP")

    @property
    def answers(self) -> tuple[int, ...]:
        return tuple(range(self.vocab_size - 1))

    def max_tokens(self, length: int) -> int:
        return (1 if self.kind == "symbols" else 5) * 2 * length + 1

    def make(self, draws: Draws, length: int, split: str) -> Example:
        *_, end, separator = range(self.vocab_size)
        if self.kind == "symbols":
            x = draws.integers(0, self.items, length)
            return continued([*x, separator], [*np.sort(x), end])
        x = draws.integers(LOW, HIGH, length)
        return continued([*_written(x), separator], [*_written(np.sort(x)), end])

    def baselines(self) -> tuple[Baseline, ...]:
        def unsorted(tokens: Int, places: Int) -> Int:
            """Return the items in the order in which they were read, and the end."""
            read = np.append(tokens[: places[0]], self.vocab_size - 2)
            shown: Int = read[np.minimum(places - places[0], len(read) - 1)]
            return shown

        return (
            Baseline("the end", "Always the end of the answer.", constant(self.vocab_size - 2)),
            Baseline("unsorted", "The items in the order in which they were read.", unsorted),
        )


def _written(numbers: Int) -> list[int]:
    """Return the digits of each number, each time followed by a comma."""
    return [token for number in numbers for token in (*digits_of(int(number)), 10)]
