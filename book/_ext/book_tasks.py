"""The study over tasks, studies/tasks/core.yaml, as far as it is recorded.

| {task}`copy/alibi.ood-exact`    a number of this study by an address as the ledger's
| ```{tasks} progress             how much is recorded
| ```{tasks} matrix               encodings by tasks: how many seeds solve it, with links to records
| ```{tasks} settings             what all models have in common, and what each task has
| ```{tasks} unsolved             tasks that no seed of any encoding solves
| ```{tasks} doubts               rates at an edge, seeds that diverged, nothing above the trivial
| ```{tasks} copy                 a task: who solves it, and a table; options as in copy@kind=repeat
| ```{tasks} of-page              on methods/NAME.md: all tasks with the encodings of the page

The figure of all tasks is called tasks-solved, and that of one task tasks-TASK, with a dash for
what a file name cannot have. Each record has a page,
tasks/EXPERIMENT/ENCODING.html at the root of the site. Nothing is measured here.
"""

from __future__ import annotations

import functools
import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from book_directives import Book, Made, narrow
from book_measured import of_page
from book_mirror import write
from book_pictures import Figures
from book_record_pages import html_table, made, plain_page

from pe._errors import unknown
from pe.claims import Values
from pe.figures import tasks as figures
from pe.results.markdown import pipe
from pe.results.quantities import label
from pe.runs.models import TaskRecord
from pe.tasks.measure import summary
from pe.tasks.measure.record import slug
from pe.tasks.study import load_study, outcome
from pe.tasks.study.outcome import Outcome

PLAN = Path("studies") / "tasks" / "core.yaml"
STUDY = "tasks"
"""What the plan calls its records. Numbers in prose are of them alone, as in the tables."""
PAGES = "tasks"
BESIDE = ("nope", "rope")


def load(root: Path) -> list[Outcome]:
    """Return the outcomes of all tasks of the study; none in a tree without its plan."""
    path = root / PLAN
    return outcome.outcomes(load_study(str(path)), root / "runs") if path.exists() else []


def picture(one: Outcome) -> str:
    """Return the name of the figure of a task."""
    return "tasks-" + re.sub(r"[^a-z0-9]+", "-", one.key)


def figures_of(found: Sequence[Outcome]) -> Figures:
    """Return a figure per task, and one of all tasks."""
    drawn: Figures = {}
    if found:
        planned = list(dict.fromkeys(pe for one in found for pe in one.planned))
        table = {pe: [one.records.get(pe) for one in found] for pe in planned}
        every = [one.run.file(pe) for one in found for pe in one.records]
        draw = functools.partial(figures.solved, [one.title for one in found], table)
        drawn["tasks-solved"] = every, draw
    for one in found:
        records = {pe: one.records.get(pe) for pe in one.planned}
        files = [one.run.file(pe) for pe in one.planned if pe in one.records]
        drawn[picture(one)] = files, functools.partial(figures.by_encoding, records)
    return drawn


def page_of(one: Outcome, pe: str) -> str:
    """Return the address of the page of a record, from the root of the site."""
    return f"{PAGES}/{one.run.name}/{slug(pe)}.html"


def link(one: Outcome, pe: str, text: str, root: str = "") -> str:
    """Return a link to the page of a record."""
    return f'<a href="{root}{page_of(one, pe)}">{text}</a>'


def write_pages(found: Sequence[Outcome], site: Path) -> None:
    """Write the page of each record, and remove those whose record is gone."""
    wanted = {
        site / page_of(one, pe): record_page(one, record)
        for one in found
        for pe, record in one.records.items()
    }
    for path, text in wanted.items():
        write(path, text)
    for path in (site / PAGES).rglob("*.html"):
        if path not in wanted:
            path.unlink()


def record_page(one: Outcome, record: TaskRecord) -> str:
    """Return the page of the record of an encoding on a task."""
    parts = [("Each seed", _seeds(one, record))]
    if record.sweep is not None:
        about = f"The sweep: {len(record.sweep.seeds)} seeds, {record.sweep.steps:,} steps"
        parts.append((about, _swept(record)))
    parts.append(("Right tokens by length", _lengths(record)))
    place = f"runs/{record.study}/{record.run}/{one.run.file(record.pe).name}"
    commit = (record.code.commit or "unknown")[:12]
    lines = f"git checkout {commit}\nrm {place}\npython -m pe.tasks.study {PLAN.stem}"
    parts.append(("Repeat it", f"<pre>{html.escape(lines)}</pre>"))
    parts.append(("Settings", html_table(["field", "value"], _settings(record))))
    where = html.escape(place)
    trained = f"{len(record.seeds)} seeds at the rate {outcome.rate(record)}, "
    trained += f"{outcome.steps(record)} steps"
    return plain_page(
        f"{label(record.pe)} on {one.title}",
        f"what {len(record.seeds)} seeds answered, and how they were trained",
        2,
        {"Encodings on tasks": "tasks.html"},
        f"The record is <code>{where}</code> in the repository, "
        f"{made(record.created, record.code.commit, record.hardware.name)}. "
        f"{html.escape(trained)}.",
        parts,
    )


def _seeds(one: Outcome, record: TaskRecord) -> str:
    heads = ["seed", "loss in validation"]
    for split in one.splits:
        heads += [f"right tokens {summary.title(split)}, %", "whole answers, %", "loss"]
    lines = []
    for model in summary.at_rate(record):
        line = [str(model.seed), _loss(model.validation.loss)]
        for split in one.splits:
            answers = model.splits[split]
            if answers is None:
                line += ["no such positions", "", ""]
            else:
                shares = (summary.token(answers), summary.exact(answers))
                line += [*(f"{100 * share:.1f}" for share in shares), _loss(answers.loss)]
        lines.append(line)
    return html_table(heads, lines)


