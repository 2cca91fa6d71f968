"""Models that somebody else trained, under other encodings: the records of runs/pretrained.

| ```{pretrained-losses} pretrained       loss by length: the untouched model, and each outcome
| ```{pretrained-found} pretrained        hidden numbers found, by length
| ```{pretrained-training} pretrained     what was trained on: loss, speed, memory
| ```{pretrained-picture} pretrained      curves of both, by length

``:corpus: NAME`` takes the records on one text, and ``:encodings: NAME NAME`` those of some
encodings. Where there is none, the page says so.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from book_directives import Made
from book_pictures import Figures
from docutils.parsers.rst import directives
from sphinx.application import Sphinx

from pe.encodings import list_encodings
from pe.figures import pretrained as figures
from pe.pretrained.record import PretrainedRun
from pe.results.markdown import pipe

FILE = "pretrained.json"
UNTOUCHED = "untouched"
"""The outcome that all records of a model on the same text share."""
CUT = "cut to its training length"
NONE = "No such record of a model that somebody else trained is here yet."
PICTURE = "pretrained-by-length"


def records_of(
    runs: Path, study: str, corpus: str = "", encodings: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Complete records of a study, by encoding and factor; what was trained on comes last."""
    read = [PretrainedRun(file.parent).read() for file in runs.glob(f"{study}/*/{FILE}")]
    done = [record for record in read if record and record["status"] == "complete"]
    chosen = [
        record
        for record in done
        if corpus in ("", record["settings"]["corpus"])
        and (not encodings or record["settings"]["pe"] in encodings)
    ]

    def order(record: dict[str, Any]) -> tuple[Any, ...]:
        s = record["settings"]
        return s["steps"], s["pe"], s["options"].get("factor", 0), record["run"]

    return sorted(chosen, key=order)


def table(records: Sequence[dict[str, Any]]) -> str:
    """Nats per token of the same tokens, and in parentheses what is above the cut line."""
    lengths = _lengths(records)
    lines: dict[tuple[str, ...], None] = {}  # the untouched model of two records is one line
    for record in records:
        line = dict(zip(record["settings"]["lengths"], figures.cut(record), strict=True))
        model = record["settings"]["model"]
        if _beyond(record):
            cells = [_number(line.get(n)) for n in lengths]
            lines[model, f"{UNTOUCHED}, {CUT}", *cells] = None
        for name in record["outcomes"]:
            cells = []
            for n, loss in zip(lengths, _losses(record, name, lengths), strict=True):
                base = line.get(n)
                gap = "" if base is None or base == loss else f" ({loss - base:+.3f})"
                cells.append("–" if loss is None else f"{loss:.3f}{gap}")
            lines[model, what(record, name), *cells] = None
    heads, rows = ["model", "encoding", *(f"{n:,}" for n in lengths)], list(map(list, lines))
    if len({row[0] for row in rows}) == 1:
        return pipe(heads[1:], [row[1:] for row in rows], 1)
    return pipe(heads, rows, 2)


def found(records: Sequence[dict[str, Any]]) -> str:
    """Share of prompts whose hidden numbers are all found, of each task, by length."""
    lengths = _lengths(records)
    lines: dict[tuple[str, ...], None] = {}
    for record in records:
        own = (record["outcomes"][UNTOUCHED].get("needles") or {"tasks": {}})["tasks"]
        for task in own if _beyond(record) else ():
            shown = figures.cut_found(record, task)
            line = dict(zip(record["settings"]["lengths"], shown, strict=True))
            lines[task, f"{UNTOUCHED}, {CUT}", *(_share(line.get(n)) for n in lengths)] = None
        for name, outcome in record["outcomes"].items():
            for task in (outcome.get("needles") or {"tasks": {}})["tasks"]:
                shares = dict(
                    zip(
                        record["settings"]["lengths"], figures.found(record, name, task),
                        strict=True,
                    )
                )  # fmt: skip
                cells = [_share(shares.get(n)) for n in lengths]
                lines[task, what(record, name), *cells] = None
    if not lines:
        return NONE
    ordered = sorted(lines, key=lambda line: line[0])
    return pipe(["task", "encoding", *(f"{n:,}" for n in lengths)], list(map(list, ordered)), 2)


