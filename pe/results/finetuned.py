"""Runs that extend another study's run: before the change, after it, and after more training.

``conversion`` in run.json has the perplexities of the weights that a run began with, under their
old encoding and under the new one before the first step. The evaluation of the run is the third
measurement. All three score the same targets. Imports no torch.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pe.results import quantities
from pe.results.markdown import linked, pipe
from pe.results.measure import measure
from pe.results.quantities import label
from pe.results.rows import Row

CONTROL = "rope"
"""The row that was trained further on longer windows, with its frequencies unchanged."""


@dataclass(frozen=True)
class FineTuned:
    """Perplexities of a row by tokens of context; means over seeds are geometric."""

    row: Row
    title: str
    before: Mapping[int, float | None]
    extended: Mapping[int, float | None]
    trained: Mapping[int, float | None]


def fine_tuned(rows: Sequence[Row]) -> list[FineTuned]:
    """Return the rows whose runs have recorded all three, in their order."""
    complete = []
    for row in rows:
        records = [run.read() for run in row.runs]
        elsewhere = ["/" in (record["recipe"].get("start_from") or "") for record in records]
        if all(elsewhere) and all(record.get("conversion") for record in records):
            before = _mean([record["conversion"]["before"] for record in records])
            extended = _mean([record["conversion"]["converted"] for record in records])
            length = quantities.trained_length(row.runs)
            trained = {n: measure(row, f"ppl@{n / length:g}x").value for n in before}
            title = label(row.pe)
            if row.pe == row.origin:  # only the base or the length of windows changed
                title += " (control)" if row.label == CONTROL else f" ({row.label})"
            complete.append(FineTuned(row, title, before, extended, trained))
    titles = [one.title for one in complete]
    return [
        replace(one, title=f"{one.title} ({one.row.label})") if titles.count(one.title) > 1 else one
        for one in complete
    ]


def _mean(cells: Sequence[Mapping[str, Any]]) -> dict[int, float | None]:
    perplexities: dict[int, float | None] = {}
    for at in cells[0]:
        values = [seed[at]["value"] for seed in cells]
        perplexities[int(at)] = None if None in values else statistics.geometric_mean(values)
    return dict(sorted(perplexities.items()))


def table(rows: Sequence[FineTuned], pages: Mapping[str, str]) -> str:
    """Write two lines per method, without training and with training, by tokens of context."""
    lengths = list(rows[0].trained)
    heads = ["method", "", *(f"{n:,}" for n in lengths)]
    limit = quantities.vocabulary(rows[0].row.runs[0])

    def texts(values: Mapping[int, float | None]) -> list[str]:
        return [quantities.perplexity(value, limit) for value in values.values()]

    before, first = rows[0].before, min(rows[0].before)
    lines = [
        ["RoPE", "as it was", *texts(before)],
        ["", f"cut to {first:,} tokens", *texts(dict.fromkeys(before, before[first]))],
    ]
    for row in rows:
        name = linked(row.title, pages.get(row.row.runs[0].name))
        if row.row.label != CONTROL:  # its encoding did not change
            lines.append([name, "extended", *texts(row.extended)])
            name = ""
        lines.append([name, "and trained on", *texts(row.trained)])
    return pipe(heads, lines, 2)


def searches(records: Mapping[float, Mapping[str, Any]]) -> str:
    """Write a table of the searches for LongRoPE's factors: start, result and time of each."""
    heads = ["factor", "candidates", "YaRN's factors", "found", "seconds"]
    lines = []
    for factor, record in sorted(records.items()):
        first = next((e for e in record["history"] if e["origin"] == "yarn"), None)
        shown = [(first or {}).get("perplexity"), (record["best"] or {}).get("perplexity")]
        texts = ["–" if value is None else quantities.significant(value) for value in shown]
        candidates, seconds = f"{len(record['history']):,}", f"{record['seconds']:,.0f}"
        lines.append([f"{factor:g}", candidates, *texts, seconds])
    return pipe(heads, lines, 0)
