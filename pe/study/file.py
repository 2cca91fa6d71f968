"""The file of a study, studies/NAME.yaml.

    title: what the study asks
    recipe: tiny                      # the recipe all runs start from
    set: {steps: 8000}                # fields that differ from it, for all runs
    seeds: [0, 1, 2]
    runs:
      rope: {pe: rope}
      rope-dropped-10:                # starts from another run of the study
        pe: nope
        start: {run: rope, at: 10/16}
        set: {steps: 6/16, learning_rate: 1.0e-4}
      yarn:                             # starts from a run of another study
        pe: yarn
        start: {run: scaffold/rope, at: end}
      pope:                             # with schedule wsd: also runs of fewer steps
        pe: pope
        branches: [1/4, 1/2]
      t5:                               # a sweep: a run for each rate and multiple
        pe: t5
        rates: [1.0e-3, 3.0e-3]
        encoding_rates: [1, 10]
    zero_shot: {run: rope, factors: [2, 4]}  # one more task (`pe.study.zero_shot`)
    mini: {recipe: demo, set: {...}}  # the same study in miniature, for a CPU

``steps``, ``at`` and ``branches`` may be fractions of the study's steps. ``warmup_steps``,
``decay_steps``, ``checkpoint_every``, ``validate_every`` and each of ``keep_steps`` may be
fractions of the run's own steps. A run of 0 steps evaluates the weights that it starts from under
its own encoding. A run keeps the checkpoints from which others start. The miniature of a study
starts from miniatures of other studies.

A branch of b steps shares its first steps with its run, and has a decay of its own, whose length is
the share ``decay_steps`` of b. It is named ``pope@1/4``. ``rates`` may also be given for the whole
study. A run of a sweep is named ``t5@0.003,x10``, and `pe.results.sweeps` finds the best rate.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, PlainValidator, model_validator

from pe.recipes.recipe import Natural
from pe.study.reading import AnyStudy, Distinct, OneOrMore, YamlPart
from pe.study.zero_shot import ZeroShot

ELSEWHERE = {
    "pe": "runs", "pe_options": "runs", "seed": "seeds", "start_from": "start",
    "start_step": "start", "start_state": "branches", "keep_states": "branches",
}  # fmt: skip
"""Fields of a recipe that a study file gives in its own way, and the key that it has for them."""


def is_share(value: Any) -> bool:
    """Return whether the value is a fraction or a percentage of steps."""
    share = r"\d+/0*[1-9]\d*|\d+(\.\d+)?%"
    return isinstance(value, str) and re.fullmatch(share, value) is not None


def steps_of(name: str, value: Any, of: int) -> int:
    """Return ``value`` in steps; a share is a share of the ``of`` steps.

    Raises:
        ValueError: it is neither a number of steps nor a share; the message has the field's name.
    """
    if isinstance(value, str) and is_share(value):
        share = Fraction(value[:-1]) / 100 if value.endswith("%") else Fraction(value)
        return max(1, round(share * of)) if of else 0
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError(f"{name}: expected steps, a fraction or a percentage; got {value!r}")


def _amount(value: Any) -> int | str:
    """Accept what `steps_of` takes: whole steps, a fraction ``6/16`` or a percentage ``3%``."""
    if is_share(value) or (isinstance(value, int) and not isinstance(value, bool)):
        return value  # type: ignore[no-any-return]
    raise ValueError(f"expected steps, a fraction or a percentage; got {value!r}")


Amount = Annotated[int | str, PlainValidator(_amount)]
Where = Annotated[int | str, PlainValidator(lambda v: v if v == "end" else _amount(v))]


def _own_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """Refuse fields of a recipe for which a study file has other keys."""
    for name, where in ELSEWHERE.items():
        if name in fields:
            raise ValueError(f"{name!r} has no effect here; the file says it under {where}")
    keep = fields.get("keep_steps", [])
    if isinstance(keep, int | str):  # as a recipe takes it
        return fields | {"keep_steps": [keep]}
    if not isinstance(keep, list):
        raise ValueError(f"keep_steps: expected a list, got {keep!r}")
    return fields


Fields = dict[str, Any]
RecipeFields = Annotated[Fields, AfterValidator(_own_fields)]
Seeds = Annotated[list[Natural], Field(min_length=1), Distinct, OneOrMore]
Rates = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1), Distinct, OneOrMore]


class StartEntry(YamlPart):
    """The run, and the step of it, from whose weights a run starts."""

    run: str
    at: Where


class RunEntry(YamlPart):
    """One run of the file."""

    pe: str
    pe_options: Fields = {}
    start: StartEntry | None = None
    set: RecipeFields = {}
    seeds: Seeds | None = None
    branches: Annotated[list[Amount], Distinct] = []
    rates: Rates | None = None
    encoding_rates: Rates | None = None

    def sweep(self, label: str, rates: Rates | None) -> Iterator[tuple[str, RunEntry]]:
        """Yield the runs of a sweep with their labels, or the entry itself if there is no sweep.

        Args:
            rates: the learning rates of the whole study, which the entry's own replace.

        Raises:
            ValueError: a rate is given both as a field and as a sweep.
        """
        swept = {"learning_rate": self.rates or rates, "encoding_rate": self.encoding_rates}
        for field, values in swept.items():
            if values and field in self.set:
                raise ValueError(f"{field}: in set and in a sweep; leave one of them out")
        for rate, multiple in itertools.product(*(v or (None,) for v in swept.values())):
            name = f"{label}@{rate:g}" if rate else label
            name += f",x{multiple:g}" if multiple else ""
            chosen = {"learning_rate": rate, "encoding_rate": multiple}
            more = {field: value for field, value in chosen.items() if value is not None}
            yield name, self.model_copy(update={"set": self.set | more})


class MiniEntry(YamlPart):
    """The miniature, whose keys replace the study's; `set` and `zero_shot` are merged with them."""

    recipe: str | None = None
    set: RecipeFields = {}
    seeds: Seeds | None = None
    zero_shot: Fields = {}


