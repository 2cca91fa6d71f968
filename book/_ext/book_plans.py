"""What is planned, what is recorded, and how to go on or do it again.

| ```{if-recorded} extend/rope     its content, if that study or row has records
| ```{settings} extend             what all runs of a study have in common, from its YAML
| ```{missing-runs} scaffold-seeds which planned runs are not there, and what goes on
| ```{rerun} scaffold              what it takes to run each row again
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from book_directives import Block, Made
from book_studies import Snapshot, Studies
from book_tables import titles
from docutils import nodes
from docutils.parsers.rst import directives

from pe._errors import unknown
from pe.recipes.command import notebook_command, notebook_parameters
from pe.recipes.recipe import Recipe
from pe.results.markdown import linked, pipe
from pe.results.quantities import duration, label, whole
from pe.results.rows import Row
from pe.study.plan import load_plan
from pe.study.planned import Planned

PARTS = ("extension", "searches")
WORKER = "python -m pe.study.worker"
"""How the command of a run begins that a study's worker carried out before it knew a better one."""


def there(studies: Studies, text: str) -> list[Snapshot]:
    """Return the recorded runs of STUDY, STUDY/ROW, STUDY/ROW#SEED or STUDY/ROW.extension.

    Raises:
        ValueError: the study's YAML has no such row, or a run no such part.
    """
    study, _, rest = text.partition("/")
    label, _, part = rest.partition(".")
    label, _, seed = label.partition("#")
    known = list(dict.fromkeys(planned.label for planned in studies.plan(study)))
    if label and label not in known:
        raise unknown("row", label, known)
    if part and part not in PARTS:
        raise unknown("part of a record", part, PARTS)
    if study not in studies.runs:
        return []
    rows = studies.rows(study)
    runs: list[Any] = [run for row in rows.values() for run in row.runs]
    if label:
        runs = list(rows[label].runs) if label in rows else []
    if seed:
        runs = [run for run in runs if str(run.read()["seed"]) == seed]
    if part:
        runs = [r for r in runs if (r.extended if part == "extension" else r.searches)]
    return runs


def settings(study: str) -> str:
    """Write a table of how the runs of a plan are trained, with all values where they differ."""
    recipes = [planned.recipe for planned in load_plan(study) if not planned.zero_shot]
    seeds = ", ".join(map(str, sorted({recipe.seed for recipe in recipes})))
    lines = {
        "model": lambda r: f"{r.num_hidden_layers} layers of width {r.hidden_size}",
        "text": lambda r: f"`{r.corpus}`",
        "starts from": lambda r: (
            f"`{r.start_from}`, step {r.start_step:,}" if r.start_from else "random weights"
        ),
        "trained for": lambda r: (
            f"{whole(r.steps)} steps of {r.batch_size} windows of {whole(r.context_length)} "
            f"tokens, {whole(r.steps * r.batch_size * r.context_length)} in all"
            if r.steps
            else "no step"
        ),
        "learning rate": lambda r: (
            f"{r.learning_rate:g} → {r.min_learning_rate:g}, {r.warmup_steps} steps of warmup"
        ),
        "evaluated at": lambda r: ", ".join(map(whole, r.evaluation_lengths)) + " tokens",
        "runs": lambda r: f"{len(recipes)}, with seed {seeds}",
    }
    found = [
        [name, "; or ".join(dict.fromkeys(map(text, recipes)))] for name, text in lines.items()
    ]
    return pipe(["", ""], found, 2)


def missing_runs(
    study: str, plan: list[Planned], rows: Mapping[str, Row], unmeasured: Sequence[str] = ()
) -> str:
    """Say which planned runs are not recorded, and which command runs them.

    Args:
        unmeasured: cells that a zero-shot part of the plan still lacks.
    """
    runs = [run for row in rows.values() for run in row.runs]
    plan = [planned for planned in plan if not planned.zero_shot]
    names = titles(study)
    absent: dict[str, list[int]] = {}
    for planned in plan:
        if planned.name not in {run.name for run in runs}:
            absent.setdefault(planned.label, []).append(planned.recipe.seed)
    count = sum(len(seeds) for seeds in absent.values())
    again = sum("retrained" in (run.read().get("parent") or {}) for run in runs)
    said = ""
    if again:
        said = f" {again} of them began with a model that was trained again from its recipe, since "
        said += "its weights were lost; their records name device, commit and loss."
    if not absent and not unmeasured:
        return f"All {len(plan)} runs of the study are recorded.{said}"
    command = f"```bash\npe study {study}\n```"
    if plan and count == len(plan):
        none = f"None of the {count} planned runs is recorded yet."
        return f"{none} This command carries them out ({{doc}}`/studies`):\n\n{command}"
    lines = [f"Of {len(plan)} planned runs {len(plan) - count} are recorded.{said} Missing are:\n"]
    if not absent:
        lines = [f"All {len(plan)} runs of the study are recorded.{said} Missing are:\n"]
    for row, seeds in absent.items():
        word = "seed" if len(seeds) == 1 else "seeds"
        lines.append(f"- {names[row]}: {word} {', '.join(map(str, seeds))}")
    if unmeasured:
        lines.append(f"- measured without training: {', '.join(_by_method(unmeasured))}")
    if not unmeasured:
        words = [f"{study}/{row}:{','.join(map(str, seeds))}" for row, seeds in absent.items()]
        filled = textwrap.wrap(" ".join(["pe study", *words]), 76, break_on_hyphens=False)
        command = "```bash\n" + " \\\n    ".join(filled) + "\n```"
    lines.append(
        "\nThis carries them out, and nothing that is recorded; a parent whose weights are "
        f"not on the machine is trained again first ({{doc}}`/studies`):\n\n{command}"
    )
    return "\n".join(lines)


