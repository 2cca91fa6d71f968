"""Tables of studies, from their records.

| ```{study-table} scaffold    rows of a study by columns of choice (`StudyTable`)
| ```{local-runs}              the reader's own runs, or how to get some
| ```{two-budgets} A B         the order of the same rows in two studies, and what differs
| ```{extension} scaffold/rope a run extended without training, by method and factor
| ```{fine-tuned} extend       runs extended and trained on, by method and length
| ```{searches} scaffold-seeds/rope   what each search for LongRoPE's factors found

Rows that are planned and not recorded yet are named, so that a page holds before and after.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from book_directives import Block, Made
from book_studies import LOCAL, Snapshot
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.results import budgets, extensions, finetuned, quantities, rows, sweeps
from pe.results.markdown import pipe, table
from pe.results.quantities import label, whole
from pe.results.rows import Row
from pe.study.plan import load_plan


class StudyTable(Made):
    """`pe.results.markdown.table` of the rows of a study, STUDY or STUDY/ROW.

    | :columns: quantities; ``ppl``, ``needle`` ... stand for all lengths
    | :rows:    names; those that have no run yet are said below
    | :beside:  a study whose rows come first: the same budget, other encodings
    | :against: a row to show differences to, on the seeds of both
    | :each:    a line for each seed by itself
    """

    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged,
        "rows": directives.unchanged,
        "beside": directives.unchanged_required,
        "against": directives.unchanged_required,
        "each": directives.flag,
    }

    def text(self) -> str:
        study, _, wanted = self.arguments[0].partition("/")
        studies = self.book.studies
        found = dict(studies.rows(study))
        if wanted:
            found = {wanted: studies.row(study, wanted)}
        if "beside" in self.options:
            found = studies.rows(self.options["beside"]) | found
        return study_table(
            found,
            titles(study),
            self.words("columns"),
            self.words("rows") or ([wanted] if wanted else []),
            self.book.pages(found.values()),
            against=self.options.get("against"),
            each="each" in self.options,
        )


def titles(study: str) -> dict[str, str]:
    """By name, the title of each planned row of a study; none for a study without a plan."""
    plan = load_plan(study) if rows.planned(study) else []
    return {p.label: rows.named(p.recipe.to_dict())[0] for p in plan if not p.zero_shot}


def study_table(
    found: Mapping[str, Row],
    planned: Mapping[str, str],
    columns: list[str],
    wanted: list[str],
    pages: Mapping[str, str],
    *,
    against: str | None = None,
    each: bool = False,
) -> str:
    """The Markdown of rows, and the names of those that are planned and have no run yet.

    Args:
        planned: titles of all rows of the plan. wanted: names of rows; none: all.
        against: a row to show differences to. each: a line for each seed by itself.
    """
    known = {name: row.title for name, row in found.items()} | dict(planned)
    for name in [*wanted, *([against] if against else [])]:
        if name not in known:
            raise unknown("row", name, known)
    names = wanted or list(dict.fromkeys([*found, *planned]))
    shown = [found[name] for name in names if name in found]
    base = found.get(against) if against else None
    text = table(shown, tuple(columns), pages, base=base, each=each)
    absent = [known[name] for name in names if name not in found]
    return f"{text}\n\nNo run yet: {'; '.join(absent)}." if absent else text


class SweepTable(Made):
    """`sweeps.table` of a study: learning rates by encoding."""

    def text(self) -> str:
        study = self.arguments[0]
        found = self.book.studies.runs.get(study, [])
        if not found:
            return f"No run of the study `{study}` is recorded yet."
        pages = self.book.pages(self.book.studies.rows(study).values())
        return sweeps.table(found, pages)


class LocalRuns(Block):
    """The reader's own runs, with the same columns as the reference study."""

    def run(self) -> list[nodes.Node]:
        studies = self.book.studies
        unfinished = studies.incomplete.get(LOCAL, [])
        if LOCAL not in studies.runs and not unfinished:
            return self.markdown(
                "There are no runs of yours here yet. After `make demo`, or one `papermill` "
                "command and another build of the book, your numbers appear in this place."
            )
        result: list[nodes.Node] = []
        if LOCAL in studies.runs:
            found = list(studies.rows(LOCAL).values())
            text = table(found, links=self.book.pages(found))
            result += self.markdown(text, nodes.container(classes=["pe-results"]))
            result += self.markdown(
                "```{picture} local-perplexity-by-length\n"
                ":alt: Perplexity by context length of the runs made on this machine\n\n"
                "The same figure from your own runs.\n```"
            )
        if unfinished:
            lines = ["Not shown, because they have not ended well:", ""]
            for run in unfinished:
                record = run.read()
                reason = f": {record['reason']}" if record["reason"] else ""
                lines.append(f"- `{run.name}` is {record['status']}{reason}")
            result += self.markdown("\n".join(lines))
        return result


