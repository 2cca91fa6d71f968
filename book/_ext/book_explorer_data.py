"""The data of the explorer of results, made from the records by `pe.results` and `pe.speed`.

Values, intervals and their texts are those of the book's tables, on the same seeds. The script only
draws them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from book_mirror import write
from book_studies import LOCAL, Speeds, Studies

from pe.figures.axes import LENGTHS, PERPLEXITY
from pe.figures.style import colour, marker
from pe.results import extensions, quantities
from pe.results.difference import same_targets
from pe.results.measure import Cell, cut, cut_base, measure
from pe.results.measure import write as write_cell
from pe.results.quantities import QUANTITIES, TASKS, At, multiples, rescaled, trained_length
from pe.results.rows import Row, ceilings, comparable
from pe.speed import tables
from pe.speed.names import spelled, title
from pe.speed.record import Speed

KINDS = ("ppl", *TASKS)
_DIGITS = 5
"""Digits of the numbers that a chart draws. Texts have the digits of the tables."""


def write_sets(sets: Sequence[Mapping[str, Any]], folder: Path) -> set[Path]:
    """Write a list of the sets, and a script per set, which the page loads when it is chosen.

    Scripts, because a page that is read from the disk can load nothing else.
    """
    listed, kept = [], {folder / "data.js"}
    for number, one in enumerate(sets):
        file = f"sets/{number}.js"
        listed.append({"name": one["name"], "title": one["title"], "file": file})
        write(folder / file, f"window.peResults.found({_compact(one)});\n")
        kept.add(folder / file)
    write(folder / "data.js", f"window.peResults = {_compact({'sets': listed})};\n")
    return kept


def _compact(data: Mapping[str, Any]) -> str:
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


class Pages:
    """The pages of runs and studies, as addresses from the root of the site."""

    def __init__(self, book: Path) -> None:
        self.book = book
        self.texts = {
            path.relative_to(book).with_suffix("").as_posix(): path.read_text("utf-8")
            for path in sorted(book.rglob("*.md"))
            if not {"runs", "_generated", "_ext"} & set(path.relative_to(book).parts)
        }

    def notebook(self, run: Any) -> bool:
        """Return whether the run has a page of its executed notebook."""
        return (self.book / "runs" / run.study / run.name / "train.ipynb").exists()

    def of(self, run: Any) -> str:
        """Return the page of a run: its executed notebook, or else its record."""
        page = "train.html" if self.notebook(run) else "record.html"
        return f"runs/{run.study}/{run.name}/{page}"

    def study(self, studies: Sequence[str]) -> tuple[str, str]:
        """Return (address, title) of the page that shows most of these studies."""
        pattern = "|".join(re.escape(study) for study in studies)
        table = re.compile(rf"^```\{{[a-z-]+\}} (?:[a-z-]+ )*(?:{pattern})(?=[/\s])", re.M)
        number = re.compile(rf"`(?:{pattern})/")
        counted = {
            name: 100 * len(table.findall(text)) + len(number.findall(text))
            for name, text in self.texts.items()
            if any(study in text for study in studies)
        }
        best = max(counted, key=lambda name: counted[name], default="")
        if not counted.get(best):
            best = "measurements" if "measurements" in self.texts else "index"
        heading = re.search(r"^# (.+)$", self.texts.get(best, ""), re.M)
        return f"{best}.html", (heading[1] if heading else best).replace("`", "")


# Studies ------------------------------------------------------------------------------------


def study_sets(studies: Studies, pages: Pages) -> list[dict[str, Any]]:
    """Return a set per study, per group of studies of one budget, and per run that was extended."""
    rows = {study: list(studies.rows(study).values()) for study in studies.runs}
    found = []
    for names in together(rows):
        joined = _joined({name: rows[name] for name in names})
        found.append(study_set(" + ".join(names), names, joined, pages))
    for study, own in rows.items():
        if len(own) > 1:
            found.append(study_set(study, [study], own, pages))
    for study, own in rows.items():
        for row in own:
            records = {run.name: getattr(run, "extended", None) for run in row.runs}
            if any(records.values()):
                cells = extensions.rows(row, records)
                name = f"{study}/{row.label} extended"
                found.append(study_set(name, [study], cells, pages, once=()))
    return sorted(found, key=lambda one: -_told(one))


def _told(one: Mapping[str, Any]) -> float:
    """Return how much a set shows, by its encodings, quantities by length and training tokens."""
    kinds = sum(bool(quantity["lengths"]) for quantity in one["quantities"])
    return math.log(max(one["tokens"], 1)) * one["encodings"] * min(kinds, 4)


def together(rows: Mapping[str, Sequence[Row]]) -> list[list[str]]:
    """Return groups of studies whose runs have one budget and are evaluated on the same targets."""
    budgets: dict[tuple[Any, ...], list[str]] = {}
    for study, own in rows.items():
        if study == LOCAL or not own or not same_targets(own):
            continue
        keys = {_budget(run) for row in own for run in row.runs}
        if len(keys) == 1:
            budgets.setdefault(keys.pop(), []).append(study)
    found = []
    for names in budgets.values():
        runs: set[str] = set()
        more = []  # without studies whose runs all belong to studies before them
        for name in names:
            own = {run.name for row in rows[name] for run in row.runs}
            more += [name] if own - runs else []
            runs |= own
        if len(more) > 1 and same_targets([row for name in more for row in rows[name]]):
            found.append(more)
    return found


def _budget(run: Any) -> tuple[Any, ...]:
    recipe = run.read()["recipe"]
    keys = (
        "context_length",
        "hidden_size",
        "num_hidden_layers",
        "steps",
        "batch_size",
        "vocab_size",
    )
    return tuple(recipe[key] for key in keys)


def _joined(rows: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Return the rows of several studies. A row whose runs earlier rows have is left out."""
    seen: set[str] = set()
    found = []
    for own in rows.values():
        for row in own:
            names = {run.name for run in row.runs}
            if not names <= seen:
                found.append(row)
            seen |= names
    return found


