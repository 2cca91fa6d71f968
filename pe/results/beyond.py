"""How far each row of a study does better than with its texts cut, as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pe.results import quantities
from pe.results.markdown import IN_TWO_LINES, name_cells, pipe
from pe.results.measure import ahead_of_cut, measure, write, write_cut
from pe.results.quantities import GUESSING
from pe.results.rows import Row, ceilings


def farthest(row: Row, kind: str) -> float:
    """Return up to which multiple of the training length a row of one seed beats cut texts.

    It is shown to be better there (`pe.results.measure.ahead_of_cut`), and at no shorter length
    beyond that of training it is shown to be worse or has no value. 1 if there is no such length.

    Args:
        kind: ``ppl`` or a task.
    """
    found = 1.0
    for name in quantities.multiples(row.runs):
        multiple = float(name.removesuffix("x"))
        if multiple <= 1:
            continue
        ahead = ahead_of_cut(row, f"{kind}@{name}")
        if ahead is None or ahead < 0:
            break
        if ahead > 0:
            found = multiple
    return found


def beyond_table(
    rows: Sequence[Row], links: Mapping[str, str] | None = None, task: str = "multikey"
) -> str:
    """Write a line per row with its seeds beside each other, those that find farthest first.

    Rows that were trained on longer windows (`ceilings`) are left out.

    Args:
        links: by a run's name, the address of its page.
        task: hidden numbers whose share is compared.
    """
    longer = ceilings(rows)
    rows = [row for row in rows if row not in longer]
    far = quantities.multiples([run for row in rows for run in row.runs])[-1]
    end = quantities.title(f"ppl@{far}")
    heads = [
        "run", "seeds", "finds more,<br>up to", "predicts better,<br>up to", f"found<br>at {end}",
        "when<br>cut", "perplexity<br>at 1×", f"at {end}",
    ]  # fmt: skip

    def place(row: Row) -> tuple[float, ...]:
        """Return the worst seed first: how far it finds and predicts, and what it finds there."""
        each = row.each()
        reach = [min(farthest(one, kind) for one in each) for kind in (task, "ppl")]
        share = min(measure(one, f"{task}@{far}").value or 0.0 for one in each)
        return *(-r for r in reach), -share, measure(each[0], "ppl@1x").value or 0.0

    lines = []
    for row in sorted(rows, key=place):
        each = row.each()
        cells = [
            *([_multiple(farthest(one, kind)) for one in each] for kind in (task, "ppl")),
            [_plain(one, f"{task}@{far}") for one in each],
            [write_cut(one, f"{task}@{far}") for one in each],
            *([_plain(one, name) for one in each] for name in ("ppl@1x", f"ppl@{far}")),
        ]
        lines.append([*name_cells(row, links or {}), *map(_joined, cells)])
    return pipe(heads, lines, 2)


def _multiple(value: float) -> str:
    return f"{value:g}×" if value > 1 else "–"


def _plain(row: Row, quantity: str) -> str:
    """Write a value without its interval, and the absence of one without its reason."""
    cell = measure(row, quantity)
    if cell.value is None:
        return "no value"
    text = write(replace(cell, interval=None), quantity)
    return IN_TWO_LINES if text == GUESSING else text


def _joined(texts: Sequence[str]) -> str:
    """Write what all seeds have once, and otherwise one after the other."""
    return texts[0] if len(set(texts)) == 1 else ", ".join(texts)
