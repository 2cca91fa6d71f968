"""What came of extending a run without training: cells of extension.json by method and factor.

``factor`` is the option of that name, None for a method without one. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pe._errors import unknown
from pe.results.tables import label, significant


@dataclass(frozen=True)
class Extended:
    """One conversion and its perplexities by multiples of the training length."""

    name: str
    pe: str
    factor: float | None
    perplexity: Mapping[float, float | None]
    reasons: Mapping[float, str | None]


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


def searched(options: Mapping[str, Any]) -> bool:
    """Whether LongRoPE's factors were found for the model, and not taken from YaRN."""
    return options.get("long_factor") is not None


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
        reason = cells[name].reasons.get(multiple) or "not evaluated"
        raise ValueError(f"{name} has no perplexity at {multiple:g}x: {reason}")
    return found


def at_its_length(cells: list[Extended], multiple: float) -> list[Extended]:
    """Cells as one would use them: the factor is the multiple to be read, or there is none."""
    return [c for c in cells if c.factor in (None, multiple)]


def table(record: Mapping[str, Any], context_length: int, base: Mapping[float, float]) -> str:
    """A Markdown pipe table, one row a method and factor.

    Args:
        base: perplexity of the run itself by multiple, for the first row.
    """
    cells = extended(record, context_length)
    multiples = sorted(base)
    heads = ["method", "factor", *(f"{m:g}×" for m in multiples)]
    lines = [heads, [":--", *["--:"] * (len(heads) - 1)]]
    lines.append(["as trained", "–", *(significant(base[m]) for m in multiples)])
    for cell in cells:
        texts = []
        for multiple in multiples:
            found = cell.perplexity.get(multiple)
            text = "–" if found is None else significant(found)
            texts.append(f"**{text}**" if cell.factor == multiple else text)
        factor = "–" if cell.factor is None else f"{cell.factor:g}"
        lines.append([label(cell.pe), factor, *texts])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
