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

from pe.results import rows as results
from pe.results.intervals import NO_DIFFERENCE
from pe.results.rows import Row, RunLike
from pe.results.tables import label, significant

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

    @property
    def pe(self) -> str:
        """Its encoding."""
        return str(self.row.runs[0].read()["pe"])


def fine_tuned(rows: Sequence[Row]) -> list[FineTuned]:
    """Those rows whose runs have all recorded all three, in their order."""
    found = []
    for row in rows:
        if recorded(row.runs):
            before, extended = (
                _mean([run.read()["conversion"][name] for run in row.runs])
                for name in ("before", "converted")
            )
            trained = _mean([(run.evaluation() or {})["perplexity"] for run in row.runs])
            title = label(row.runs[0].read()["pe"])
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
    """Two lines a method, without training and trained on, by tokens of context."""
    lengths = list(rows[0].trained)
    lines = [["method", "", *(f"{n:,}" for n in lengths)], [":--", ":--", *["--:"] * len(lengths)]]
    lines.append(["RoPE", "as it was", *(_write(rows[0].before[n]) for n in lengths)])
    for row in rows:
        page = pages.get(row.row.runs[0].name)
        name = f"[{row.title}]({page})" if page else row.title
        if row.row.label != CONTROL:  # whose change of encoding is none
            lines.append([name, "extended", *(_write(row.extended[n]) for n in lengths)])
            name = ""
        lines.append([name, "and trained on", *(f"**{_write(row.trained[n])}**" for n in lengths)])
    return _markdown(lines)


def against_control(rows: Sequence[FineTuned]) -> str:
    """By how much each differs from the control after training, at each length; the same windows.

    Raises:
        ValueError: the control is not among them.
    """
    control = next((row for row in rows if row.row.label == CONTROL), None)
    if control is None:
        raise ValueError(f"the control {CONTROL!r} is not recorded")
    lengths, length = list(rows[0].trained), windows(rows)
    lines = [["method", *(f"{n:,}" for n in lengths)], [":--", *["--:"] * len(lengths)]]
    for row in rows:
        if row is not control:
            cells = [_against(row.row, control.row, f"ppl@{n / length:g}x") for n in lengths]
            lines.append([row.title, *cells])
    return _markdown(lines)


def _against(row: Row, control: Row, quantity: str) -> str:
    """``−12%<br>−14 to −10``, or that no difference is shown."""
    found, gap = results.difference(row, control, quantity)
    if found == NO_DIFFERENCE:
        return "≈"
    middle, *ends = (100 * math.expm1(x) for x in (gap.value, gap.low, gap.high))
    low, high = (_signed(x) for x in ends)
    return f"{_signed(middle)}%<br>{low} to {high}"


def _signed(value: float) -> str:
    digits = 1 if abs(value) < 9.95 else 0
    return f"{value:+,.{digits}f}".replace("-", "−")


def retrieved(rows: Sequence[FineTuned], task: str) -> str:
    """The share of prompts answered exactly after training, by tokens of context."""
    lengths, length = list(rows[0].trained), windows(rows)
    lines = [["method", *(f"{n:,}" for n in lengths)], [":--", *["--:"] * len(lengths)]]
    for row in rows:
        names = [f"{task}@{n / length:g}x" for n in lengths]
        cells = [results.write(results.measure(row.row, name), name) for name in names]
        lines.append([row.title, *cells])
    return _markdown(lines)


def searches(records: Mapping[float, Mapping[str, Any]]) -> str:
    """What each search for LongRoPE's factors began with, found, and took."""
    heads = ["factor", "candidates", "YaRN's factors", "found", "seconds"]
    lines = [heads, ["--:"] * len(heads)]
    for factor, record in sorted(records.items()):
        first = next((e for e in record["history"] if e["origin"] == "yarn"), None)
        best = record["best"] or {}
        lines.append([
            f"{factor:g}", f"{len(record['history']):,}",
            _write(first["perplexity"] if first else None), _write(best.get("perplexity")),
            f"{record['seconds']:,.0f}",
        ])  # fmt: skip
    return _markdown(lines)


def _write(value: float | None) -> str:
    return "–" if value is None else significant(value)


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def recorded(runs: Sequence[RunLike]) -> bool:
    """Whether all of these runs began with one of another study, and all three are recorded."""
    return all(
        "/" in (run.read()["recipe"].get("start_from") or "")
        and run.read().get("conversion")
        and run.evaluation()
        for run in runs
    )
