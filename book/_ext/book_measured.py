"""The measurements of the encodings of a page, in each study that has trained them.

| ```{measured}          on methods/NAME.md: a figure and a table for each budget that has a run
| ```{measured} STUDY    those of one study alone

Some studies train every encoding once, with the budget of another study that has NoPE, RoPE, YaRN
and PoPE. Their rows are shown together, and all of them in one picture, STUDY-reach.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from book_directives import Block
from book_encodings import page, place
from book_pictures import Figures
from book_studies import Studies
from docutils import nodes

from pe.encodings import list_encodings, lookup
from pe.encodings.core.spec import part_names
from pe.figures import rates as figures_rates
from pe.figures import reach as figures_reach
from pe.figures import study as figures_study
from pe.figures import windows as figures_windows
from pe.results.markdown import table
from pe.results.measure import predicted
from pe.results.quantities import perplexity, value, vocabulary, whole
from pe.results.rows import Row, ceilings, comparable

BUDGETS = (("every", "every"), ("demo-every", "demo"))
"""A study of every encoding, and the one whose rows stand beside; the larger budget first."""
SWEEPS = ("rates", "rates-packages")
"""The sweeps of learning rates."""
WINDOWS, BEST = "windows", "stickbreaking"
"""The study of windows, and the row of the larger budget that does better than cutting both in
perplexity and in what it finds, with every seed."""
BESIDE = ("nope", "rope", "yarn", "pope")


@functools.cache
def pages() -> dict[str, str | None]:
    """Return the page of book/methods that shows the code of each encoding."""
    return {name: page(lookup(name)) for name in list_encodings()}


def of_page(stem: str) -> list[str]:
    """Return the encodings of a page."""
    return [name for name, found in pages().items() if found == stem]


def found(studies: Studies, stem: str) -> dict[str, tuple[list[Row], list[Row]]]:
    """Return, by study, the rows of a page's encodings and the rows that they are compared with."""
    names = set(of_page(stem))
    rows: dict[str, tuple[list[Row], list[Row]]] = {}
    for study, other in BUDGETS:
        if study not in studies.runs or other not in studies.runs:
            continue
        trained = list(studies.rows(study).values())
        longer = ceilings(trained)
        own = [row for row in trained if names & set(part_names(row.pe)) and row not in longer]
        if own:
            there = [row for row in _beside(studies, other) if row not in own]
            rows[study] = own, [*there, *longer]
    return rows


def _beside(studies: Studies, study: str) -> list[Row]:
    rows = studies.rows(study)
    return [rows[name] for name in BESIDE if name in rows]


def acts(pe: str) -> str:
    """Return where an encoding or a sum acts: a key of `pe.figures.reach.PLACES`."""
    where = ", ".join(place(lookup(name)) for name in part_names(pe))
    if "logits" in where:
        return "logits"
    if "embeddings" in where:
        return "embeddings"
    return "queries and keys" if where not in ("nothing", "scale") else "none"


def places(rows: Sequence[Row]) -> dict[str, str]:
    """Return `acts` of each row, by its label."""
    return {row.label: acts(row.pe) for row in rows}


def figures_of(studies: Studies) -> Figures:
    """Return the figures STUDY-PAGE (perplexity by length) and STUDY-reach of each budget.

    A sweep of learning rates has SWEEP-by-rate. In windows-by-window, plain RoPE is the row whose
    last layer rotates without a window.
    """
    drawn: Figures = {}
    for sweep in SWEEPS:
        if sweep in studies.runs:
            tried = figures_rates.shown(studies.runs[sweep])
            drawn[f"{sweep}-by-rate"] = tried, functools.partial(figures_rates.by_rate, tried)
    if WINDOWS in studies.runs:
        budget = BUDGETS[0][0]
        others = studies.recorded(budget)
        plain, best = others.get("rope"), others.get(BEST)
        rows = [*studies.rows(WINDOWS).values(), *([plain] if plain else [])]
        runs: list[Any] = [r for row in (*rows, *([best] if best else [])) for r in row.runs]
        make = functools.partial(figures_windows.by_window, rows, plain, best)
        drawn[f"{WINDOWS}-by-window"] = runs, make
    for study, other in BUDGETS:
        if study not in studies.runs or other not in studies.runs:
            continue
        rows = _beside(studies, other)
        rows = [*rows, *(r for r in studies.rows(study).values() if r not in rows)]
        made_of: list[Any] = [run for row in rows for run in row.runs]
        draw = functools.partial(figures_reach.reach, rows, places(rows))
        drawn[f"{study}-reach"] = made_of, draw
    for stem in sorted({stem for stem in pages().values() if stem}):
        for study, (own, beside) in found(studies, stem).items():
            rows = comparable([*beside, *own])
            made_of = [run for row in rows for run in row.runs]
            strong = own[0].pe if len(own) == 1 else None
            draw = functools.partial(figures_study.perplexity, rows, False, strong)
            drawn[f"{study}-{stem}"] = made_of, draw
    return drawn


