"""Every encoding in one table: what it reads, how fast, with how much memory.

| ```{every-encoding} every scaffold-seeds     quality from these studies, speed from runs/speed
| ```{every-encoding} ...  :extended: scaffold-seeds/rope    and methods put on that run's model
| ```{every-encoding} ...  :measured:    only rows with a quality; the others are named below

Quality and speed come from different records, made with the same model: rows are those of the speed
record, and what no study has trained says so. Nothing is measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import book_directives
import book_speed
from book_directives import Block
from book_encodings import page
from book_numbers import study_rows
from book_studies import Studies
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.encodings import lookup
from pe.results import rows as results
from pe.results.rows import Row
from pe.speed import tables
from pe.speed.families import library, spelled, title
from pe.speed.record import MAIN, Speed

MULTIPLES = (1, 2, 4, 16)
SHORT, LONG = MAIN
HEADS = (
    "encoding", "n", *(f"{m}×" for m in MULTIPLES), "passkey", "speed 1k", "16k", "prefill 16k",
    "GiB", "own",
)  # fmt: skip
PASSKEY = HEADS.index("passkey")
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
) -> tuple[str, list[str]]:
    """The Markdown, and the names of encodings that no study has.

    Args:
        rows: by encoding. extended: by METHOD@FACTOR, of ``base`` (extension.json's cells).
        speed: a record at 1,024 and 16,384 tokens. links: of encodings to their pages.
        measured: leave out rows without a quality.
    """
    absent, cells = [], [list(HEADS)]
    for system in tables.shown(speed, "train"):
        if library(system):
            continue
        name, found = title(system), []
        if system in rows:
            found.append(("", _trained(rows[system])))
        if f"{system}@{MULTIPLES[1]}" in extended and base is not None:
            found.append((PUT_ON, _put_on(system, extended, base)))
        if not found:
            absent.append(name)
            if measured:
                continue
            found = [("", [NONE] * (len(MULTIPLES) + 2))]
        named = f"{{doc}}`{name} <{links[system]}>`" if system in links else name
        for mark, quality in found:
            cells.append([named + mark, *quality, *_cost(speed, system)])
    if all(line[PASSKEY] == NONE for line in cells[1:]):  # a budget that asks for none
        cells = [[*line[:PASSKEY], *line[PASSKEY + 1 :]] for line in cells]
    heads, *lines = cells
    ruler = [":--", *("--:" for _ in heads[1:])]
    return "\n".join(_line(line) for line in (heads, ruler, *lines)), absent


def _trained(row: Row) -> list[str]:
    cells = [results.measure(row, f"ppl@{m}x") for m in MULTIPLES]
    perplexities = [NONE if c.value is None else results.large(c.value) for c in cells]
    found = results.measure(row, "passkey@1x")
    share = NONE if found.value is None else f"{100 * found.value:.0f}%"
    return [str(len(row.runs)), *perplexities, share]


def _put_on(method: str, cells: Mapping[str, Mapping[str, Any]], base: Row) -> list[str]:
    """The base's own perplexity at 1×, and that of the method at each multiple, by this factor."""
    own = results.measure(base, "ppl@1x").value
    found = [NONE if own is None else results.large(own)]
    length = base.runs[0].read()["recipe"]["context_length"]
    for m in MULTIPLES[1:]:
        cell = cells.get(f"{method}@{m}", {}).get("perplexity", {}).get(str(m * length), {})
        found.append(results.large(cell["value"]) if cell.get("value") else NONE)
    return [str(len(base.runs)), *found, NONE]


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


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


class EveryEncoding(Block):
    """`every` of the studies named."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {
        "extended": directives.unchanged_required,
        "measured": directives.flag,
    }

    def run(self) -> list[nodes.Node]:
        best = book_speed._now["best"]
        if best is None:
            return self.markdown(book_speed.NOTHING)
        try:
            rows = self.rows(self.arguments[0].split())
            base, cells = self.base()
        except ValueError as error:
            return self.warn(str(error))
        measured = "measured" in self.options
        text, absent = every(rows, cells, base, best, self.links(best), measured=measured)
        box = self.markdown(text, nodes.container(classes=["pe-results"]))
        nope = best.result("nope", "train", SHORT)
        notes = [f"{PUT_ON} Not trained: put on a trained RoPE, by the factor of each column."]
        if nope.tokens_per_second:
            notes.append(
                f"NoPE: {tables.rate(nope.tokens_per_second)} tokens a second in training at "
                f"{SHORT:,} tokens."
            )
        if absent:
            notes.append(f"No run yet: {'; '.join(absent)}.")
        return [*box, *self.markdown(" ".join(notes)), *self.markdown(tables.machine(best))]

    def rows(self, studies: Sequence[str]) -> dict[str, Row]:
        """Of each encoding the row of the first study that has it, trained from the first step."""
        known: Studies = book_directives._now["studies"]
        found: dict[str, Row] = {}
        for study in studies:
            if study not in known.runs:
                continue  # nothing of it is recorded yet
            for label, row in study_rows(known, study).items():
                if not row.runs[0].read().get("parent"):
                    found.setdefault(label, row)
        return found

    def base(self) -> tuple[Row | None, Mapping[str, Mapping[str, Any]]]:
        """The row named by ``:extended:``, its runs those with an extension, and the cells."""
        if "extended" not in self.options:
            return None, {}
        known: Studies = book_directives._now["studies"]
        study, _, label = self.options["extended"].partition("/")
        if study not in known.runs:
            raise unknown("study", study, known.runs)
        rows = study_rows(known, study)
        if label not in rows:
            raise unknown("row", label, rows)
        row = rows[label]
        for run in row.runs:
            if run.extended is not None:  # type: ignore[attr-defined]
                one = results.Row(row.label, row.title, row.origin, (run,))
                return one, run.extended["cells"]  # type: ignore[attr-defined]
        return None, {}

    def links(self, speed: Speed) -> dict[str, str]:
        found = {}
        for system in tables.shown(speed, "train"):
            name, _ = spelled(system)
            if not library(system) and "+" not in name and (stem := page(lookup(name))):
                found[system] = f"/methods/{stem}"
        return found


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("every-encoding", EveryEncoding)