def listed(words: Sequence[str], last: str = "and") -> str:
    """Write ``a, b and c``."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _by_method(cells: Sequence[str]) -> list[str]:
    """``yarn@2``, ``yarn@4`` -> ``YaRN with factors 2 and 4``."""
    found: dict[str, list[str]] = {}
    for method, _, factor in (cell.rpartition("@") for cell in cells):
        found.setdefault(method, []).append(factor)
    return [
        label(method)
        + ("" if factors == ["1"] else f" with factor{'s'[: len(factors) > 1]} {listed(factors)}")
        for method, factors in found.items()
    ]


def unmeasured_cells(studies: Studies, plan: list[Planned]) -> list[str]:
    """Return the cells of the plan's zero-shot parts that no record has."""
    runs = {f"{run.study}/{run.name}": run for run in studies.complete()}
    found: list[str] = []
    for planned in plan:
        if planned.zero_shot:
            run = runs.get(planned.recipe.start_from)
            cells = ((run.extended if run else None) or {"cells": {}})["cells"]
            found += planned.zero_shot.without(cells)
    return list(dict.fromkeys(found))


def repeat(record: Mapping[str, Any]) -> str:
    """Write the commands that repeat the run of a record.

    Where a worker of a study wrote down how it was started, they are made from the recipe.
    """
    command, parent = record["command"], record.get("parent")
    if command.startswith(WORKER):
        recipe = Recipe.from_dict(record["recipe"])
        command = notebook_command(notebook_parameters(recipe, record["study"]))
    first = f"# after {parent['run']}, from its step {parent['step']}\n" if parent else ""
    return f"git checkout {_commit(record)}\n{first}{command}"


def _commit(record: Mapping[str, Any]) -> str:
    return (record["code"]["commit"] or "unknown")[:12]


class IfRecorded(Block):
    """Content that is shown if there are records; ``:else:`` is shown if there are none."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"else": directives.unchanged}

    def run(self) -> list[nodes.Node]:
        try:
            found = there(self.book.studies, self.arguments[0])
        except ValueError as error:
            return self.warn(str(error))
        text = "\n".join(self.content) if found else self.options.get("else", "")
        return self.markdown(text) if text else []


class Settings(Made):
    """`settings` of a study."""

    def text(self) -> str:
        return settings(self.arguments[0])


class MissingRuns(Made):
    """`missing_runs` of a study."""

    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        study, studies = self.arguments[0], self.book.studies
        plan = studies.plan(study)
        return missing_runs(study, plan, studies.recorded(study), unmeasured_cells(studies, plan))


class Rerun(Made):
    """Commit, time, device and command of every run of a study."""

    def text(self) -> str:
        study = self.arguments[0]
        rows = self.book.studies.rows(study).values()
        runs = [(row, run) for row in rows for run in row.runs]
        pages = self.book.pages(rows)
        heads = ["run", "seed", "commit", "device", "tokens", "training", "evaluation"]
        lines: list[list[str]] = []
        commands, seconds = [], 0.0
        for row, run in runs:
            record, training = run.read(), run.read()["training"] or {}
            judged = (run.evaluation() or {}).get("seconds") or 0.0
            spent = training.get("wall_seconds") or 0.0
            seconds += spent + judged
            machine = record["hardware"]
            count = f"{machine['count']} × " if machine["device"] != "cpu" else ""
            cells = [
                linked(row.title, pages.get(run.name)),
                str(record["seed"]),
                f"`{_commit(record)}`" + (" (changed)" if record["code"]["dirty"] else ""),
                f"{count}{machine['name']}",
                whole(training["tokens"]) if training.get("tokens") else "–",
                duration(spent) if spent else "–",
                duration(judged) if judged else "–",
            ]
            lines.append(cells)
            commands.append(
                f"````{{dropdown}} {row.title}, seed {record['seed']}: runs/{study}/{run.name}\n"
                f"```bash\n{repeat(record)}\n```\n````"
            )
        total = f"All {len(runs)} together: {duration(seconds)} of training and evaluation."
        if not all((run.read()["training"] or {}).get("wall_seconds") for _, run in runs):
            total = "A dash stands for a time that is not recorded."
        return pipe(heads, lines, 4) + f"\n\n{total}\n\n" + "\n\n".join(commands)