def _swept(record: TaskRecord) -> str:
    assert record.sweep is not None
    heads = ["rate", *(f"loss of seed {seed}" for seed in record.sweep.seeds)]
    return html_table(
        heads,
        [
            [rate, *(_loss(one.loss) for one in own)]
            for rate, own in record.sweep.validation.items()
        ],
    )


def _lengths(record: TaskRecord) -> str:
    lines = []
    for length, answers in sorted(record.lengths.items(), key=lambda item: int(item[0])):
        value = None if answers is None else summary.mean([summary.token(a) for a in answers])
        lines.append([length, summary.share(value)])
    return html_table(["length", "right tokens, %"], lines)


def _settings(record: TaskRecord) -> list[list[str]]:
    values = {"parameters": record.parameters, "of the encoding": record.encoding_parameters}
    values |= {f"task: {name}": value for name, value in record.task_options.items()}
    values |= record.settings
    return [[name, str(value)] for name, value in values.items()]


def _loss(value: float | None) -> str:
    return "no number" if value is None else f"{value:.3g}"


def settings(found: Sequence[Outcome]) -> str:
    """Write the settings that all tasks share as a sentence, and the others as a table."""
    lines = []
    for one in found:
        experiment = one.run.experiment
        assert experiment is not None
        lengths = [one.task.lengths(split) for split in ("train", one.splits[-1])]
        spans = [f"{low}" if low == high else f"{low} to {high}" for low, high in lengths]
        own = experiment.settings
        lines.append([
            f"[{one.title}](#{picture(one)})", *spans, str(one.task.longest("train")),
            str(own.batch_size), f"{own.steps:,}", f"{experiment.sweep_steps or own.steps:,}",
            f"{100 * one.task.chance:.2g}%",
        ])  # fmt: skip
    heads = ["task", "lengths in training", "out of distribution", "most tokens in training",
             "batch", "steps", "of the sweep", "chance of a token"]  # fmt: skip
    experiment = found[0].run.experiment
    assert experiment is not None
    own = experiment.settings
    rates = ", ".join(f"{rate:g}" for rate in experiment.learning_rates)
    return (
        f"All: {own.layers} layers of width {own.width}, {own.heads} heads, "
        f"{len(experiment.seeds)} seeds. The rates {rates} were tried with "
        f"{experiment.sweep_seeds} of them; the best was given to all, after "
        f"{own.warmup_steps} steps of warmup, and stayed constant. "
        f"{experiment.examples} examples per split and seed.\n\n" + narrow(pipe(heads, lines))
    )


ON_TASKS = """\
**On tasks.** Small models were trained for each task, with several seeds. The table has the share
of answers that are right as a whole, in distribution and then out of it (→), and how many seeds
solve the task. {doc}`/tasks` explains the tasks and has pictures and intervals."""
NOT_ON_TASKS = "*The study over tasks has not trained it yet.*"


class Tasks(Made):
    """A part of the study; see the module."""

    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        root = self.book.folder.parent
        found = self.book.once("tasks", lambda: load(root))
        up = "../" * self.env.docname.count("/")
        part = self.arguments[0]
        if part == "of-page":
            _, _, stem = self.env.docname.rpartition("/")
            own = [name for name in of_page(stem) if any(name in one.planned for one in found)]
            if not own:
                raise ValueError("the study over tasks has no encoding of this page")
            shown = outcome.of_encodings(found, own, BESIDE)
            return f"{ON_TASKS}\n\n{narrow(shown)}" if shown else NOT_ON_TASKS
        if part == "progress":
            return outcome.progress(found)
        if part == "settings":
            return settings(found)
        if part == "unsolved":
            return outcome.unsolved(found)
        if part == "doubts":
            return outcome.doubts(found)
        if part == "matrix":
            links = {(one.key, pe): link(one, pe, "{}", up) for one in found for pe in one.records}
            return narrow(outcome.matrix(found, links))
        by_key = {one.key: one for one in found}
        if part not in by_key:
            raise unknown("part of the study over tasks", part, [*by_key, *PARTS])
        one = by_key[part]
        links_of = {pe: link(one, pe, label(pe), up) for pe in one.records}
        said = " ".join(filter(None, (outcome.solvers(one, split) for split in one.splits)))
        return f"{said}\n\n{narrow(outcome.table(one, links_of))}"


PARTS = ("progress", "settings", "unsolved", "doubts", "matrix", "of-page")


def value_of_book(book: Book, address: str) -> str:
    """Return `written` from the records beside the book."""
    runs = book.folder.parent / "runs"
    return written(address, book.once("task-values", lambda: Values(runs, STUDY)))


def written(address: str, values: Values) -> str:
    """Write a mean over seeds in percent, ``8 of 8`` for ``-solved``, or that it was not run.

    Raises:
        ValueError: an address that no record can have.
    """
    if not re.fullmatch(r"[^/]+/.+\.[^.]+", address):
        raise ValueError("expected TASK/ENCODING.SPLIT-QUANTITY such as copy/alibi.ood-exact")
    value = values(f"tasks:{address}")
    if value is None:
        return f"({outcome.NOT_RUN})"
    if address.endswith("-solved"):
        return f"{sum(value.by_seed.values()):.0f} of {len(value.by_seed)}"
    if address.endswith("-loss"):
        return f"{value.mean:.3g}"
    return f"{100 * value.mean:.3g}%"
