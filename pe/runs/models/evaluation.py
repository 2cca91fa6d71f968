"""evaluation.json: perplexity and retrieval by context length."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import Field, StringConstraints

from pe.runs.models.parts import (
    Cell,
    Code,
    Created,
    Part,
    Perplexity,
    Reason,
    Record,
    Scored,
    Seconds,
    Tokens,
)

WindowPerplexity = Annotated[
    dict[Tokens, Cell], Field(description="By length: all tokens of the window but the first.")
]


class LossByPosition(Part):
    """Mean loss by position in the window, at the longest length that has a value."""

    length: int | None
    """Tokens of the windows."""
    edges: list[int]
    """Bin edges, one more than values: bin i holds the tokens predicted from positions edges[i] to
    edges[i+1]-1."""
    nll: list[float]
    """Nats per token in each bin."""


Number = TypeVar("Number")


class Answers(Part, Generic[Number]):
    """Prompts, or single digits, that were answered correctly."""

    exact: Number
    """Prompts with all digits right, chosen among the ten digits."""
    greedy: Number
    """Prompts with all digits right, chosen from the whole vocabulary."""
    digits: Number
    """Single digits right, chosen among the ten."""


class Controls(Part):
    """The same prompts without the answer in the text, summed over all depths."""

    removed: Answers[int]
    """The needle removed."""
    another: Answers[int]
    """The needle stating another number."""


class RetrievalCell(Answers[list[int] | None]):
    """One length of prompt and answer, in tokens: counts by depth, null where there are none."""

    controls: Controls | None
    reason: Reason


class Retrieval(Part):
    """Numbers hidden in test text: how many prompts (or single digits) were answered correctly.
    Only if the recipe asks for it."""

    samples: int
    """Prompts for each length and depth."""
    depths: list[float]
    """Share of the text before the number."""
    digits: int
    """Digits of an answer."""
    tasks: dict[str, dict[Tokens, RetrievalCell]]
    """By task, and by length in tokens."""


class NeedleCell(Part):
    """One length of prompt and answers, in tokens."""

    prompts: Annotated[str, StringConstraints(pattern=r"^[01]+$")] | None
    """1 for each prompt whose answers are all right and 0 for the others, in an order that is the
    same for every model; null where the model cannot be run, or its logits are not finite."""
    numbers: float | None = None
    """Share of the numbers that are right."""
    digits: float | None = None
    """Share of the digits that are right, each chosen among the ten; chance 0.1."""
    controls: dict[str, int] | None = None
    """Prompts that are right although the text lacks the answer: ``removed`` and ``another``."""
    reason: Reason


class Needles(Part):
    """The same for recipes with retrieval_tasks: numbers of seven digits, hits of each prompt."""

    count: int
    """Prompts for each task and length."""
    seed: int
    """Of the prompts."""
    digits: int
    """Digits of a number."""
    tasks: dict[str, dict[Tokens, NeedleCell]]
    """By task, and by length in tokens."""


class Measures(Part):
    """Measurements of a model by context length."""

    perplexity: Perplexity
    window_perplexity: WindowPerplexity
    loss_by_position: LossByPosition
    retrieval: Retrieval | None = None
    needles: Needles | None = None


class Fit(Part):
    """A length temperature fitted on validation text."""

    value: float | None
    """c in the factor 1 + c ln(n / L) of the logits of a query that sees n > L tokens; null if the
    loss at c = 0 is not finite."""
    nll: float | None
    """Mean loss on the validation windows with it, nats per token."""
    nll_without: float | None
    """The same at c = 0."""
    lengths: list[int]
    """Context lengths it was fitted on, in tokens."""
    windows: int
    """Validation windows."""
    trials: list[list[float | None]]
    """Every [c, nll] that was tried; null for a loss that is not finite."""
    at_bound: bool = False
    """Whether the search ended at an end of its range, so that the best c may be outside of it. Not
    in older records."""
    reason: Reason = None
    """Why there is no value. Not in older records."""


class Tempered(Part):
    """The same measurements with a length temperature fitted on validation text, where the recipe
    asks for it."""

    fit: Fit | None
    """That of the shortest length; null where no length lies beyond the training context, or where
    that length has no fit."""
    fits: dict[Tokens, Fit] = {}
    """By length beyond the training context: the fit that is used at that length. Not in older
    records, which used one fit over all lengths."""
    reason: str | None
    """Why there is no fit."""
    perplexity: Perplexity = {}
    window_perplexity: WindowPerplexity = {}
    loss_by_position: LossByPosition | None = None
    retrieval: Retrieval | None = None
    needles: Needles | None = None


class Precision(Part):
    """Types of matrix products and of the residual stream."""

    products: str
    """Type of matrix products, such as bfloat16."""
    residual: str
    """Type of the residual stream."""


class Spread(Part):
    """How spread attention is at a length."""

    entropy: list[list[float]] | None
    """By layer and head, the mean entropy of the last queries in nats; null where the model cannot
    be run, or where the probabilities of a layer would not fit."""
    reason: Reason


class AttentionSpread(Part):
    """How spread attention is by context length, for the same queries."""

    queries: int
    """Last tokens of each window, whose attention counts."""
    windows: int
    """Test windows."""
    lengths: dict[Tokens, Spread]
    """By length in tokens."""


class Evaluation(Measures, Scored, Record):
    """Evaluation of a trained model, also beyond its training length."""

    created: Created
    code: Code | None = None
    """The code that evaluated. Not in older records."""
    windows_wanted: int | None = None
    """Windows that the recipe asked for; the corpus may have fewer. Not in the oldest records."""
    precision: Precision | None = None
    """Types of matrix products and of the residual stream. Not in older records: those of the
    recipe, the residual stream as the products."""
    seconds: Seconds
    attention: AttentionSpread | None = None
    """Not in older records."""
    tempered: Tempered | None = None
