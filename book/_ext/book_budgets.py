"""Tables of several seeds and of two budgets, from the records that are there.

| ```{seeds-table} scaffold-seeds      rows of the YAML by columns, each cell with interval and n
| ```{two-budgets} scaffold scaffold-seeds   the order of rows at each length, and what differs
| ```{missing-runs} scaffold-seeds     which planned runs are not there, and what goes on

Rows and runs that are not recorded yet are named, so that a page holds before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import book_directives
from book_directives import Block
from book_numbers import study_rows
from book_studies import Studies
from book_tables import _words, run_pages
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.results import budgets, tables
from pe.results import rows as results
from pe.results.rows import Row
from pe.results.tables import whole
from pe.study.plan import Planned, load_plan


def _rows(study: str) -> dict[str, Row]:
    studies: Studies = book_directives._now["studies"]
    if study not in studies.runs:
        raise unknown("study", study, studies.runs)
    return study_rows(studies, study)


def _table(heads: list[str], lines: list[list[str]], align: str = "--:") -> str:
    body = [heads, [":--", *[align] * (len(heads) - 1)], *lines]
    return "\n".join("| " + " | ".join(line) + " |" for line in body)


def seeds_table(
    plan: list[Planned],
    rows: dict[str, Row],
    columns: list[str],
    wanted: list[str],
    base: str | None,
    *,
    each: bool,
    pages: dict[str, str],
) -> str:
    """The Markdown of a table with a row for each name of the plan.

    Args:
        columns: quantities; ``ppl`` and the like stand for all lengths.
        wanted: names of rows; none: all.
        base: a row to show differences to instead of values.
        each: a row for each seed, without intervals.
    """
    titles = {p.label: results.named(p.recipe.to_dict())[0] for p in plan}
    for name in [*wanted, *([base] if base else [])]:
        if name not in titles:
            raise unknown("row", name, titles)
    quantities = results.expand(columns, [run for row in rows.values() for run in row.runs])
    lines, absent = [], []
    for name in wanted or [label for label in titles if label != base]:
        if name not in rows:
            absent.append(titles[name])
            continue
        for row in budgets.each(rows[name]) if each else [rows[name]]:
            page = pages.get(row.runs[0].name)
            cells = [_cell(row, quantity, rows[base] if base else None) for quantity in quantities]
            if each:
                cells = [cell.partition("<br>")[0] for cell in cells]
            lines.append([f"[{row.title}]({page})" if page else row.title, *cells])
    text = _table(["run", *(results.title(quantity) for quantity in quantities)], lines)
    return f"{text}\n\nNo run yet: {'; '.join(absent)}." if absent else text


def _cell(row: Row, quantity: str, base: Row | None) -> str:
    if base is not None:
        return budgets.against(row, base, quantity)
    return budgets.write(budgets.over_seeds(row, quantity), quantity, len(row.runs))


def two_budgets(first: dict[str, Row], second: dict[str, Row], quantity: str) -> str:
    """The order of the same rows in two studies at every length, and which pairs change places."""
    runs = [run for row in first.values() for run in row.runs]
    studies, steps = (first, second), [_steps(rows) for rows in (first, second)]
    heads = ["context", *(f"{n} steps, {_seeds(r)}" for n, r in zip(steps, studies, strict=True))]
    lines: list[list[str]] = []
    same: list[str] = []
    other: list[str] = []
    for name in results.expand([quantity], runs):
        orders = [budgets.order(list(rows.values()), name) for rows in studies]
        pairs = budgets.swapped(*orders, name)
        (other if pairs else same).append(results.title(name))
        changes = []
        for a, b in pairs:
            shown = [budgets.told_apart(rows[a], rows[b], name) for rows in studies]
            changes.append(f"{first[a].title} and {first[b].title} ({_where(shown, steps)})")
        texts = [_written(order, name) for order in orders]
        lines.append([results.title(name), *texts, "; ".join(changes) or "none"])
    words = [f"No two change places at {_listed(same)}."] if same else []
    words += [f"Some do at {_listed(other)}." if same else "Some change places at every length."]
    words = words if other else ["No two change places at any length."]
    return _table([*heads, "change places"], lines, ":--") + "\n\n" + " ".join(words)


def _where(shown: list[bool], steps: list[str]) -> str:
    """At which of the two budgets a difference is shown."""
    if all(shown):
        return "a difference shown at both"
    if not any(shown):
        return "a difference shown at neither"
    return f"a difference shown at {steps[shown.index(True)]} steps only"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + words[-1:])


def _written(order: budgets.Order, quantity: str) -> str:
    text = str(order).replace(" ", "\N{NO-BREAK SPACE}")
    return text.replace("<", ">" if budgets.is_share(quantity) else r"\<")


def _steps(rows: dict[str, Row]) -> str:
    """Of the rows trained from the beginning: what a dropped one has is a part of them."""
    return whole(max(row.runs[0].read()["recipe"]["steps"] for row in rows.values()))


def _seeds(rows: dict[str, Row]) -> str:
    counts = sorted({len(row.runs) for row in rows.values()})
    seeds = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    return f"{seeds} seed" + ("" if counts[-1] == 1 else "s")


def missing_runs(
    study: str, plan: list[Planned], rows: dict[str, Row], unmeasured: Sequence[str] = ()
) -> str:
    """Words on what is planned and not recorded, and the command that goes on.

    Args:
        unmeasured: cells that a zero-shot part of the plan still lacks.
    """
    runs = [run for row in rows.values() for run in row.runs]
    plan = [planned for planned in plan if not planned.zero_shot]
    titles = {p.label: results.named(p.recipe.to_dict())[0] for p in plan}
    absent = budgets.missing(plan, runs)
    count = sum(len(seeds) for seeds in absent.values())
    again = sum("retrained" in (run.read().get("parent") or {}) for run in runs)
    said = ""
    if again:
        said = f" {again} of them began with a model that was trained again from its recipe, since "
        said += "its weights were lost; their records name device, commit and loss."
    if not absent and not unmeasured:
        return f"All {len(plan)} runs of the study are recorded.{said}"
    lines = [f"Of {len(plan)} planned runs {len(plan) - count} are recorded.{said} Missing are:\n"]
    if not absent:
        lines = [f"All {len(plan)} runs of the study are recorded.{said} Missing are:\n"]
    for label, seeds in absent.items():
        word = "seed" if len(seeds) == 1 else "seeds"
        lines.append(f"- {titles[label]}: {word} {', '.join(map(str, seeds))}")
    if unmeasured:
        lines.append(f"- measured without training: {', '.join(_by_method(unmeasured))}")
    lines.append(
        "\nThis goes on with them, and with nothing that is recorded; a parent whose weights are "
        "not on the machine is trained again first ({doc}`/studies`):\n\n"
        f"```bash\npython -m pe.study {study}\n```"
    )
    return "\n".join(lines)


def _by_method(cells: Sequence[str]) -> list[str]:
    """``yarn@2``, ``yarn@4`` -> ``YaRN with factors 2 and 4``."""
    found: dict[str, list[str]] = {}
    for method, _, factor in (cell.rpartition("@") for cell in cells):
        found.setdefault(method, []).append(factor)
    return [
        tables.label(method)
        + ("" if factors == ["1"] else f" with factor{'s'[: len(factors) > 1]} {_listed(factors)}")
        for method, factors in found.items()
    ]


class _Made(Block):
    """A directive that is one piece of Markdown, or a warning that says what is wrong."""

    classes: ClassVar[list[str]] = ["pe-results"]

    def run(self) -> list[nodes.Node]:
        try:
            text = self.text()
        except ValueError as error:
            return self.warn(str(error))
        return self.markdown(text, nodes.container(classes=self.classes))

    def text(self) -> str:
        """The Markdown."""
        raise NotImplementedError


class SeedsTable(_Made):
    """`seeds_table` of a study; ``:against:`` a row, ``:each:`` seed by itself."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "columns": directives.unchanged_required,
        "rows": directives.unchanged,
        "against": directives.unchanged_required,
        "each": directives.flag,
    }

    def text(self) -> str:
        study = self.arguments[0]
        rows = _rows(study)
        return seeds_table(
            load_plan(study),
            rows,
            _words(self.options.get("columns", "ppl")),
            _words(self.options.get("rows", "")),
            self.options.get("against"),
            each="each" in self.options,
            pages=run_pages([run for row in rows.values() for run in row.runs]),  # type: ignore[misc]
        )


