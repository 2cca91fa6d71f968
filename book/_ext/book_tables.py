"""Tables of studies, from their records.

| ```{study-table} scaffold    rows of a study by columns of choice (`StudyTable`)
| ```{beyond-table} every      how far each row does better than with its texts cut
| ```{local-runs}              the reader's own runs, or how to get some
| ```{extension} scaffold/rope a run extended without training, by method and factor (`Extension`)
| ```{fine-tuned} extend       runs extended and trained on, by method and length
| ```{searches} scaffold-seeds/rope   what each search for LongRoPE's factors found

Rows that are planned and not recorded yet are named, so a page is right before and after a study.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from book_directives import Made, narrow
from book_studies import LOCAL, Snapshot
from docutils.parsers.rst import directives

from pe._errors import unknown
from pe.results import extensions, finetuned, rows, sweeps
from pe.results.beyond import beyond_table
from pe.results.markdown import table
from pe.results.quantities import label
from pe.results.rows import Row
from pe.study.plan import load_plan


class StudyTable(Made):
    """`pe.results.markdown.table` of the rows of a study, STUDY or STUDY/ROW.

    | :columns: quantities; ``ppl``, ``needle`` ... stand for all lengths
    | :rows:    names; those that have no run yet are said below
    | :beside:  a study whose rows come first: the same budget, other encodings
    | :against: a row to show differences to, on the seeds of both
    | :each:    a line for each seed by itself
    | :tokens:  lengths in tokens
    | :verdicts: whether a value is better or worse than that of the cut text
    """

    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged,
        "rows": directives.unchanged,
        "beside": directives.unchanged_required,
        "against": directives.unchanged_required,
        "each": directives.flag,
        "tokens": directives.flag,
        "verdicts": directives.flag,
    }

    def text(self) -> str:
        study, _, wanted = self.arguments[0].partition("/")
        studies = self.book.studies
        if study not in studies.runs and rows.planned(study):
            return f"No run of the study `{study}` is recorded yet."
        found = dict(studies.rows(study))
        if wanted:
            found = {wanted: studies.row(study, wanted)}
        if "beside" in self.options:
            found = studies.rows(self.options["beside"]) | found
        return study_table(
            found,
            self.book.once(f"titles of {study}", partial(titles, study)),
            self.words("columns"),
            self.words("rows") or ([wanted] if wanted else []),
            self.book.pages(found.values()),
            against=self.options.get("against"),
            each="each" in self.options,
            tokens="tokens" in self.options,
            verdicts="verdicts" in self.options,
        )


def titles(study: str) -> dict[str, str]:
    """Return the title of each planned row of a study, by name; none if it has no plan."""
    plan = load_plan(study) if rows.planned(study) else []
    recipes = {p.label: p.recipe.to_dict() for p in plan if not p.zero_shot}
    titled = rows.titled(list(recipes.values())) if plan else []
    return {
        name: rows.short(recipe["pe"], title, name)
        for (name, recipe), title in zip(recipes.items(), titled, strict=True)
    }


def study_table(
    found: Mapping[str, Row],
    planned: Mapping[str, str],
    columns: list[str],
    wanted: list[str],
    pages: Mapping[str, str],
    *,
    against: str | None = None,
    each: bool = False,
    tokens: bool = False,
    verdicts: bool = False,
) -> str:
    """Write rows, and the names of those that are planned and have no run yet.

    Args:
        planned: titles of all rows of the plan. wanted: names of rows; none: all.
        against: a row to show differences to. each: a line for each seed by itself.
        tokens: lengths in tokens. verdicts: words beside the cut text.
    """
    known = {name: row.title for name, row in found.items()} | dict(planned)
    for name in [*wanted, *([against] if against else [])]:
        if name not in known:
            raise unknown("row", name, known)
    names = wanted or list(dict.fromkeys([*found, *planned]))
    shown = [found[name] for name in names if name in found]
    base = found.get(against) if against else None
    text = table(
        shown, tuple(columns), pages, base=base, each=each, tokens=tokens, verdicts=verdicts
    )
    absent = [known[name] for name in names if name not in found]
    return f"{text}\n\nNo run yet: {'; '.join(absent)}." if absent else text


class BeyondTable(Made):
    """`pe.results.beyond.beyond_table` of a study.

    | :rows:    names; default: all
    | :beside:  a study whose rows are added: the same budget, other encodings
    """

    option_spec: ClassVar[dict[str, Any]] = {
        "rows": directives.unchanged,
        "beside": directives.unchanged_required,
    }

    def text(self) -> str:
        found: dict[str, Row] = {}
        for study in (self.options.get("beside", self.arguments[0]), self.arguments[0]):
            found |= self.book.studies.rows(study) if study in self.book.studies.runs else {}
        if not found:
            return f"No run of the study `{self.arguments[0]}` is recorded yet."
        wanted = self.words("rows") or list(found)
        for name in wanted:
            if name not in found:
                raise unknown("row", name, found)
        return beyond_table([found[name] for name in wanted], self.book.pages(found.values()))


class SweepTable(Made):
    """`sweeps.table` of a study: learning rates by encoding."""

    def text(self) -> str:
        study = self.arguments[0]
        found = self.book.studies.runs.get(study, [])
        if not found:
            return f"No run of the study `{study}` is recorded yet."
        pages = self.book.pages(self.book.studies.rows(study).values())
        return sweeps.table(found, pages)


class LocalRuns(Made):
    """The reader's own runs, with the same columns as the reference study."""

    required_arguments = 0
    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        studies = self.book.studies
        unfinished = studies.incomplete.get(LOCAL, [])
        if LOCAL not in studies.runs and not unfinished:
            return (
                "There are no runs of yours here yet. After `make demo`, or one `papermill` "
                "command and another build of the book, your numbers appear in this place."
            )
        parts = []
        if LOCAL in studies.runs:
            found = list(studies.rows(LOCAL).values())
            parts += [
                narrow(table(found, links=self.book.pages(found))),
                "```{picture} local-perplexity-by-length\n"
                ":alt: Perplexity by context length of the runs made on this machine\n\n"
                "The same figure from your own runs.\n```",
            ]
        if unfinished:
            lines = ["Not shown, because they have not ended well:", ""]
            for run in unfinished:
                record = run.read()
                reason = f": {record['reason']}" if record["reason"] else ""
                lines.append(f"- `{run.name}` is {record['status']}{reason}")
            parts.append("\n".join(lines))
        return "\n\n".join(parts)


