"""Results of extending a run without training: the cells of extension.json by method and factor.

``factor`` is a number, `LENGTH` where it equals each length, None for a method without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pe._errors import unknown
from pe.evaluation.factors import LENGTH, Factor
from pe.results import quantities
from pe.results.markdown import CROPPED, pipe
from pe.results.quantities import NOT_EVALUATED, RunLike, label
from pe.results.rows import Row

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Extended:
    """One conversion and its perplexities by multiples of the training length."""

    name: str
    method: str
    """One of `pe.encodings.extension_methods`."""
    pe: str
    factor: Factor | None
    perplexity: Mapping[float, float | None]
    reasons: Mapping[float, str | None]

    @property
    def title(self) -> str:
        """``YaRN, factor 4``, ``YaRN, factor = length``, ``Dynamic YaRN``."""
        if self.factor is None:
            return label(self.method)
        how = "= length" if self.factor == LENGTH else f"{self.factor:g}"
        return f"{label(self.method)}, factor {how}"


@dataclass(frozen=True)
class ExtendedRun:
    """A run whose evaluation is one cell, so that tables and figures of runs can show the cell."""

    run: RunLike
    record: Mapping[str, Any]
    """Its extension.json."""
    cell: str

    @property
    def name(self) -> str:
        """The name of the run, whose page shows where the weights come from."""
        return self.run.name

    @property
    def study(self) -> str:
        """The study of the run."""
        return self.run.study

    def read(self) -> dict[str, Any]:
        """Return the run's record, with the encoding that the cell put on it."""
        return self.run.read() | {"pe": self.record["cells"][self.cell]["pe"]}

    def metrics(self) -> pd.DataFrame:
        """Return the metrics of the run's training."""
        return self.run.metrics()

    def evaluation(self) -> dict[str, Any]:
        """Return the cell in the form of evaluation.json."""
        about = {name: value for name, value in self.record.items() if name != "cells"}
        return {**about, **self.record["cells"][self.cell]}


def rows(base: Row, records: Mapping[str, Mapping[str, Any] | None]) -> list[Row]:
    """Return ``base`` and its cells as rows, so that they are compared like any others.

    Args:
        base: a trained row. records: extension.json of its runs, by name; None where there is none.
            A cell is a row with the seeds that have it.
    """
    length = quantities.trained_length(base.runs)
    extended_rows: dict[str, Row] = {}
    for run in base.runs:
        record = records.get(run.name)
        for cell in extended(record, length) if record else ():
            one = ExtendedRun(run, record or {}, cell.name)
            row = extended_rows.setdefault(cell.name, Row(cell.name, cell.title, base.pe, ()))
            extended_rows[cell.name] = Row(row.label, row.title, row.origin, (*row.runs, one))
    return [base, *extended_rows.values()]


def trained(run: RunLike) -> dict[float, float]:
    """Return perplexities of the run itself, by multiples of the training length."""
    length = run.read()["recipe"]["context_length"]
    cells = (run.evaluation() or {"perplexity": {}})["perplexity"]
    return {int(at) / length: cell["value"] for at, cell in cells.items()}


def extended(record: Mapping[str, Any], context_length: int) -> list[Extended]:
    """Return all cells: methods in the order of `pe.encodings.in_order`, factors ascending."""
    from pe.encodings import in_order

    cells = []
    for name, cell in record["cells"].items():
        by = {int(at) / context_length: entry for at, entry in cell["perplexity"].items()}
        values = {multiple: entry["value"] for multiple, entry in sorted(by.items())}
        reasons = {multiple: entry["reason"] for multiple, entry in sorted(by.items())}
        method, _, at = name.rpartition("@")
        factor: Factor | None = LENGTH if at == LENGTH else float(at)
        if factor == 1 and "factor" not in cell["options"]:  # the method has no factor
            factor = None
        cells.append(Extended(name, method, cell["pe"], factor, values, reasons))
    order = in_order(cell.method for cell in cells)

    def place(cell: Extended) -> tuple[int, float]:
        return order.index(cell.method), 0.0 if cell.factor in (None, LENGTH) else cell.factor

    return sorted(cells, key=place)


def missing(record: Mapping[str, Any]) -> list[str]:
    """Return the methods of which the record has no cell."""
    from pe.encodings import extension_methods

    there = {name.rpartition("@")[0] for name in record["cells"]}
    return [name for name in extension_methods() if name not in there]


def value(record: Mapping[str, Any], context_length: int, name: str, multiple: float) -> float:
    """Return the perplexity of a cell such as ``yarn@4``.

    Raises ValueError for a cell or a length that is not there.
    """
    cells = {cell.name: cell for cell in extended(record, context_length)}
    if name not in cells:
        raise unknown("extension", name, cells)
    perplexity = cells[name].perplexity.get(multiple)
    if perplexity is None:
        reason = cells[name].reasons.get(multiple) or NOT_EVALUATED
        raise ValueError(f"{name} has no perplexity at {multiple:g}x: {reason}")
    return perplexity


def table(run: RunLike, record: Mapping[str, Any]) -> str:
    """Write a pipe table of one run and its extension.json, a line per method and factor."""
    base, limit = trained(run), quantities.vocabulary(run)
    cells = extended(record, run.read()["recipe"]["context_length"])
    multiples = sorted(base)

    def line(title: str, factor: Factor | None, values: Mapping[float, float | None]) -> list[str]:
        texts = [quantities.perplexity(values.get(m), limit) for m in multiples]
        shown = "–" if factor is None else "= length" if factor == LENGTH else f"{factor:g}"
        return [title, shown, *texts]

    lines = [
        line("as trained", None, base),
        line(CROPPED, None, {m: base.get(min(m, 1.0)) for m in multiples}),
        *(line(label(c.method), c.factor, c.perplexity) for c in cells),
    ]
    return pipe(["method", "factor", *(f"{m:g}×" for m in multiples)], lines)
