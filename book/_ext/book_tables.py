"""Tables of whole studies, from their records.

| ```{study-table} scaffold    rows by the names of studies/scaffold.yaml, columns of choice
| ```{extension} scaffold/rope a run extended without training, by method and factor
| ```{rerun} scaffold          what it takes to run each row again
"""

from __future__ import annotations

from typing import Any, ClassVar

import book_directives
from book_directives import Block
from book_numbers import study_rows
from book_studies import Snapshot, Studies
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.results import extensions
from pe.results import rows as results
from pe.results.tables import duration, label, whole

COLUMNS = "ppl, validation_loss"


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def run_pages(found: list[Snapshot]) -> dict[str, str]:
    """By run: the page of its executed notebook, of those that have one."""
    book = book_directives._now["book"]
    return {
        run.name: f"/runs/{run.study}/{run.name}/train.ipynb"
        for run in found
        if (book / "runs" / run.study / run.name / "train.ipynb").exists()
    }


class OfStudy(Block):
    """A directive whose argument names a study, or a row of one: STUDY/ROW."""

    required_arguments = 1

    def rows(self) -> tuple[str, list[results.Row]]:
        """The study's name and the rows asked for. ValueError if there are none."""
        study, _, wanted = self.arguments[0].partition("/")
        found = self.of_study(study)
        if wanted and wanted not in found:
            raise unknown("row", wanted, found)
        return study, [found[wanted]] if wanted else list(found.values())

    def of_study(self, study: str) -> dict[str, results.Row]:
        """Its rows by name. ValueError if there is no such study."""
        studies: Studies = book_directives._now["studies"]
        if study not in studies.runs:
            raise unknown("study", study, studies.runs)
        return study_rows(studies, study)

    def run(self) -> list[nodes.Node]:
        try:
            text = self.text()
        except ValueError as error:
            return self.warn(str(error))
        return self.markdown(text, nodes.container(classes=["pe-results"]))

    def text(self) -> str:
        """The Markdown."""
        raise NotImplementedError


class StudyTable(OfStudy):
    """Rows of a study by columns: ``ppl``, ``needle`` ... stand for all lengths.

    ``beside`` names a study whose rows come first: the same budget, other encodings.
    """

    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged,
        "rows": directives.unchanged,
        "beside": directives.unchanged_required,
    }

    def text(self) -> str:
        _, rows = self.rows()
        if "beside" in self.options:
            rows = [*self.of_study(self.options["beside"]).values(), *rows]
        known = {row.label: row for row in rows}
        wanted = _words(self.options.get("rows", "")) or list(known)
        for name in wanted:
            if name not in known:
                raise unknown("row", name, known)
        chosen = [known[name] for name in wanted]
        columns = _words(self.options.get("columns", COLUMNS))
        pages = run_pages([run for row in chosen for run in row.runs])
        return results.table(chosen, columns, pages)


class Extension(OfStudy):
    """A row's run extended without training."""

    def text(self) -> str:
        _, rows = self.rows()
        run = rows[0].runs[0]
        assert isinstance(run, Snapshot)
        if run.extended is None:
            raise ValueError(f"{run.study}/{run.name} has no extension.json")
        length = run.read()["recipe"]["context_length"]
        evaluated = (run.evaluation() or {})["perplexity"]
        base = {int(at) / length: cell["value"] for at, cell in evaluated.items()}
        text = extensions.table(run.extended, length, base)
        absent = extensions.missing(run.extended)
        if absent:
            text += f"\n\nNot measured yet: {', '.join(label(name) for name in absent)}."
        return text


class Rerun(OfStudy):
    """Commit, time, device and command of every run of a study."""

    def text(self) -> str:
        study, rows = self.rows()
        runs = [(row, run) for row in rows for run in row.runs]
        pages = run_pages([run for _, run in runs])
        heads = ["run", "seed", "commit", "device", "tokens", "training", "evaluation"]
        lines = ["| " + " | ".join(heads) + " |", "| :-- | --: | :-- | :-- | --: | --: | --: |"]
        commands, seconds = [], 0.0
        for row, run in runs:
            record, training = run.read(), run.read()["training"] or {}
            judged = (run.evaluation() or {}).get("seconds") or 0.0
            spent = training.get("wall_seconds") or 0.0
            seconds += spent + judged
            page = pages.get(run.name)
            commit = (record["code"]["commit"] or "unknown")[:12]
            machine = record["hardware"]
            count = f"{machine['count']} × " if machine["device"] != "cpu" else ""
            cells = [
                f"[{row.title}]({page})" if page else row.title,
                str(record["seed"]),
                f"`{commit}`" + (" (changed)" if record["code"]["dirty"] else ""),
                f"{count}{machine['name']}",
                whole(training["tokens"]) if training.get("tokens") else "–",
                duration(spent) if spent else "–",
                duration(judged) if judged else "–",
            ]
            lines.append("| " + " | ".join(cells) + " |")
            parent = record.get("parent")
            first = f"# after {parent['run']}, from its step {parent['step']}\n" if parent else ""
            commands.append(
                f"````{{dropdown}} {row.title}, seed {record['seed']}: runs/{study}/{run.name}\n"
                f"```bash\ngit checkout {commit}\n{first}{record['command']}\n```\n````"
            )
        total = f"All {len(runs)} together: {duration(seconds)} of training and evaluation."
        if not all((run.read()["training"] or {}).get("wall_seconds") for _, run in runs):
            total = "A dash stands for a time that is not recorded."
        return "\n".join(lines) + f"\n\n{total}\n\n" + "\n\n".join(commands)


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("study-table", StudyTable)
    app.add_directive("extension", Extension)
    app.add_directive("rerun", Rerun)
