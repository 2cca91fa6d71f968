"""Scores by token and by exact match, and the trivial strategies that a model has to beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pe.tasks.core.draws import Int

IGNORE = -100
"""The target of a position that asks for nothing (`pe.model.loss.IGNORE`)."""


class Score(NamedTuple):
    """How many tokens and how many whole examples are right."""

    tokens_right: int
    tokens: int
    """Positions that ask for an answer."""
    examples_right: int
    """Examples in which every answer is right."""
    examples: int

    @property
    def token(self) -> float:
        """Share of the tokens asked for that are right."""
        return self.tokens_right / self.tokens

    @property
    def exact(self) -> float:
        """Share of examples in which every token is right.

        Each token is predicted from the correct tokens before it. A greedy decoder makes the same
        predictions until its first mistake, so its share of exact matches is the same.
        """
        return self.examples_right / self.examples


def score(predictions: Int, targets: Int) -> Score:
    """Compare predicted tokens with targets, both (B, T), wherever the target is not `IGNORE`.

    Raises:
        ValueError: the shapes differ, or all targets of a row are `IGNORE`.
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
"""A strategy: (T,) tokens and the (n,) positions that ask for an answer -> (n,) tokens.

As with a causal model, an answer may depend only on the tokens up to its position."""


class Baseline(NamedTuple):
    """A trivial strategy, which does not solve the task as intended (`guessed`)."""

    name: str
    meaning: str
    """One sentence."""
    guess: Guess


def guessed(guess: Guess, tokens: Int, targets: Int) -> Score:
    """Return the score of a strategy on a batch of (B, T) tokens and targets."""
    predictions = np.zeros_like(targets)
    for row, asked in enumerate(targets != IGNORE):
        (places,) = asked.nonzero()
        predictions[row, places] = guess(tokens[row], places)
    return score(predictions, targets)


def constant(answer: int) -> Guess:
    """Return the strategy that always gives the same answer."""

    def guess(tokens: Int, places: Int) -> Int:
        return np.full(len(places), answer)

    return guess


def back(distance: int) -> Guess:
    """Return the strategy that repeats the token ``distance`` positions back, or the first."""

    def guess(tokens: Int, places: Int) -> Int:
        return tokens[np.maximum(places - distance, 0)]

    return guess