class Extension(Made):
    """A row's run extended without training; with columns, all its seeds beside each other.

    | :columns: quantities as in `StudyTable`, ``ppl`` or ``multikey``
    | :against: show differences to the row as it was trained
    """

    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged_required,
        "against": directives.flag,
    }

    def text(self) -> str:
        study, _, name = self.arguments[0].partition("/")
        row = self.book.studies.row(study, name)
        runs = [run for run in row.runs if isinstance(run, Snapshot) and run.extended]
        if not runs:
            raise ValueError(f"{study}/{name} has no extension.json")
        columns = self.words("columns")
        if columns:
            found = extensions.rows(row, {run.name: run.extended for run in runs})
            base = found[0] if "against" in self.options else None
            return table(found, columns, self.book.pages([row]), base=base)
        assert runs[0].extended is not None
        text = extensions.table(runs[0], runs[0].extended)
        absent = [label(method) for method in extensions.missing(runs[0].extended)]
        return f"{text}\n\nNot measured yet: {', '.join(absent)}." if absent else text


class FineTuned(Made):
    """`finetuned.table` of a study's runs."""

    def text(self) -> str:
        study = self.arguments[0]
        found = list(self.book.studies.recorded(study).values())
        tuned = finetuned.fine_tuned(found)
        if not tuned:
            return f"No run of the study `{study}` is recorded yet."
        return finetuned.table(tuned, self.book.pages(found))


class Searches(Made):
    """`finetuned.searches` of a row's run."""

    def text(self) -> str:
        study, _, name = self.arguments[0].partition("/")
        rows = self.book.studies.recorded(study)
        runs = rows[name].runs if name in rows else ()
        found = next((r.searches for r in runs if isinstance(r, Snapshot) and r.searches), None)
        return finetuned.searches(found) if found else "No search is recorded yet."
