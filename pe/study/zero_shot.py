"""The part of a study that trains nothing: one run, extended by several methods and factors.

    zero_shot:
      run: scaffold-seeds/rope                    # whose last weights are extended, or `rope`:
                                                  # a run of the same study
      factors: [2, 4, length]                     # length: at each length, the factor it needs
      methods: [pi, yarn, longrope]               # default: all
      search: {iterations: 10, population: 32}    # how LongRoPE's factors are found

This is one task of the study for each seed. Its results are recorded in the folder of that run: in
extension.json, and in longrope-4x.json for a search. Runs with the option ``long_factor: searched``
wait for it. If the run's weights are lost, the run is retrained first (`pe.study.parents`). Torch
is imported only when the methods are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from pe._errors import unknown
from pe.evaluation.factors import LENGTH, Factor, cells, checked_factor
from pe.recipes.recipe import Count, Natural, Recipe
from pe.runs import Run
from pe.study.reading import Distinct, YamlPart

LONGROPE = "longrope"


def _factor(value: Any) -> Factor:
    factor = checked_factor(value)
    if factor != LENGTH and factor <= 1:
        raise ValueError(f"expected more than 1, got {value}")
    return factor


def _known_method(name: str) -> str:
    from pe.encodings import extension_methods

    if name not in extension_methods():
        raise unknown("method", name, extension_methods())
    return name


def _all_methods() -> list[str]:
    from pe.encodings import extension_methods

    return extension_methods()


Extent = Annotated[Factor, PlainValidator(_factor)]
Method = Annotated[str, AfterValidator(_known_method)]


class Search(YamlPart):
    """Settings of `pe.search_longrope`; None is its default."""

    iterations: Natural | None = None
    population: Count | None = None
    windows: Count | None = None
    seed: Natural | None = None


class ZeroShot(YamlPart):
    """What is measured: a run, methods, factors, and settings of the search of LongRoPE."""

    run: str
    """The run whose last weights are extended: STUDY/RUN, or a run of the same study."""
    factors: Annotated[list[Extent], Field(min_length=1), Distinct]
    methods: Annotated[list[Method], Field(min_length=1), Distinct] = Field(
        default_factory=_all_methods
    )
    search: Search = Search()

    @model_validator(mode="after")
    def _search_has_an_effect(self) -> Self:
        if self.search != Search() and LONGROPE not in self.methods:
            raise ValueError(
                f"search: no effect without {LONGROPE} among the methods; leave it out"
            )
        return self

    def cells(self) -> list[str]:
        """Return the names of the cells of extension.json: ``yarn@4``, ``yarn@length``."""
        return [cell.name for cell in cells(self.methods, self.factors)]

    def missing(self, run: Run) -> list[str]:
        """Return the cells that the record of ``run`` lacks."""
        return self.without((run.part("extension") or {"cells": {}})["cells"])

    def without(self, recorded: Mapping[str, Any]) -> list[str]:
        """Return the cells that are not ``recorded``.

        A cell of LongRoPE counts only if its factors come from a search.
        """
        return [
            name
            for name in self.cells()
            if name not in recorded
            or (name.startswith(f"{LONGROPE}@") and not _searched(recorded[name]))
        ]

    def searched(self, recipe: Recipe) -> set[float]:
        """Return the factors of extension for which a run of this recipe needs a search."""
        return {
            factor
            for cell in cells([m for m in self.methods if m == LONGROPE], self.factors)
            for factor in cell.at(recipe.evaluation_lengths, recipe.context_length).values()
            if factor > 1
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the mapping as the YAML has it; `model_validate` is the inverse."""
        return self.model_dump(exclude_none=True)


def _searched(cell: Mapping[str, Any]) -> bool:
    """Return whether all factors of a cell of LongRoPE come from a search, and not from YaRN."""
    options = (cell.get("by_length") or {"": cell["options"]}).values()
    return all(of.get("long_factor") is not None for of in options)


def carry_out(run: Run, wanted: ZeroShot) -> None:
    """Measure the cells that the record of ``run`` lacks, those of LongRoPE last.

    Raises:
        RunError: the run's weights are not on this machine.
    """
    from pe.evaluation.extension import extend
    from pe.evaluation.longrope.search import search_longrope

    others = [method for method in wanted.methods if method != LONGROPE]
    if others:
        extend(run, others, wanted.factors)
    recipe = run.recipe
    for cell in cells([m for m in wanted.methods if m == LONGROPE], wanted.factors):
        if cell.name not in wanted.missing(run):
            continue
        alone = wanted.model_copy(update={"factors": [cell.factor]})
        settings = wanted.search.model_dump(exclude_none=True)
        options = {
            f"{LONGROPE}@{factor:g}": {"long_factor": search_longrope(run, factor, **settings)}
            for factor in sorted(alone.searched(recipe))
        }
        extend(run, [LONGROPE], [cell.factor], options)
