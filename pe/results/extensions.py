"""What came of extending a run without training: cells of extension.json by method and factor.

``factor`` is the option of that name, None for a method without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pe._errors import unknown
from pe.results import quantities
from pe.results.markdown import CROPPED, pipe
from pe.results.quantities import NOT_EVALUATED, RunLike, label


@dataclass(frozen=True)
class Extended:
    """One conversion and its perplexities by multiples of the training length."""

    name: str
    pe: str
    factor: float | None
    perplexity: Mapping[float, float | None]
    reasons: Mapping[float, str | None]


def trained(run: RunLike) -> dict[float, float]:
    """Perplexities of the run itself, by multiples of the training length."""
    length = run.read()["recipe"]["context_length"]
    cells = (run.evaluation() or {"perplexity": {}})["perplexity"]
    return {int(at) / length: cell["value"] for at, cell in cells.items()}


def extended(record: Mapping[str, Any], context_length: int) -> list[Extended]:
    """All cells, methods in the order of `pe.encodings.in_order`, factors ascending."""
    from pe.encodings import in_order

    found = []
    for name, cell in record["cells"].items():
        by = {int(at) / context_length: entry for at, entry in cell["perplexity"].items()}
        values = {multiple: entry["value"] for multiple, entry in sorted(by.items())}
        reasons = {multiple: entry["reason"] for multiple, entry in sorted(by.items())}
        found.append(Extended(name, cell["pe"], cell["options"].get("factor"), values, reasons))
    order = in_order(cell.pe for cell in found)
    return sorted(found, key=lambda c: (order.index(c.pe), c.factor or 0))


def missing(record: Mapping[str, Any]) -> list[str]:
    """Methods that the record holds no cell of."""
    from pe.encodings import extension_methods

    there = {cell["pe"] for cell in record["cells"].values()}
    return [name for name in extension_methods() if name not in there]


def value(record: Mapping[str, Any], context_length: int, name: str, multiple: float) -> float:
    """Perplexity of a cell such as ``yarn@4``.

    Raises ValueError for a cell or a length that is not there.
    """
    cells = {cell.name: cell for cell in extended(record, context_length)}
    if name not in cells:
        raise unknown("extension", name, cells)
    found = cells[name].perplexity.get(multiple)
    if found is None:
        reason = cells[name].reasons.get(multiple) or NOT_EVALUATED
        raise ValueError(f"{name} has no perplexity at {multiple:g}x: {reason}")
    return found


def table(run: RunLike, record: Mapping[str, Any]) -> str:
    """A pipe table, a line for each method and factor, of one run and its extension.json."""
    base, limit = trained(run), quantities.vocabulary(run)
    cells = extended(record, run.read()["recipe"]["context_length"])
    multiples = sorted(base)

    def line(title: str, factor: float | None, values: Mapping[float, float | None]) -> list[str]:
        found = [values.get(m) for m in multiples]
        texts = ["–" if v is None else quantities.perplexity(v, limit) for v in found]
        return [title, "–" if factor is None else f"{factor:g}", *texts]

    lines = [
        line("as trained", None, base),
        line(CROPPED, None, {m: base.get(min(m, 1.0)) for m in multiples}),
        *(line(label(c.pe), c.factor, c.perplexity) for c in cells),
    ]
    return pipe(["method", "factor", *(f"{m:g}×" for m in multiples)], lines)
