"""Scores of answers: by token and by exact match, and the strategies that a model has to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from pe.tasks.core.draws import Int

IGNORE = -100
"""The target of a position at which nothing is asked (`pe.model.loss.IGNORE`)."""


class Score(NamedTuple):
    """How many answers are right."""

    tokens_right: int
    tokens: int
    """Positions at which something was asked."""
    examples_right: int
    """Examples of which every answer is right."""
    examples: int

    @property
    def token(self) -> float:
        """Share of right tokens among all that were asked for."""
        return self.tokens_right / self.tokens

    @property
    def exact(self) -> float:
        """Share of examples that are right as a whole.

        Predictions are made with the right answer so far as input. A greedy decoder makes the same
        ones until its first mistake, so its share of exact matches is this one.
        """
        return self.examples_right / self.examples


def score(predictions: Int, targets: Int) -> Score:
    """Compare predicted tokens with targets, both (B, T); only where a target is not `IGNORE`.

    Raises:
        ValueError: the shapes differ, or a row asks for nothing.
    """
    if predictions.shape != targets.shape or targets.ndim != 2:
        raise ValueError(
            f"predictions {predictions.shape} and targets {targets.shape}: expected the same "
            "(examples, tokens)"
        )
    asked = targets != IGNORE
    if not asked.any(axis=1).all():
        raise ValueError("targets: expected at least one per example that is not -100")
    right = (predictions == targets) & asked
    whole = (right == asked).all(axis=1)
    return Score(int(right.sum()), int(asked.sum()), int(whole.sum()), len(targets))


Guess = Callable[[Int, Int], Int]
"""(T,) tokens and the (n,) positions that are asked about -> (n,) tokens as answers.

The answer at a position may depend on the tokens up to that position only, as a model's does."""


class Baseline(NamedTuple):
    """A strategy that needs no understanding of the task, and what it scores."""

    name: str
    meaning: str
    """One sentence."""
    guess: Guess
    score: Mapping[str, float]
    """Token accuracy by split, in the limit of many examples. Empty where no formula is known and
    options differ from those that it was measured with; `Task.score_of` measures it."""


def constant(answer: int) -> Guess:
    """Always the same answer."""

    def guess(tokens: Int, places: Int) -> Int:
        return np.full(len(places), answer)

    return guess


def back(distance: int) -> Guess:
    """The token so many places before the position that is asked about; the first where none is."""

    def guess(tokens: Int, places: Int) -> Int:
        return tokens[np.maximum(places - distance, 0)]

    return guess