class TwoBudgets(_Made):
    """`two_budgets` of two studies, of the rows named that both have."""

    required_arguments = 2
    classes: ClassVar[list[str]] = ["pe-results", "wrap"]
    option_spec: ClassVar[dict[str, Any]] = {
        "quantity": directives.unchanged_required,
        "rows": directives.unchanged,
    }

    def text(self) -> str:
        first, second = (_rows(study) for study in self.arguments)
        for name in _words(self.options.get("rows", "")):
            if name not in first:
                raise unknown("row", name, first)
        wanted = _words(self.options.get("rows", "")) or list(first)
        both = [name for name in wanted if name in first and name in second]
        return two_budgets(
            {name: first[name] for name in both},
            {name: second[name] for name in both},
            self.options.get("quantity", "ppl"),
        )


class MissingRuns(_Made):
    """`missing_runs` of a study."""

    required_arguments = 1
    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        study, plan = self.arguments[0], load_plan(self.arguments[0])
        studies: Studies = book_directives._now["studies"]
        rows = _rows(study) if study in studies.runs else {}
        return missing_runs(study, plan, rows, _unmeasured(studies, plan))


def _unmeasured(studies: Studies, plan: list[Planned]) -> list[str]:
    """Cells of the plan's zero-shot parts that no record holds."""
    runs = {f"{run.study}/{run.name}": run for run in studies.complete()}
    found: list[str] = []
    for planned in plan:
        if planned.zero_shot:
            run = runs.get(planned.recipe.start_from)
            cells = ((run.extended if run else None) or {"cells": {}})["cells"]
            found += planned.zero_shot.without(cells)
    return list(dict.fromkeys(found))


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("seeds-table", SeedsTable)
    app.add_directive("two-budgets", TwoBudgets)
    app.add_directive("missing-runs", MissingRuns)
