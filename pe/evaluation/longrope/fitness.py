"""How good a set of LongRoPE factors is: loss of a trained model that reads with them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pe.data import TokenData, evaluation_windows
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.longrope import LongRoPE
from pe.encodings.rope import RoPE
from pe.evaluation.longrope.evolution import Candidate, Factors, seeds
from pe.evaluation.perplexity import window_losses
from pe.model import PEForCausalLM
from pe.model.convert import convert
from pe.training.build import autocast
from pe.training.recipe import Recipe


@dataclass
class Fitness:
    """A model whose factors can be exchanged, and the text that it is judged on."""

    model: PEForCausalLM
    data: TokenData
    ends: list[int]
    length: int
    recipe: Recipe
    tokens_per_batch: int

    @classmethod
    def of(
        cls, recipe: Recipe, model: PEForCausalLM, data: TokenData, settings: dict[str, Any]
    ) -> Fitness:
        longer = convert(
            model, settings["pe"], factor=settings["factor"], magnitude=settings["magnitude"]
        ).eval()
        length = math.ceil(settings["factor"] * _transforms(longer)[0].original_length)
        ends = evaluation_windows(
            data.validation, length, recipe.target_tokens, settings["windows"]
        )
        batch = 2**17 if model.device.type == "cuda" else 2**13
        return cls(longer, data, ends, length, recipe, batch)

    def seeds(self, factor: float) -> list[Candidate]:
        """What the search begins with, for the spectrum that the model has."""
        rope = next(m for m in self.model.modules() if isinstance(m, RoPE) and len(m.transforms))
        spectrum = base_frequencies(rope.rotary_dim, rope.theta)
        return seeds(spectrum, factor, _transforms(self.model)[0].original_length)

    def nll(self, factors: Factors) -> float:
        """Mean loss of the last targets of each window; the model's factors are exchanged."""
        for transform in _transforms(self.model):
            assert transform.factors is not None
            transform.factors = (factors, transform.factors[1])
        losses = window_losses(
            self.model, self.data.validation, self.ends, self.length, self.tokens_per_batch,
            lambda: autocast(self.recipe, self.model.device),
        )  # fmt: skip
        return float(losses[:, -self.recipe.target_tokens :].mean())


def _transforms(model: PEForCausalLM) -> list[LongRoPE]:
    return [m for m in model.modules() if isinstance(m, LongRoPE)]