def study_set(
    name: str,
    studies: Sequence[str],
    rows: Sequence[Row],
    pages: Pages,
    once: Sequence[str] = (*QUANTITIES, "c"),
) -> dict[str, Any]:
    """Return what explorers/explorer/results.js reads about some rows.

    ``once``: the quantities without a length; a run that was extended has none of its own.
    """
    longer = {row.label for row in ceilings(rows)}
    runs = [run for row in rows if row.label not in longer for run in row.runs]
    length = trained_length(runs)
    lengths = [float(one[:-1]) for one in multiples(runs)]
    shared = comparable(rows)
    views: dict[tuple[str, str, tuple[int, ...]], tuple[Row, str]] = {}
    for view, shown in (
        ("c", shared),
        ("a", rows),
        ("e", [one for row in rows for one in (row.each() if len(row.runs) > 1 else [row])]),
    ):
        for row in shown:
            key = row.label, row.title, row.seeds
            kept, before = views.get(key, (row, ""))
            views[key] = kept, before + view
    asked = {
        str(At(tempered, kind, multiple)): None
        for tempered in (False, True)
        for kind in KINDS
        for multiple in lengths
    }
    all_seeds = {row.label: row.seeds for row in rows}
    order = list(all_seeds)
    looks = _looks(rows)
    listed: dict[str, int] = {}
    members: list[dict[str, Any]] = []
    lines = []
    for (label, _, seeds), (row, view) in views.items():
        for run in row.runs:
            known = f"{run.study}/{run.name}"
            if known not in listed:
                listed[known] = len(members)
                seed = int(run.read()["seed"])
                members.append({"name": known, "page": pages.of(run), "seed": seed})
        lines.append({
            "key": label + ("" if seeds == all_seeds[label] else f"#{'+'.join(map(str, seeds))}"),
            "label": label, "title": row.title, "pe": row.pe, "views": view,
            "seeds": list(seeds), **looks[label],
            "runs": [listed[f"{run.study}/{run.name}"] for run in row.runs],
            "cells": _cells(row, length, lengths, asked, once),
        })  # fmt: skip
    lines.sort(key=lambda line: order.index(line["label"]))
    page, heading = pages.study(studies)
    limit = quantities.vocabulary(runs[0])
    return {
        "name": name, "title": name, "page": page, "pageTitle": heading,
        "about": _about(studies, rows, length), "trained": True,
        "tokens": _budget(runs[0])[3] * _budget(runs[0])[4] * length,
        "encodings": len({row.origin for row in rows}),
        "quantities": _quantities(lines, lengths, length, limit),
        "rows": lines, "runs": members, "cut": _cut(shared, lengths, lines),
    }  # fmt: skip


