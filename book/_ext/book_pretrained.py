"""Models that somebody else trained, under other encodings: the records of runs/pretrained.

| ```{pretrained-losses} pretrained       loss by length: the untouched model, and each outcome
| ```{pretrained-found} pretrained        hidden numbers found, by length
| ```{pretrained-training} pretrained     what was trained on: loss, speed, memory
| ```{pretrained-picture} pretrained      curves of both, by length

``:corpus: NAME`` takes the records on one text, ``:encodings: NAME NAME`` those of some encodings,
and ``:trained: yes`` or ``no`` those with or without training. ``:against:`` shows differences to
the untouched model that reads no more than its training length, with intervals. A loss above that
of guessing is written as such. Where there is no record, the page says so. A picture without a
caption has one that is made of its records.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from book_directives import Made
from book_pictures import Figures
from docutils.parsers.rst import directives

from pe.encodings import list_encodings
from pe.figures import pretrained as figures
from pe.pretrained.record import PretrainedRun
from pe.results import pretrained as results
from pe.results.difference import LEVEL
from pe.results.intervals import holm
from pe.results.markdown import gap_text, pipe
from pe.results.pretrained import UNTOUCHED, write_share
from pe.results.quantities import GUESSING, label

FILE = "pretrained.json"
CUT = "cut to its training length"
NONE = "No such record of a model that somebody else trained is here yet."
PICTURE = "pretrained-by-length"


def records_of(
    runs: Path,
    study: str,
    corpus: str = "",
    encodings: Sequence[str] = (),
    trained: bool | None = None,
) -> list[dict[str, Any]]:
    """Return the complete records of a study, by encoding and factor; trained models come last.

    Args:
        trained: True takes those with steps of training, False those without.
    """
    read = [PretrainedRun(file.parent).read() for file in runs.glob(f"{study}/*/{FILE}")]
    done = [record for record in read if record and record["status"] == "complete"]
    chosen = [
        record
        for record in done
        if corpus in ("", record["settings"]["corpus"])
        and (not encodings or record["settings"]["pe"] in encodings)
        and trained in (None, bool(record["settings"]["steps"]))
    ]

    def order(record: dict[str, Any]) -> tuple[Any, ...]:
        s = record["settings"]
        return s["steps"], s["pe"], s["options"].get("factor", 0), record["run"]

    return sorted(chosen, key=order)


def table(records: Sequence[dict[str, Any]], against: bool = False) -> str:
    """Write the loss of the same tokens by length, or the differences to the cut text.

    Args:
        against: differences, with Student's interval over the windows; bold where they hold after
            Holm's correction over the whole table.
    """
    lengths = _lengths(records)
    lines: dict[tuple[str, ...], None] = {}  # the untouched model of two records is one line
    gaps = {
        (record["run"], name, n): gap
        for record in records if against
        for name in record["outcomes"]
        for n, gap in zip(results.lengths(record), results.added(record, name), strict=True)
        if gap is not None
    }  # fmt: skip
    adjusted = holm([gap.p for gap in gaps.values() if gap.p is not None])
    bold = {key: p < LEVEL for key, p in zip(gaps, adjusted, strict=True)}
    for record in records:
        model = record["settings"]["model"]
        if results.beyond(record) and not against:
            line = dict(zip(results.lengths(record), results.cut(record), strict=True))
            cells = [_number(line.get(n), record) for n in lengths]
            lines[model, f"{UNTOUCHED}, {CUT}", *cells] = None
        for name in record["outcomes"]:
            if against and name == UNTOUCHED and not results.beyond(record):
                continue
            own = dict(zip(results.lengths(record), results.nll(record, name), strict=True))
            keys = [(record["run"], name, n) for n in lengths]
            cells = [_number(own.get(n), record) for n in lengths]
            if against:
                cells = [
                    cell if cell == GUESSING
                    else gap_text(gaps[key], bold[key]) if key in gaps
                    else "–"
                    for cell, key in zip(cells, keys, strict=True)
                ]  # fmt: skip
            lines[model, what(record, name), *cells] = None
    heads, rows = ["model", "encoding", *(f"{n:,}" for n in lengths)], list(map(list, lines))
    if len({row[0] for row in rows}) == 1:
        return pipe(heads[1:], [row[1:] for row in rows], 1)
    return pipe(heads, rows, 2)


def found(records: Sequence[dict[str, Any]], against: bool = False) -> str:
    """Write a table per task: the share of prompts answered, by length and beyond training.

    Args:
        against: differences to the cut text, in percentage points.
    """
    asked = dict.fromkeys(task for record in records for task in results.tasks(record))
    make = _found_more if against else _found
    texts = [f"*{task}*:\n\n{make(records, task)}" for task in asked]
    return "\n\n".join(texts) or NONE


def _found(records: Sequence[dict[str, Any]], task: str) -> str:
    lengths, lines = _lengths(records), {}
    far = any(map(results.beyond, records))
    for record in records:
        at = results.lengths(record)
        shares = {
            what(record, name): [
                *results.found(record, name, task), results.found_beyond(record, name, task),
            ]
            for name, outcome in record["outcomes"].items()
            if task in (outcome.get("needles") or {"tasks": {}})["tasks"]
        }  # fmt: skip
        if results.beyond(record):
            cut = [*results.cut_found(record, task), results.cut_found_beyond(record, task)]
            shares = {f"{UNTOUCHED}, {CUT}": cut} | shares
        for title, (*each, together) in shares.items():
            by = dict(zip(at, each, strict=True))
            cells = [write_share(by.get(n), "<br>") for n in lengths]
            lines[title, *cells, *([write_share(together, "<br>")] if far else [])] = None
    heads = ["encoding", *(f"{n:,}" for n in lengths), *(["all beyond training"] if far else [])]
    return pipe(heads, list(map(list, lines)))


def _found_more(records: Sequence[dict[str, Any]], task: str) -> str:
    lengths = sorted({n for record in records for n in results.beyond(record)})
    lines = {}
    for record in records:
        for name in record["outcomes"]:
            *each, together = results.more_than_cut(record, name, task)
            by = dict(zip(results.beyond(record), each, strict=True))
            gaps = [*(by.get(n) for n in lengths), together]
            if any(gaps):
                cells = [gap_text(gap) if gap else "–" for gap in gaps]
                lines[what(record, name), *cells] = None
    return pipe(["encoding", *(f"{n:,}" for n in lengths), "all of them"], list(map(list, lines)))


def training(records: Sequence[dict[str, Any]]) -> str:
    """Write a table of the training: rate, tokens, loss before and after, speed and memory."""
    lines = []
    for record in records:
        speed = record.get("training_speed")
        if "trained" not in record["outcomes"] or speed is None:
            continue
        s, length = record["settings"], record["host"]["training_length"]
        of_variants = [results.nll(record, v) for v in ("adapted", "trained")]
        losses = [dict(zip(s["lengths"], each, strict=True)).get(length) for each in of_variants]
        rate, peak = speed["tokens_per_second"], speed["peak_memory_gib"]
        lines.append(
            [
                f"`{s['pe']}`", f"{s['learning_rate']:g}",
                f"{s['steps'] * s['batch_size'] * s['context_length'] / 1e6:,.0f} M",
                *(_number(loss, record) for loss in losses),
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


def _number(loss: float | None, record: dict[str, Any]) -> str:
    """Write a loss in nats, or `GUESSING` if a uniform guess of each token has a lower loss."""
    if loss is None or math.isnan(loss):
        return "–"
    return GUESSING if loss > math.log(record["data"]["vocab_size"]) else f"{loss:.3f}"


def _lengths(records: Sequence[dict[str, Any]]) -> list[int]:
    return sorted({n for record in records for n in record["settings"]["lengths"]})


def what(record: dict[str, Any], name: str) -> str:
    """Describe an outcome: the encoding, its options, and the steps of training."""
    if name == UNTOUCHED:
        return name
    s = record["settings"]
    options = "".join(f", {words}" for words in figures.in_words(s["options"]))
    trained = f", {s['steps']:,} steps at {s['learning_rate']:g}" if name == "trained" else ""
    return f"`{s['pe']}`{options}{trained}"


def caption(records: Sequence[dict[str, Any]]) -> str:
    """Describe what `figures.several` draws of these records."""

    def each(values: Iterable[Any], between: str = " or ") -> str:
        return between.join(f"{x:,}" if isinstance(x, int) else x for x in dict.fromkeys(values))

    settings = [record["settings"] for record in records]
    model, windows, prompts = (
        each(s[key] for s in settings) for key in ("model", "windows", "prompts")
    )
    encodings = each((label(s["pe"]) for s in settings), ", ")
    length = each(results.trained_length(record) for record in records)
    further = any(s["steps"] for s in settings)
    asked = any(map(results.tasks, records))
    sentences = [
        f"`{model}` under {encodings}.",
        f"Others trained it on {length} tokens, and"
        f" {'filled markers are after more training' if further else 'nothing was trained here'}.",
        f"{'Left: loss' if asked else 'Loss'} of the same tokens by the length of the text, the"
        f" mean of {windows} windows.",
    ]
    if asked:
        sentences += [f"Right: hidden numbers found, of {prompts} prompts for each length."]
    if any(map(results.beyond, records)):
        sentences += [
            "Grey dashes: the untouched model that reads no more than its training length.",
            "A curve that leaves the picture at the top is more than"
            f" {figures.LOSS_ABOVE_CUT:g} nats above them.",
        ]
    return " ".join([*sentences, "{doc}`/pretrained` has all numbers."])


def _drawn_name(records: Sequence[dict[str, Any]]) -> str:
    """Return a name that is different for other records, so that the picture is drawn again."""
    text = json.dumps([record["outcomes"] for record in records], sort_keys=True)
    return f"{PICTURE}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def figures_of(runs: Path) -> Figures:
    """Return pictures of each study and text.

    There is one of all records, one of those with training, one of those without, and one for each
    encoding.
    """
    made: Figures = {}
    for study in sorted({file.parent.parent.name for file in runs.glob(f"*/*/{FILE}")}):
        known = records_of(runs, study)
        for corpus in sorted({record["settings"]["corpus"] for record in known}):
            chosen = [record for record in known if record["settings"]["corpus"] == corpus]
            beyond = [record for record in chosen if results.beyond(record)]
            names = sorted({record["settings"]["pe"] for record in beyond} & set(list_encodings()))
            groups = [[r for r in beyond if r["settings"]["pe"] == name] for name in names]
            sets = [[r for r in chosen if bool(r["settings"]["steps"]) is t] for t in (True, False)]
            for group in [*(s for s in [chosen, *sets] if len(s) > 1), *groups]:
                made[_drawn_name(group)] = ([], functools.partial(figures.several, group))
    return made


class Pretrained(Made):
    """What the complete records of a study say."""

    option_spec: ClassVar[dict[str, Any]] = {
        "corpus": directives.unchanged,
        "encodings": directives.unchanged,
        "trained": lambda word: directives.choice(word, ("yes", "no")) == "yes",
    }

    def records(self) -> list[dict[str, Any]]:
        """Return the records that the arguments and options choose."""
        runs = self.book.folder.parent / "runs"
        chosen = {key: self.options.get(key) for key in ("corpus", "encodings", "trained")}
        encodings = (chosen["encodings"] or "").split()
        return records_of(
            runs, self.arguments[0], chosen["corpus"] or "", encodings, chosen["trained"]
        )


class Losses(Pretrained):
    """`table`."""

    option_spec: ClassVar[dict[str, Any]] = Pretrained.option_spec | {"against": directives.flag}
    shows = staticmethod(table)

    def text(self) -> str:
        records = self.records()
        return self.shows(records, "against" in self.options) if records else NONE


class Found(Losses):
    """`found`."""

    shows = staticmethod(found)


class Training(Pretrained):
    """`training`."""

    def text(self) -> str:
        return training(self.records())


class PretrainedPicture(Pretrained):
    """Curves by length; the content is the caption, or else `caption` of the records."""

    has_content = True

    def text(self) -> str:
        records = self.records()
        name = _drawn_name(records)
        if name not in self.book.figures:
            return NONE
        words = "\n".join(self.content) or caption(records)
        if figures.whiskers(records):
            words += " The whiskers are Wilson's 95% intervals over the prompts."
        alt = "Loss and hidden numbers found by length of the context; the tables have the numbers."
        return f"````{{picture}} {name}\n:alt: {alt}\n\n{words}\n````"
