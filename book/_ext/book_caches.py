"""Released models' schedules, and how much a cache holds under a schedule.

| ```{preset-table}            each preset, its spec, and where its numbers are from
| ```{cache-sizes}             keys and values after 32,768 tokens, of each preset's own model
| ```{cache-sizes} windows     the same of the model of a study, a line for each schedule in it

`pe.model.cache.held_tokens` builds such a cache and counts the tokens that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from book_directives import Made

from pe.encodings.core.presets import PRESETS
from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.results.rows import short
from pe.study.plan import load_plan

TOKENS = 32_768
BYTES = 2
"""The size of a number in bfloat16."""


class Cached(NamedTuple):
    """A model, as its cache sees it."""

    name: str
    spec: str
    layers: int
    kv_heads: int
    head_dim: int

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the cache after `TOKENS` tokens, with windows and without."""
        from pe.model.cache import held_tokens  # it imports transformers

        held = held_tokens(self.spec, self.layers, TOKENS)
        each = 2 * self.kv_heads * self.head_dim * BYTES
        return sum(held) * each, TOKENS * self.layers * each


def preset_table() -> str:
    """Write a table of the presets: name, model, spec, and the source of the numbers."""
    lines = [[f"`{name}`", preset.model, f"`{preset.spec}`", preset.source]
             for name, preset in PRESETS.items()]  # fmt: skip
    return pipe(["name", "model", "spec", "numbers from"], lines, 4)


def cache_table(models: Sequence[Cached]) -> str:
    """Write a line per model: the size of its cache with and without windows, and their ratio."""
    lines = []
    for model in models:
        held, whole = model.sizes()
        size = f"{model.layers} × {model.kv_heads} × {model.head_dim}"
        lines.append([model.name, size, _mebibytes(held), _mebibytes(whole), f"{held / whole:.0%}"])
    heads = ["schedule", "layers × key heads × width", "MiB", "all layers seeing all", "share"]
    return pipe(heads, lines)


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.0f}"


def of_presets() -> list[Cached]:
    """Return the model of each preset."""
    return [Cached(f"`{name}`", p.spec, p.layers, p.kv_heads, p.head_dim)
            for name, p in PRESETS.items()]  # fmt: skip


def of_study(study: str) -> list[Cached]:
    """Return the model of each schedule in the plan of a study."""
    rows = {planned.recipe.pe: planned for planned in load_plan(study) if planned.recipe.steps}
    return [
        Cached(
            short(pe, label(pe), planned.label), pe, planned.recipe.num_hidden_layers,
            planned.recipe.num_key_value_heads, planned.recipe.head_dim,
        )
        for pe, planned in rows.items()
    ]  # fmt: skip


class PresetTable(Made):
    """The table of presets."""

    required_arguments = 0

    def text(self) -> str:
        return preset_table()


class CacheSizes(Made):
    """The table of caches of a study, or of the presets' own models."""

    required_arguments = 0
    optional_arguments = 1

    def text(self) -> str:
        return cache_table(of_study(self.arguments[0]) if self.arguments else of_presets())
