"""The part of a study that trains nothing: a run extended by every method and factor.

    zero_shot:
      run: scaffold-seeds/rope                    # whose last weights are extended, or `rope`:
                                                  # a run of the same study
      factors: [2, 4, 8, 16]
      methods: [pi, yarn, longrope]               # all, if nothing is said
      search: {iterations: 10, population: 32}    # how LongRoPE's factors are found

It is one task of the study, once a seed. What came of it is recorded beside that run:
extension.json, and longrope-4x.json for each search. Where the run's weights are lost it is trained
again first, as for a run that starts there (`pe.study.parents`). Torch is imported
only when methods are asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pe._errors import unknown
from pe.results.extensions import searched
from pe.runs import Run

KEYS = ("run", "factors", "methods", "search")
SEARCH = ("iterations", "population", "windows", "seed")
LONGROPE = "longrope"


@dataclasses.dataclass(frozen=True)
class ZeroShot:
    """What is measured, and how hard LongRoPE's factors are searched for."""

    factors: tuple[float, ...]
    methods: tuple[str, ...]
    search: tuple[tuple[str, int], ...] = ()

    def cells(self) -> list[str]:
        """Names of the cells of extension.json: ``yarn@4``."""
        from pe.encodings.core.registry import takes_option

        return [
            f"{method}@{factor:g}"
            for method in self.methods
            for factor in (self.factors if takes_option(method, "factor") else (1.0,))
        ]

    def missing(self, run: Run) -> list[str]:
        """Cells that the record of ``run`` lacks; LongRoPE's have to be searched ones."""
        return self.without((run.part("extension") or {"cells": {}})["cells"])

    def without(self, found: Mapping[str, Any]) -> list[str]:
        """Cells that are not among those ``found``."""
        return [
            name
            for name in self.cells()
            if name not in found
            or (name.startswith(f"{LONGROPE}@") and not searched(found[name]["options"]))
        ]

    def to_dict(self) -> dict[str, Any]:
        """As `of` takes it."""
        return {
            "factors": list(self.factors), "methods": list(self.methods),
            "search": dict(self.search),
        }  # fmt: skip

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> ZeroShot:
        """From what stands in a YAML.

        Raises:
            ValueError: an unknown key or method, or factors that are none.
        """
        from pe.encodings import extension_methods

        for key in given:
            if key not in KEYS:
                raise unknown("key", str(key), KEYS)
        known = extension_methods()
        factors, methods = given.get("factors"), given.get("methods", known)
        if not isinstance(factors, list) or not factors or not all(map(_is_factor, factors)):
            raise ValueError(f"factors: expected numbers above 1, as [2, 4]; got {factors!r}")
        for method in methods:
            if method not in known:
                raise unknown("method", str(method), known)
        search = given.get("search", {})
        for key, value in search.items():
            if key not in SEARCH:
                raise unknown("setting of the search", str(key), SEARCH)
            if not isinstance(value, int) or isinstance(value, bool):
                raise ValueError(f"search, {key}: expected a whole number, got {value!r}")
        return cls(tuple(float(f) for f in factors), tuple(methods), tuple(search.items()))


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 1


def carry_out(run: Run, wanted: ZeroShot, *, quiet: bool = False) -> None:
    """Measure what the record of ``run`` lacks: all other methods first, for a search takes time.

    Raises:
        RunError: the run's weights are nowhere on this machine.
    """
    from pe.evaluation.extension import extend
    from pe.evaluation.longrope.search import search_longrope

    others = [method for method in wanted.methods if method != LONGROPE]
    if others:
        extend(run, others, wanted.factors, quiet=quiet)
    if LONGROPE not in wanted.methods:
        return
    for factor in wanted.factors:
        name = f"{LONGROPE}@{factor:g}"
        if name in wanted.missing(run):
            settings: dict[str, Any] = dict(wanted.search)
            factors = search_longrope(run, factor, quiet=quiet, **settings)
            options = {name: {"long_factor": factors}}
            extend(run, [LONGROPE], [factor], options, quiet=quiet)
