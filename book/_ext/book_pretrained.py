"""Models that somebody else trained, under other encodings: the records of runs/pretrained.

| ```{pretrained-losses} pretrained    loss by length: the untouched model, and each outcome
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from book_directives import Made
from sphinx.application import Sphinx

from pe.pretrained.record import PretrainedRun
from pe.results.markdown import pipe

FILE = "pretrained.json"
UNTOUCHED = "untouched"
"""The outcome that all records of a model on the same text share."""


def table(records: Sequence[dict[str, Any]]) -> str:
    """Nats per token of the same tokens; differences to the untouched model in parentheses."""
    lengths = sorted({n for record in records for n in record["settings"]["lengths"]})
    lines: dict[tuple[str, ...], None] = {}  # the untouched model of two records is one line
    for record in records:
        own = _losses(record, UNTOUCHED, lengths)
        for name in record["outcomes"]:
            cells = []
            for before, loss in zip(own, _losses(record, name, lengths), strict=True):
                gap = "" if name == UNTOUCHED or before is None else f" ({loss - before:+.3f})"
                cells.append("–" if loss is None else f"{loss:.3f}{gap}")
            lines[record["settings"]["model"], _what(record, name), *cells] = None
    return pipe(
        ["model", "encoding", *(f"{n:,} tokens" for n in lengths)], list(map(list, lines)), 2
    )


def _losses(record: dict[str, Any], name: str, lengths: Sequence[int]) -> list[Any]:
    cells = record["outcomes"][name]["perplexity"]
    return [cells.get(str(n), {}).get("nll") for n in lengths]


def _what(record: dict[str, Any], name: str) -> str:
    if name == UNTOUCHED:
        return name
    s = record["settings"]
    options = "".join(f", {key} {value:g}" for key, value in sorted(s["options"].items()))
    return f"`{s['pe']}`{options}" + (f", {s['steps']:,} steps" if name == "trained" else "")


class PretrainedLosses(Made):
    """`table` of the complete records of a study."""

    def text(self) -> str:
        files = sorted((self.book.folder.parent / "runs").glob(f"{self.arguments[0]}/*/{FILE}"))
        for file in files:
            self.env.note_dependency(str(file))
        records = [PretrainedRun(file.parent).read() for file in files]
        done = [record for record in records if record and record["status"] == "complete"]
        return table(done) if done else "No model of somebody else is recorded yet."


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("pretrained-losses", PretrainedLosses)
