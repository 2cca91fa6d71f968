"""Runs that began with another study's run, extended: before, without training, and trained on.

A run records what its change of encoding did by itself (``conversion`` in run.json): the weights it
began with under their own encoding, and under its own before the first step. Its evaluation is the
third of three rows that score the same targets. Imports no torch.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pe.results import quantities
from pe.results.markdown import pipe
from pe.results.quantities import RunLike, label
from pe.results.rows import Row, measure

CONTROL = "rope"
"""The row that got longer windows and no other frequencies."""


@dataclass(frozen=True)
class FineTuned:
    """Perplexities of a row by tokens of context; means over seeds are geometric."""

    row: Row
    title: str
    before: Mapping[int, float | None]
    extended: Mapping[int, float | None]
    trained: Mapping[int, float | None]


def fine_tuned(rows: Sequence[Row]) -> list[FineTuned]:
    """Those rows whose runs have all recorded all three, in their order."""
    found = []
    for row in rows:
        if recorded(row.runs):
            before, extended = (
                _mean([run.read()["conversion"][name] for run in row.runs])
                for name in ("before", "converted")
            )
            length = row.runs[0].read()["recipe"]["context_length"]
            trained = {n: measure(row, f"ppl@{n / length:g}x").value for n in before}
            title = label(row.pe)
            title += " (control)" if row.label == CONTROL else ""
            found.append(FineTuned(row, title, before, extended, trained))
    return found


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[int, float | None]:
    found: dict[int, float | None] = {}
    for at in cells[0]:
        losses = [seed[at]["nll"] for seed in cells]
        lost = any(loss is None for loss in losses)
        found[int(at)] = None if lost else math.exp(statistics.fmean(losses))
    return dict(sorted(found.items()))


def windows(rows: Sequence[FineTuned]) -> int:
    """Tokens of the windows they were trained on."""
    return int(rows[0].row.runs[0].read()["recipe"]["context_length"])


def table(rows: Sequence[FineTuned], pages: Mapping[str, str]) -> str:
    """Two lines per method, without training and trained on, by tokens of context."""
    lengths = list(rows[0].trained)
    heads = ["method", "", *(f"{n:,}" for n in lengths)]
    limit = quantities.vocabulary(rows[0].row.runs[0])

    def texts(values: Mapping[int, float | None]) -> list[str]:
        return ["–" if v is None else quantities.perplexity(v, limit) for v in values.values()]

    before, first = rows[0].before, min(rows[0].before)
    lines = [
        ["RoPE", "as it was", *texts(before)],
        ["", f"cut to {first:,} tokens", *texts(dict.fromkeys(before, before[first]))],
    ]
    for row in rows:
        page = pages.get(row.row.runs[0].name)
        name = f"[{row.title}]({page})" if page else row.title
        if row.row.label != CONTROL:  # whose change of encoding is none
            lines.append([name, "extended", *texts(row.extended)])
            name = ""
        lines.append([name, "and trained on", *texts(row.trained)])
    return pipe(heads, lines, 2)


def searches(records: Mapping[float, Mapping[str, Any]]) -> str:
    """What each search for LongRoPE's factors began with, found, and took."""
    heads = ["factor", "candidates", "YaRN's factors", "found", "seconds"]
    lines = []
    for factor, record in sorted(records.items()):
        first = next((e for e in record["history"] if e["origin"] == "yarn"), None)
        shown = [(first or {}).get("perplexity"), (record["best"] or {}).get("perplexity")]
        texts = ["–" if value is None else quantities.significant(value) for value in shown]
        candidates, seconds = f"{len(record['history']):,}", f"{record['seconds']:,.0f}"
        lines.append([f"{factor:g}", candidates, *texts, seconds])
    return pipe(heads, lines, 0)


def recorded(runs: Sequence[RunLike]) -> bool:
    """Whether all of these runs began with one of another study, and all three are recorded."""
    return all(
        "/" in (run.read()["recipe"].get("start_from") or "")
        and run.read().get("conversion")
        and run.evaluation()
        for run in runs
    )