class TwoBudgets(Made):
    """`two_budgets` of two studies, of the rows named that both have."""

    required_arguments = 2
    classes: ClassVar[list[str]] = ["pe-results", "wrap"]
    option_spec: ClassVar[dict[str, Any]] = {
        "quantity": directives.unchanged_required,
        "rows": directives.unchanged,
    }

    def text(self) -> str:
        first, second = (self.book.studies.rows(study) for study in self.arguments)
        wanted = self.words("rows") or list(first)
        for name in wanted:
            if name not in first:
                raise unknown("row", name, first)
        both = [name for name in wanted if name in second]
        return two_budgets(
            {name: first[name] for name in both},
            {name: second[name] for name in both},
            self.options.get("quantity", "ppl"),
        )


def two_budgets(first: Mapping[str, Row], second: Mapping[str, Row], quantity: str) -> str:
    """The order of the same rows in two studies at every length, and which pairs change places."""
    studies = (first, second)
    steps = [
        whole(max(row.runs[0].read()["recipe"]["steps"] for row in found.values()))
        for found in studies
    ]
    heads = ["context", *(f"{n} steps, {_seeds(r)}" for n, r in zip(steps, studies, strict=True))]
    lines: list[list[str]] = []
    same: list[str] = []
    other: list[str] = []
    for name in quantities.expand([quantity], [r for row in first.values() for r in row.runs]):
        orders = [budgets.order(list(found.values()), name) for found in studies]
        pairs = budgets.swapped(*orders, name)
        title = quantities.title(name)
        (other if pairs else same).append(title)
        changes = []
        for a, b in pairs:
            shown = [
                n
                for n, found in zip(steps, studies, strict=True)
                if budgets.significantly_different(found[a], found[b], name)
            ]
            where = {0: "neither", 1: f"{shown[0]} steps only" if shown else "", 2: "both"}
            names = f"{first[a].title} and {first[b].title}"
            changes.append(f"{names} (a difference shown at {where[len(shown)]})")
        at = quantities.at(name)
        sign = ">" if at and at.is_share else r"\<"
        texts = [str(order).replace("<", sign) for order in orders]
        lines.append([title, *texts, "; ".join(changes) or "none"])
    words = [f"No two change places at {_listed(same)}."] if same else []
    words += [f"Some do at {_listed(other)}." if same else "Some change places at every length."]
    words = words if other else ["No two change places at any length."]
    return pipe([*heads, "change places"], lines, 4) + "\n\n" + " ".join(words)


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _seeds(found: Mapping[str, Row]) -> str:
    counts = sorted({len(row.runs) for row in found.values()})
    seeds = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    return f"{seeds} seed" + ("" if counts[-1] == 1 else "s")


class Extension(Made):
    """A row's run extended without training."""

    def text(self) -> str:
        study, _, name = self.arguments[0].partition("/")
        run = self.book.studies.row(study, name).runs[0]
        assert isinstance(run, Snapshot)
        if run.extended is None:
            raise ValueError(f"{run.study}/{run.name} has no extension.json")
        text = extensions.table(run, run.extended)
        absent = [label(method) for method in extensions.missing(run.extended)]
        return f"{text}\n\nNot measured yet: {', '.join(absent)}." if absent else text


class FineTuned(Made):
    """A study's runs: ``:show:`` perplexity, control, needle or passkey."""

    option_spec: ClassVar[dict[str, Any]] = {"show": directives.unchanged}

    def text(self) -> str:
        studies, study = self.book.studies, self.arguments[0]
        found = list(studies.rows(study).values()) if study in studies.runs else []
        tuned = finetuned.fine_tuned(found)
        if not tuned:
            return f"No run of the study `{study}` is recorded yet."
        shown = self.options.get("show", "perplexity")
        if shown == "perplexity":
            return finetuned.table(tuned, self.book.pages(found))
        if shown == "control":
            return finetuned.against_control(tuned)
        if shown in quantities.TASKS:
            return finetuned.retrieved(tuned, shown)
        raise unknown("table", shown, ["perplexity", "control", *quantities.TASKS])


class Searches(Made):
    """`finetuned.searches` of a row's run."""

    def text(self) -> str:
        study, _, name = self.arguments[0].partition("/")
        rows = self.book.studies.rows(study) if study in self.book.studies.runs else {}
        runs = rows[name].runs if name in rows else ()
        found = next((r.searches for r in runs if isinstance(r, Snapshot) and r.searches), None)
        return finetuned.searches(found) if found else "No search is recorded yet."


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("study-table", StudyTable)
    app.add_directive("sweep-table", SweepTable)
    app.add_directive("local-runs", LocalRuns)
    app.add_directive("two-budgets", TwoBudgets)
    app.add_directive("extension", Extension)
    app.add_directive("fine-tuned", FineTuned)
    app.add_directive("searches", Searches)