def training(records: Sequence[dict[str, Any]]) -> str:
    """What was trained: rate, tokens, loss of the last steps, loss at the training length."""
    lines = []
    for record in records:
        speed = record.get("training_speed")
        if "trained" not in record["outcomes"] or speed is None:
            continue
        s, length = record["settings"], record["host"]["training_length"]
        cells = [_losses(record, v, [length])[0] for v in ("adapted", "trained")]
        rate, peak = speed["tokens_per_second"], speed["peak_memory_gib"]
        lines.append(
            [
                f"`{s['pe']}`", f"{s['learning_rate']:g}",
                f"{s['steps'] * s['batch_size'] * s['context_length'] / 1e6:,.0f} M",
                *("–" if loss is None else f"{loss:.3f}" for loss in cells),
                "–" if rate is None else f"{rate:,.0f}",
                "–" if peak is None else f"{peak:.0f}", record["hardware"]["name"],
            ]
        )  # fmt: skip
    if not lines:
        return NONE
    head = [
        "encoding", "peak rate", "tokens", "loss before", "loss after", "tokens per second",
        "peak memory, GiB", "on",
    ]  # fmt: skip
    return pipe(head, lines, 1)


def _beyond(record: dict[str, Any]) -> bool:
    """Whether a length is beyond that of the training, so that cutting means something."""
    beyond: bool = max(record["settings"]["lengths"]) > record["host"]["training_length"]
    return beyond


def _number(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.3f}"


def _share(value: float | None) -> str:
    return "–" if value is None or value != value else f"{value:.0%}"


def _lengths(records: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({n for record in records for n in record["settings"]["lengths"]})


def _losses(record: dict[str, Any], name: str, lengths: Sequence[int]) -> list[Any]:
    cells = record["outcomes"][name]["perplexity"]
    return [cells.get(str(n), {}).get("nll") for n in lengths]


def what(record: dict[str, Any], name: str) -> str:
    """An outcome in words: the encoding, its options, the steps that it was trained for."""
    if name == UNTOUCHED:
        return name
    s = record["settings"]
    options = "".join(f", {words}" for words in figures.in_words(s["options"]))
    trained = f", {s['steps']:,} steps at {s['learning_rate']:g}" if name == "trained" else ""
    return f"`{s['pe']}`{options}{trained}"


def _drawn_name(records: Sequence[dict[str, Any]]) -> str:
    """Another name for other records, so that the picture is drawn again."""
    text = json.dumps([record["outcomes"] for record in records], sort_keys=True)
    return f"{PICTURE}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def figures_of(runs: Path) -> Figures:
    """One picture for each study and text with several records, and one for each encoding in it."""
    made: Figures = {}
    for study in sorted({file.parent.parent.name for file in runs.glob(f"*/*/{FILE}")}):
        known = records_of(runs, study)
        for corpus in sorted({record["settings"]["corpus"] for record in known}):
            chosen = [record for record in known if record["settings"]["corpus"] == corpus]
            beyond = [record for record in chosen if _beyond(record)]
            names = sorted({record["settings"]["pe"] for record in beyond} & set(list_encodings()))
            groups = [[r for r in beyond if r["settings"]["pe"] == name] for name in names]
            for group in [*([chosen] if len(chosen) > 1 else []), *groups]:
                made[_drawn_name(group)] = ([], functools.partial(figures.several, group))
    return made


class Pretrained(Made):
    """What the complete records of a study say."""

    option_spec: ClassVar[dict[str, Any]] = {
        "corpus": directives.unchanged, "encodings": directives.unchanged,
    }  # fmt: skip
    shows = staticmethod(table)

    def records(self) -> list[dict[str, Any]]:
        """Those that the directive is about."""
        runs = self.book.folder.parent / "runs"
        for file in sorted(runs.glob(f"{self.arguments[0]}/*/{FILE}")):
            self.env.note_dependency(str(file))
        encodings = self.options.get("encodings", "").split()
        return records_of(runs, self.arguments[0], self.options.get("corpus", ""), encodings)

    def text(self) -> str:
        records = self.records()
        return self.shows(records) if records else NONE


class Found(Pretrained):
    """`found`."""

    shows = staticmethod(found)


class Training(Pretrained):
    """`training`."""

    shows = staticmethod(training)


class PretrainedPicture(Pretrained):
    """Curves by length; the content is the caption."""

    has_content = True

    def text(self) -> str:
        name = _drawn_name(self.records())
        if name not in self.book.figures:
            return NONE
        caption = "\n".join(self.content)
        alt = "Loss and hidden numbers found by length of the context; the tables have the numbers."
        return f"````{{picture}} {name}\n:alt: {alt}\n\n{caption}\n````"


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("pretrained-losses", Pretrained)
    app.add_directive("pretrained-found", Found)
    app.add_directive("pretrained-training", Training)
    app.add_directive("pretrained-picture", PretrainedPicture)