def text(
    stem: str, rows: Mapping[str, tuple[Sequence[Row], Sequence[Row]]], pages: Mapping[str, str]
) -> str:
    """Write figures and tables of the rows of each study. ``pages`` has the page of each run."""
    names = of_page(stem)
    if not rows:
        commands = " or ".join(f"`-p pe {name}`" for name in names)
        return (
            f"No run of it is on record. `papermill notebooks/train.ipynb` with {commands} trains, "
            "evaluates and records one."
        )
    return "\n\n".join(_of_budget(stem, study, *both, pages) for study, both in rows.items())


def _of_budget(
    stem: str, study: str, own: Sequence[Row], beside: Sequence[Row], pages: Mapping[str, str]
) -> str:
    record = own[0].runs[0].read()
    recipe, machine = record["recipe"], record["hardware"]
    titles = " and ".join(row.title for row in own)
    others = ", ".join(row.title for row in beside)
    on = "a CPU" if machine["device"] == "cpu" else f"one {machine['name']}"
    budget = (
        f"{whole(recipe['steps'])} steps of {recipe['batch_size']} windows of "
        f"{whole(recipe['context_length'])} tokens on {on}"
    )
    asked = any(value(run, "multikey@1x")[0] is not None for row in own for run in row.runs)
    columns = ["ppl", "multikey@1x", "multikey@4x"] if asked else ["ppl"]
    small = "" if machine["device"] != "cpu" else " So small a model says little of a large one."
    return (
        f"```{{picture}} {study}-{stem}\n"
        f":alt: Perplexity by context length of {titles}, with {others}.\n\n"
        f"{titles} beside {others}: {budget}.\n```\n\n"
        f"````{{container}} pe-results\n{table([*own, *beside], columns, pages)}\n````\n\n"
        f"{_scatter([*own, *beside])}{_rates([*own, *beside])}{small}"
    )


def _rates(rows: Sequence[Row]) -> str:
    """Say where the learning rates of the rows come from."""
    rates = {row.runs[0].read()["recipe"]["learning_rate"] for row in comparable(rows)}
    if len(rates) == 1:
        return f" All rows have the learning rate {rates.pop():g}; no other was tried."
    return (
        " Each row has the learning rate that {doc}`/rates` found for it or for its nearest "
        "relative."
    )


def _scatter(rows: Sequence[Row]) -> str:
    """Say how far seeds differ, so that readers can judge a difference of one seed."""
    seeds = {row.seeds for row in comparable(rows)}
    known = next((row for row in rows if row.label == "rope" and len(row.runs) > 1), None)
    if all(len(row.runs) == 1 for row in rows):
        return "One seed each, which ranks nothing."
    if known is None or len(seeds) > 1 or len(next(iter(seeds))) > 1:
        return "Values of several seeds are means with a 95% interval."
    found, limit = predicted(known, "ppl@1x"), vocabulary(known.runs[0])
    low, high = perplexity(found.low, limit), perplexity(found.high, limit)
    (seed,) = next(iter(seeds))
    return (
        f"Rows are compared on seed {seed}, which they share: the same initial weights and order "
        "of the text. One seed ranks nothing. By the seeds recorded of "
        f"{known.title}, its next one would lie between {low} and {high} at 1× (95%)."
    )


class Measured(Block):
    """Figures and tables of the encodings of this page."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        folder, _, stem = self.env.docname.rpartition("/")
        if folder != "methods" or not of_page(stem):
            return self.warn("measured belongs on the page of a method that shows its code")
        rows = found(self.book.studies, stem)
        if self.arguments:
            (study,) = self.arguments
            if study not in dict(BUDGETS):
                known = " or ".join(dict(BUDGETS))
                return self.warn(f"measured shows the study {known}, not {study!r}")
            rows = {name: both for name, both in rows.items() if name == study}
        every = [row for own, beside in rows.values() for row in (*own, *beside)]
        return self.markdown(text(stem, rows, self.book.pages(every)))
