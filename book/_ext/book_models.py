"""Who uses what: book/tables/models.yaml as a table. Each cell names where it is from.

| ```{models} table      one row per model, in the order of years
| ```{models} classes    the class in transformers that holds the defaults of each
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import yaml
from book_directives import Made

from pe._errors import unknown
from pe.results.markdown import pipe

FILE = Path(__file__).resolve().parents[1] / "tables" / "models.yaml"
COLUMNS = {
    "encoding": "encoding",
    "base": "base",
    "trained": "trained on",
    "windows": "windows",
    "extension": "for longer texts",
}
SOURCES = {"config": "c", "code": "t", "preset": "w"}
"""Kinds of sources and their mark in the table; a paper's mark is its arXiv id."""
_ARXIV = "https://arxiv.org/abs/"


@cache
def ledger() -> dict[str, Any]:
    """Read the file: `models` is a list, and `methods` has a list per place where they act."""
    found: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))
    return found


def year(entry: dict[str, Any]) -> int:
    """Return the year in which a model or method was published, from its arXiv id or as stated."""
    return 2000 + int(entry["paper"][:2]) if "paper" in entry else int(entry["year"])


def when(entry: dict[str, Any]) -> float:
    """Return the time of publication in years, to the month if the arXiv id has it."""
    month = int(entry["paper"][2:4]) - 0.5 if "paper" in entry else 6.0
    return year(entry) + month / 12


def source(cell: dict[str, Any]) -> str:
    """Return the mark that names the source of a cell.

    Raises:
        ValueError: a cell with no source, or with two.
    """
    kinds = [kind for kind in (*SOURCES, "paper") if kind in cell]
    if len(kinds) != 1:
        raise ValueError(
            f"a cell of {FILE.name} needs one of config, code, preset or paper: {cell}"
        )
    kind = kinds[0]
    return f"[{cell['paper']}]({_ARXIV}{cell['paper']})" if kind == "paper" else SOURCES[kind]


def entries(model: dict[str, Any], column: str) -> list[dict[str, Any]]:
    """Return the entries of a model's cell."""
    cell = model.get(column, [])
    return cell if isinstance(cell, list) else [cell]


def table() -> str:
    """Write a table of all models, the oldest first."""
    lines = []
    for model in sorted(ledger()["models"], key=when):
        line = [model["name"], str(year(model))]
        for column in COLUMNS:
            line.append(
                "; ".join(f"{e['says']} ({source(e)})" for e in entries(model, column)) or "–"
            )
        lines.append(line)
    return pipe(["model", "year", *COLUMNS.values()], lines, 7)


def classes() -> str:
    """Write a table of the models that have a configuration class in transformers."""
    named = [[m["name"], f"`{m['class']}`"] for m in ledger()["models"] if "class" in m]
    return pipe(["model", "configuration class"], named, 2)


PARTS = {"table": table, "classes": classes}


class Models(Made):
    """The table of models, or the list of their configuration classes."""

    classes: ClassVar[list[str]] = ["pe-results", "wrap"]

    def text(self) -> str:
        part = self.arguments[0]
        if part not in PARTS:
            raise unknown("part", part, PARTS)
        return PARTS[part]()
