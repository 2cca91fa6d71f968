"""Pages of studies that may not have run yet: what is planned, what is there, what came of it.

| ```{if-recorded} extend/rope     its content, if that study or row has records
| ```{settings} extend             what all runs of a study have in common, from its YAML
| ```{fine-tuned} extend           runs extended and trained on, by method and length
| ```{searches} scaffold-seeds/rope    what each search for LongRoPE's factors found
"""

from __future__ import annotations

from typing import Any, ClassVar

import book_directives
from book_budgets import _Made
from book_directives import Block
from book_numbers import study_rows
from book_studies import Snapshot, Studies
from book_tables import run_pages
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.results import finetuned
from pe.results.tables import whole
from pe.study.plan import load_plan

PARTS = ("extension", "searches")


def there(studies: Studies, text: str) -> list[Snapshot]:
    """The runs that ``STUDY``, ``STUDY/ROW`` or ``STUDY/ROW.extension`` names; none: no records.

    Raises:
        ValueError: the study's YAML has no such row, or a run no such part.
    """
    study, _, rest = text.partition("/")
    label, _, part = rest.partition(".")
    known = list(dict.fromkeys(planned.label for planned in load_plan(study)))
    if label and label not in known:
        raise unknown("row", label, known)
    if part and part not in PARTS:
        raise unknown("part of a record", part, PARTS)
    if study not in studies.runs:
        return []
    rows = study_rows(studies, study)
    runs: list[Any] = [run for row in rows.values() for run in row.runs]
    if label:
        runs = list(rows[label].runs) if label in rows else []
    if part:
        runs = [r for r in runs if (r.extended if part == "extension" else r.searches)]
    return runs


def settings(study: str) -> str:
    """A Markdown table of what all runs of a plan have in common."""
    recipes = [planned.recipe for planned in load_plan(study) if not planned.zero_shot]
    r = recipes[0]
    shared = ("steps", "batch_size", "context_length", "learning_rate", "min_learning_rate")
    for name in (*shared, "start_from", "start_step", "evaluation_lengths"):
        if len({getattr(recipe, name) for recipe in recipes}) > 1:
            raise ValueError(f"the runs of {study} differ in {name}")
    seeds = ", ".join(map(str, sorted({recipe.seed for recipe in recipes})))
    lines = {
        "begins with": f"`{r.start_from}`, step {r.start_step:,}" if r.start_from else "nothing",
        "trained for": f"{whole(r.steps)} steps of {r.batch_size} windows of "
        f"{whole(r.context_length)} tokens, {whole(r.steps * r.batch_size * r.context_length)} "
        "in all",
        "learning rate": f"{r.learning_rate:g} → {r.min_learning_rate:g}, {r.warmup_steps} steps "
        "of warmup",
        "evaluated at": ", ".join(map(whole, r.evaluation_lengths)) + " tokens",
        "runs": f"{len(recipes)}, with seed {seeds}",
    }  # fmt: skip
    rows = [f"| {name} | {text} |" for name, text in lines.items()]
    return "\n".join(["| | |", "| :-- | :-- |", *rows])


class IfRecorded(Block):
    """Content for records that are there; ``:else:`` is said where they are not."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"else": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        try:
            found = there(book_directives._now["studies"], self.arguments[0])
        except ValueError as error:
            return self.warn(str(error))
        text = "\n".join(self.content) if found else self.options.get("else", "")
        return self.markdown(text) if text else []


class Settings(_Made):
    """`settings` of a study."""

    required_arguments = 1

    def text(self) -> str:
        return settings(self.arguments[0])


class FineTuned(_Made):
    """A study's runs: ``:show:`` perplexity, control, needle or passkey."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {"show": directives.unchanged}

    def text(self) -> str:
        study = self.arguments[0]
        studies: Studies = book_directives._now["studies"]
        runs = there(studies, study)
        rows = finetuned.fine_tuned(list(study_rows(studies, study).values())) if runs else []
        if not rows:
            return f"No run of the study `{study}` is recorded yet."
        shown = self.options.get("show", "perplexity")
        if shown == "perplexity":
            return finetuned.table(rows, run_pages(runs))
        if shown == "control":
            return finetuned.against_control(rows)
        if shown in ("needle", "passkey"):
            return finetuned.retrieved(rows, shown)
        raise unknown("table", shown, ["perplexity", "control", "needle", "passkey"])


class Searches(_Made):
    """`finetuned.searches` of a row's run."""

    required_arguments = 1

    def text(self) -> str:
        runs = there(book_directives._now["studies"], f"{self.arguments[0]}.searches")
        if not runs:
            return "No search is recorded yet."
        return finetuned.searches(runs[0].searches)


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("if-recorded", IfRecorded)
    app.add_directive("settings", Settings)
    app.add_directive("fine-tuned", FineTuned)
    app.add_directive("searches", Searches)
