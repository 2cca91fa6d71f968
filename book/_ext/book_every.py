"""Every encoding in one table: what it reads, how fast, with how much memory.

| ```{every-encoding} every scaffold-seeds     quality from these studies, speed from runs/speed
| ```{every-encoding} ...  :extended: scaffold-seeds/rope    and methods put on that run's model
| ```{every-encoding} ...  :measured:    only rows with a quality; the others are named below

There are two tables, one of quality and one of speed and memory, so that each fits a page. The two
come from different records of the same model. The rows are those of the speed record; an encoding
that no study has trained has dashes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import book_speed
from book_directives import Made, narrow
from book_encodings import page
from docutils.parsers.rst import directives

from pe.encodings import lookup
from pe.results import quantities
from pe.results.markdown import cropped, pipe
from pe.results.measure import measure, write
from pe.results.rows import Row, common_seeds
from pe.speed import tables
from pe.speed.names import library, spelled, title
from pe.speed.record import MAIN, Speed

MULTIPLES = (1, 2, 4, 16)
SHORT, LONG = MAIN
HEADS = (
    "encoding", "seeds", *(f"{m}×" for m in MULTIPLES), "found at 4×", "training, 1k",
    "training, 16k", "prompt, 16k", "GiB", "own parameters",
)  # fmt: skip
QUALITY = (*(f"ppl@{m}x" for m in MULTIPLES), "multikey@4x")
FOUND = HEADS.index("found at 4×")
COST = len(HEADS) - FOUND - 1
NONE = "–"
PUT_ON = "¹"


def every(
    rows: Mapping[str, Row],
    extended: Mapping[str, Mapping[str, Any]],
    base: Row | None,
    speed: Speed,
    links: Mapping[str, str],
    *,
    measured: bool = False,
) -> tuple[list[list[str]], list[str]]:
    """Return the heads and the lines of the table, and the encodings that no study has trained.

    Args:
        rows: by encoding.
        extended: the cells of the extension.json of ``base``, by METHOD@FACTOR.
        speed: a record at 1,024 and 16,384 tokens.
        links: the page of each encoding.
        measured: leave out encodings that no study has trained.
    """
    systems = [s for s in tables.shown(speed, "train") if not library(s)]
    known = [rows[system] for system in systems if system in rows]
    seeds = common_seeds([*known, *([base] if base and extended else [])])
    same = {row.label: row.of(seeds) if seeds else row for row in known}
    absent, lines = [], []
    for system in systems:
        name, found = title(system), []
        if system in rows:
            found.append(("", _quality(same[system])))
        if f"{system}@{MULTIPLES[1]}" in extended and base is not None:
            found.append((PUT_ON, _put_on(system, extended, base)))
        if not found:
            absent.append(name)
            if measured:
                continue
            found = [("", [NONE] * FOUND)]
        named = f"{{doc}}`{name} <{links[system]}>`" if system in links else name
        for mark, quality in found:
            lines.append([named + mark, *quality, *_cost(speed, system)])
    nothing = [NONE] * COST
    cut = cropped(list(same.values()), QUALITY)
    if cut:
        lines.append([*cut, *nothing])
    for row in known:
        if len(row.runs) > len(same[row.label].runs):
            mean = f"*{row.title}, mean of {len(row.runs)} seeds*"
            lines.append([mean, *_quality(row), *nothing])
    heads = list(HEADS)
    if all(line[FOUND] == NONE for line in lines):  # a budget that asks for none
        heads, *lines = ([*line[:FOUND], *line[FOUND + 1 :]] for line in (heads, *lines))
    return [heads, *lines], absent


def split(table: Sequence[list[str]]) -> list[str]:
    """Write the columns of quality and those of speed and memory as two tables.

    The second table has no line without speed and memory, and one line per encoding.
    """
    first = len(table[0]) - COST
    costs = {line[0].removesuffix(PUT_ON): line[first:] for line in table[1:]}
    known = [[name, *cells] for name, cells in costs.items() if set(cells) != {NONE}]
    heads, *lines = [line[:first] for line in table]
    return [pipe(heads, lines), pipe([heads[0], *table[0][first:]], known)]


def _quality(row: Row) -> list[str]:
    cells = [write(measure(row, name), name, "<br>") for name in QUALITY]
    return [", ".join(map(str, row.seeds)), *cells]


def _put_on(method: str, cells: Mapping[str, Mapping[str, Any]], base: Row) -> list[str]:
    """Return the base's perplexity at 1×, and the method's, extended by each multiple, at it."""
    run = base.runs[0]
    found = [write(measure(base, QUALITY[0]), QUALITY[0])]
    for m in MULTIPLES[1:]:
        cell = cells.get(f"{method}@{m}", {}).get("perplexity", {}).get(quantities.tokens(run, m))
        found.append(quantities.perplexity((cell or {}).get("value"), quantities.vocabulary(run)))
    return [", ".join(map(str, base.seeds)), *found, NONE]


def _cost(speed: Speed, system: str) -> list[str]:
    def ratio(mode: str, length: int) -> str:
        found = speed.ratio(system, mode, length)
        return NONE if found is None else f"{found:.2f}"

    memory = speed.result(system, "train", LONG)["peak_memory_gib"]
    counts = [speed.result(s, "train", SHORT)["parameters"] for s in (system, "nope")]
    own = NONE if None in counts else f"{counts[0] - counts[1]:,}"
    return [
        ratio("train", SHORT), ratio("train", LONG), ratio("prefill", LONG),
        NONE if memory is None else f"{memory:.1f}", own,
    ]  # fmt: skip


class EveryEncoding(Made):
    """`every` of the studies that the argument names."""

    final_argument_whitespace = True
    classes: ClassVar[list[str]] = []
    option_spec: ClassVar[dict[str, Any]] = {
        "extended": directives.unchanged_required,
        "measured": directives.flag,
    }

    def text(self) -> str:
        best = self.book.speeds.best
        if best is None:
            return book_speed.NOTHING
        rows = self.rows(self.arguments[0].split())
        base, cells = self.base()
        measured = "measured" in self.options
        table, absent = every(rows, cells, base, best, self.links(best), measured=measured)
        quality, costs = map(narrow, split(table))
        nope = best.result("nope", "train", SHORT)
        notes, first = [], best.record["sessions"][0]
        if any(line[0].endswith(PUT_ON) for line in table):
            notes.append(
                f"{PUT_ON} Not trained: put on a trained RoPE, by the factor of each column."
            )
        if absent:
            notes.append(f"No run yet: {'; '.join(absent)}.")
        machine = f"Measured on one {best.hardware['name']}, {first['created'][:10]}"
        if nope.tokens_per_second:
            machine += (
                f", where NoPE reads {tables.rate(nope.tokens_per_second)} tokens per second in "
                f"training on windows of {SHORT:,}"
            )
        machine += ". {doc}`/speed` says how."
        return "\n\n".join([quality, " ".join(notes), costs, machine])

    def rows(self, studies: Sequence[str]) -> dict[str, Row]:
        """Return a row per encoding: of the first study that trained it from the first step."""
        rows: dict[str, Row] = {}
        for study in studies:
            for row in self.book.studies.recorded(study).values():
                if not row.runs[0].read().get("parent"):
                    rows.setdefault(row.pe, row)
        return rows

    def base(self) -> tuple[Row | None, Mapping[str, Mapping[str, Any]]]:
        """Return the row that ``:extended:`` names, on a seed that was extended, and its cells."""
        if "extended" not in self.options:
            return None, {}
        study, _, label = self.options["extended"].partition("/")
        row = self.book.studies.row(study, label)
        for one in row.each():
            record = one.runs[0].extended  # type: ignore[attr-defined]
            if record is not None:
                return replace(one, title=row.title), record["cells"]
        return None, {}

    def links(self, speed: Speed) -> dict[str, str]:
        """Return the page of each encoding that has one."""
        found = {}
        for system in tables.shown(speed, "train"):
            name, _ = spelled(system)
            if not library(system) and "+" not in name and (stem := page(lookup(name))):
                found[system] = f"/methods/{stem}"
        return found