def _looks(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Return colour, marker and dashes by label. Rows of one encoding differ in their dashes."""
    counted: dict[str, int] = {}
    looks = {}
    for row in rows:
        dash = counted[row.pe] = counted.get(row.pe, -1) + 1
        looks[row.label] = {"colour": colour(row.pe), "marker": marker(row.pe), "dash": dash}
    return looks


def _cells(
    row: Row, length: int, lengths: Sequence[float], asked: Iterable[str], once: Iterable[str]
) -> dict[str, list[Any]]:
    """Return the cells of each quantity that has a value, one per length."""
    found: dict[str, list[Any]] = {}
    for name in asked:
        at = quantities.at(name)
        assert at is not None
        there = rescaled(
            name, row.runs[0], length
        )  # of the same tokens, whatever it was trained on
        cells = found.setdefault(_kind(at), [None] * len(lengths))
        cells[lengths.index(at.multiple)] = _cell(measure(row, there), there)
    for name in once:
        found[name] = [_cell(measure(row, name), name)]
    return {key: cells for key, cells in found.items() if any(cells)}


def _cell(cell: Cell, quantity: str) -> list[Any] | None:
    """Return [text, value, low, high] as far as they are known; None if nothing was measured."""
    text = write_cell(cell, quantity)
    if cell.value is None:
        return None if text == "–" else [text]
    ends = (cell.interval.low, cell.interval.high) if cell.interval else ()
    return [text, *map(_short, (cell.value, *ends))]


def _short(value: float | None) -> float | None:
    """Round a value to `_DIGITS` digits, and keep it finite."""
    if value is None or math.isnan(value):
        return None
    return float(f"{min(max(value, -1e300), 1e300):.{_DIGITS}g}")


def _kind(at: At) -> str:
    return f"{'tempered.' if at.tempered else ''}{at.kind}"


def _quantities(
    lines: Sequence[Mapping[str, Any]], lengths: Sequence[float], length: int, limit: int
) -> list[dict[str, Any]]:
    """Describe the quantities that any row has."""
    there = {key for line in lines for key in line["cells"]}
    places = [{"at": at, "text": f"{at:g}×", "tokens": f"{round(at * length):,}"} for at in lengths]
    found: list[dict[str, Any]] = []
    for tempered in (False, True):
        for kind in KINDS:
            at = At(tempered, kind, 1.0)
            if _kind(at) not in there:
                continue
            name = "perplexity" if at.is_perplexity else f"prompts answered, {kind}"
            name += ", with a fitted temperature" if tempered else ""
            found.append({
                "key": _kind(at), "title": name, "lengths": places, "along": LENGTHS,
                "short": "perplexity" if at.is_perplexity else f"{kind} answered",
                "axis": PERPLEXITY if at.is_perplexity else "prompts answered",
                "log": at.is_perplexity, "share": at.is_share, "more": at.is_share,
                "limit": limit if at.is_perplexity else None,
            })  # fmt: skip
    for name in [*QUANTITIES, "c"]:
        if name in there:
            text = QUANTITIES[name].title if name in QUANTITIES else "fitted temperature c"
            more = QUANTITIES[name].more_is_better if name in QUANTITIES else None
            found.append({
                "key": name, "title": text, "short": text, "axis": text, "along": "", "log": False,
                "share": False, "more": more, "limit": None, "lengths": [],
            })  # fmt: skip
    return found


def _cut(
    rows: Sequence[Row], lengths: Sequence[float], lines: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return what the base row reaches with texts cut to its training length."""
    base = cut_base(rows)
    if base is None:
        return None
    there = {key for line in lines for key in line["cells"]}
    cells = {}
    for kind in KINDS:
        if kind in there:
            values = [cut(base, str(At(False, kind, at))) for at in lengths]
            if sum(value is not None for value in values) > 1:
                cells[kind] = [_short(value) for value in values]
    title = f"{base.title}, given only the last training length of each text"
    return {"title": title, "cells": cells} if cells else None


def _about(studies: Sequence[str], rows: Sequence[Row], length: int) -> str:
    runs = {run.name: run.read() for row in rows for run in row.runs}
    records = list(runs.values())
    recipe = records[0]["recipe"]
    machines = list(dict.fromkeys(record["hardware"]["name"] for record in records))
    sizes = [(record["model"] or {}).get("parameters") for record in records]
    known = [size for size in sizes if size]
    size = f"{max(known) / 1e6:.3g} M parameters, " if known else ""
    return (
        f"{len(runs)} {'run' if len(runs) == 1 else 'runs'} of {' and '.join(studies)}: {size}"
        f"trained on windows of {length:,} tokens, recipe {recipe['name']}, on "
        f"{', '.join(machines)}. More about it:"
    )


# Speed --------------------------------------------------------------------------------------


def speed_sets(speeds: Speeds) -> list[dict[str, Any]]:
    """Return a set per record of speed, first the one that pages show."""
    known = [speed for speed in speeds.all if speed.record["sessions"]]
    known.sort(key=lambda speed: speed is not speeds.best)
    return [one for one in map(speed_set, known) if one["rows"]]


def speed_set(speed: Speed) -> dict[str, Any]:
    """Return what the script reads about a record of speed."""
    name = f"{speed.record['study']}/{speed.record['run']}"
    rows: dict[str, dict[str, Any]] = {}
    described = []
    for mode in speed.settings["modes"]:
        lengths = tables.known_lengths(speed, mode)
        if not lengths:
            continue
        what = tables.MODES[mode]
        places = [{"at": n, "text": f"{n:,}", "tokens": f"{n:,}"} for n in lengths]
        for key, axis, more in (
            ("rate", "tokens per second", True),
            ("ratio", "speed over NoPE's", True),
            ("memory", "peak memory, GiB", False),
        ):
            described.append({
                "key": f"{mode}.{key}", "title": f"{what}: {axis}", "short": axis, "axis": axis,
                "along": "tokens in the window", "log": key != "memory", "share": False,
                "more": more, "limit": None, "lengths": places,
            })  # fmt: skip
        for place, system in enumerate(tables.shown(speed, mode)):
            pe, _ = spelled(system)
            row = rows.setdefault(system, {
                "key": system, "label": system, "title": title(system), "pe": pe, "views": "c",
                "seeds": [0], "runs": [0], "colour": colour(system), "marker": marker(system),
                "dash": place // 10, "cells": {},
            })  # fmt: skip
            for key in ("rate", "ratio", "memory"):
                cells = [_speed_cell(speed, system, mode, n, key) for n in lengths]
                if any(cells):
                    row["cells"][f"{mode}.{key}"] = cells
    used = {key for row in rows.values() for key in row["cells"]}
    return {
        "name": name, "title": f"speed: {speed.hardware['name']} ({speed.record['run']})",
        "page": "speed.html", "pageTitle": "Speed", "trained": False, "tokens": 0,
        "about": re.sub(r"[`*]", "", tables.machine(speed)).partition(". Commit")[0] + ". More:",
        "quantities": [one for one in described if one["key"] in used],
        "rows": list(rows.values()), "cut": None,
        "runs": [{"name": name, "page": "speed.html", "seed": "record"}],
    }  # fmt: skip


def _speed_cell(speed: Speed, system: str, mode: str, length: int, key: str) -> list[Any] | None:
    result = speed.result(system, mode, length)
    if result.reason:
        return [tables.short(result.reason)]
    if key == "rate":
        rate, spread = result.tokens_per_second, result.spread
        assert rate is not None
        assert spread is not None
        return [tables.rate(rate), *map(_short, (rate, *spread))]
    value = speed.ratio(system, mode, length) if key == "ratio" else result["peak_memory_gib"]
    if value is None:
        return None
    return [f"{value:.2f}" if key == "ratio" else f"{value:.1f}", _short(value)]
