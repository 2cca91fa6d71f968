"""How good a set of LongRoPE factors is: loss of a trained model that reads with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pe.data import TokenData
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.longrope import LongRoPE
from pe.encodings.rope import RoPE
from pe.evaluation.longrope.evolution import Candidate, Factors, seeds
from pe.evaluation.scorer import Scorer
from pe.model import PEForCausalLM
from pe.model.convert import convert
from pe.recipes.recipe import Recipe


@dataclass
class Fitness:
    """A model whose factors can be exchanged, on validation text of the length searched for."""

    scorer: Scorer
    length: int

    @classmethod
    def of(
        cls, recipe: Recipe, model: PEForCausalLM, data: TokenData, settings: dict[str, Any]
    ) -> Fitness:
        longer = convert(
            model, settings["pe"], factor=settings["factor"], magnitude=settings["magnitude"]
        ).eval()
        length = math.ceil(settings["factor"] * _transforms(longer)[0].original_length)
        windows = settings["windows"]
        scorer = Scorer(longer, data, recipe, [length], split="validation", windows=windows)
        return cls(scorer, length)

    def seeds(self, factor: float) -> list[Candidate]:
        """What the search begins with, for the spectrum that the model has."""
        model = self.scorer.model
        rope = next(m for m in model.modules() if isinstance(m, RoPE) and len(m.transforms))
        spectrum = base_frequencies(rope.rotary_dim, rope.theta)
        return seeds(spectrum, factor, _transforms(model)[0].original_length)

    def nll(self, factors: Factors) -> float:
        """Mean loss of the last targets of each window; the model's factors are exchanged."""
        for transform in _transforms(self.scorer.model):
            assert transform.factors is not None
            transform.factors = (factors, transform.factors[1])
        return self.scorer.nll(self.length)


def _transforms(model: PEForCausalLM) -> list[LongRoPE]:
    return [m for m in model.modules() if isinstance(m, LongRoPE)]
