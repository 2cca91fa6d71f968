"""extension.json and longrope-<factor>x.json: a trained run evaluated with other frequencies."""

from __future__ import annotations

from typing import Any

from pe.runs.models.evaluation import Needles
from pe.runs.models.parts import Computed, Part, Perplexity, Record, Scored, TargetTokens, Tokens
from pe.runs.models.run import Retrained


class ExtensionCell(Computed):
    """One conversion."""

    pe: str
    """Encoding the model was converted to."""
    options: dict[str, Any]
    """Its options; empty where ``by_length`` has them."""
    by_length: dict[Tokens, dict[str, Any]] | None = None
    """Options at each length beyond the training length, where the factor equals the length."""
    retrained: Retrained | None = None
    """Only if the run's weights were lost and those of a second training were measured."""
    perplexity: Perplexity
    needles: Needles | None = None
    """Only if the recipe names retrieval tasks; not in older records."""


class Extension(Scored, Record):
    """A trained rotary model extended without training, by method and factor.

    The windows are those of evaluation.json.
    """

    cells: dict[str, ExtensionCell]
    """By method and factor, such as yarn@4 and yarn@length."""


class Candidate(Part):
    """One vector of factors and its loss."""

    generation: int
    """0: the seeds and their mutations."""
    origin: str
    """A seed's name (pi, ntk, yarn, blend, or ntk to some factor), mutation or crossover."""
    nll: float | None
    """Mean negative log likelihood in nats per token; null if it is not finite."""
    perplexity: float | None
    """exp(nll)."""
    factors: list[float]
    """The number by which each frequency is divided."""


class SearchSettings(Part):
    """The settings of the search, and values that follow from them."""

    pe: str
    """Encoding that the model is converted to."""
    factor: float
    """The extended length, divided by the training length."""
    magnitude: str | float
    """LongRoPE's option, for all candidates."""
    population: int
    """Size of the first generation."""
    seed: int
    """Of all random choices."""
    windows: int
    """Windows asked for."""
    length: int
    """Tokens of a window."""
    target_tokens: TargetTokens
    windows_found: int
    """Windows that the corpus has, each inside one validation document."""
    data: str
    """Fingerprint of the texts."""
    needles: str | None = None
    """Retrieval task whose answers are scored (LongRoPE2); only where there is one."""
    critical: int | None = None
    """With needles, the critical frequency that was asked for; null: the last that completed a full
    rotation in training."""


class Search(Computed, Record):
    """A search for LongRoPE's factors: every candidate and its loss."""

    settings: SearchSettings
    history: list[Candidate]
    """Every candidate in the order of evaluation."""
    best: Candidate | None
    """The candidate with the least loss; the first of equals."""
