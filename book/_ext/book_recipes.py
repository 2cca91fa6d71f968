"""The named recipes as a table: what each trains, and its memory and time from records.

| ```{recipes}```    the recipes of `pe.RECIPES`

Sizes are those of the RoPE model. On a GPU, memory comes from a speed record of the recipe, and
time is the recipe's tokens divided by the tokens per second of that record. On a CPU, both come
from recorded runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import ClassVar, NamedTuple

import torch
from book_directives import RESULTS, Made
from book_studies import Snapshot

from pe.recipes.named import RECIPES
from pe.recipes.recipe import Recipe
from pe.results.markdown import pipe
from pe.results.quantities import duration, whole
from pe.speed import tables
from pe.speed.record import Speed

HEADS = (
    "recipe", "parameters", "layers × width", "context", "steps", "tokens", "memory",
    "time", "measured on", "text",
)  # fmt: skip
DECISIVE = (
    "pe", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
    "intermediate_size", "context_length", "batch_size", "micro_batch_size", "steps",
    "precision", "deterministic",
)  # fmt: skip
"""Fields of a recipe that decide what it costs."""
GIB = "{:.1f} GiB"


class Cost(NamedTuple):
    """What a run takes, and where that was measured."""

    memory: str
    time: str
    where: str


NOT_MEASURED = Cost("–", "–", "not measured")


def parameters(recipe: Recipe) -> int:
    """Count the parameters of the recipe's model."""
    from pe.model import PEForCausalLM  # it imports transformers
    from pe.training.build import build_config

    with torch.device("meta"):
        model = PEForCausalLM(build_config(recipe, recipe.vocab_size))
    return sum(parameter.numel() for parameter in model.parameters())


def cost(recipe: Recipe, runs: Sequence[Snapshot], speeds: Sequence[Speed]) -> Cost:
    """Return the cost from a speed record of the recipe, or else from recorded runs on a CPU.

    Runs on a GPU do not count: several of them may have shared it, and their records do not say so.
    """
    speed = tables.best([s for s in speeds if s.on_gpu and s.settings["recipe"] == recipe.name])
    result = speed.result(recipe.pe, "train", recipe.context_length) if speed else None
    if speed and result and result.tokens_per_second is not None:
        return Cost(
            GIB.format(result["peak_memory_gib"]),
            duration(tokens(recipe) / result.tokens_per_second),
            speed.hardware["name"],
        )
    wanted = recipe.to_dict()
    matching = [
        run.record
        for run in runs
        if run.record["hardware"]["device"] == "cpu"
        and all(run.record["recipe"].get(name, wanted[name]) == wanted[name] for name in DECISIVE)
    ]
    if not matching:
        return NOT_MEASURED
    machine, training = matching[0]["hardware"], [record["training"] for record in matching]
    return Cost(
        GIB.format(max(one["peak_memory_gib"] for one in training)),
        duration(median(one["wall_seconds"] for one in training)),
        f"{machine['name']}, {machine['cores']} cores",
    )


def millions(number: int) -> str:
    """Write ``34.1 M`` or ``1,049 M``."""
    return f"{number / 1e6:,.{1 if number < 1e8 else 0}f} M"


def tokens(recipe: Recipe) -> int:
    """Count the tokens that a run is trained on."""
    return recipe.steps * recipe.batch_size * recipe.context_length


def table(recipes: Mapping[str, Recipe], runs: Sequence[Snapshot], speeds: Sequence[Speed]) -> str:
    """Write a line per recipe."""
    lines = []
    for name, recipe in recipes.items():
        lines.append([
            f"`{name}`", millions(parameters(recipe)),
            f"{recipe.num_hidden_layers} × {recipe.hidden_size}", whole(recipe.context_length),
            whole(recipe.steps), millions(tokens(recipe)), *cost(recipe, runs, speeds),
            f"`{recipe.corpus}`",
        ])  # fmt: skip
    return pipe(HEADS, lines)


class Recipes(Made):
    """The table of all recipes."""

    required_arguments = 0
    classes: ClassVar[list[str]] = [RESULTS, "pe-recipes"]

    def text(self) -> str:
        return table(RECIPES, self.book.studies.complete(), self.book.speeds.all)