class StudyFile(AnyStudy):
    """The whole file."""

    recipe: str = "auto"
    set: RecipeFields = {}
    seeds: Seeds = [0]
    rates: Rates | None = None
    runs: Annotated[dict[str, RunEntry], Field(min_length=1)]
    zero_shot: ZeroShot | None = None
    mini: MiniEntry | None = None  # type: ignore[assignment]

    @model_validator(mode="after")
    def _seeds_of_runs(self) -> Self:
        """Refuse a run's seeds that the study does not have."""
        for label, entry in self.runs.items():
            if extra := sorted(set(entry.seeds or ()) - set(self.seeds)):
                raise ValueError(
                    f"runs.{label}.seeds: {extra[0]} is not among the seeds of the study, "
                    f"{self.seeds}; add it there"
                )
        return self

    @model_validator(mode="after")
    def _rates_of_no_run(self) -> Self:
        """Refuse a rate for all runs where each has a sweep of its own or the study's."""
        each = self.runs.values()
        for field, swept in (
            ("learning_rate", self.rates or all(entry.rates for entry in each)),
            ("encoding_rate", all(entry.encoding_rates for entry in each)),
        ):
            if swept and field in self.set:
                raise ValueError(
                    f"set.{field}: has no effect, because each run has a sweep of it; leave one of "
                    "the two out"
                )
        return self

    def merged(self, values: dict[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the study, with those of its part ``mini``.

        Of a run's seeds only those of the miniature remain; a run without any is left out.
        """
        parts = {
            part: values.get(part, {}) | small.get(part, {})
            for part in ("set", "zero_shot")
            if part in values or part in small
        }
        seeds = small.get("seeds", self.seeds)
        runs = {
            label: run | ({"seeds": [s for s in run["seeds"] if s in seeds]} if own else {})
            for label, run in values["runs"].items()
            if not (own := run.get("seeds")) or set(own) & set(seeds)
        }
        return values | dict(small) | parts | {"runs": runs}
