"""What the speed page shows, from the records of runs/speed/*/speed.json.

| ```{speed} machine            the machine and the settings of the record, or how to make one
| ```{speed} picture            throughput and memory by length
| ```{speed} summary            encodings that cost about the same on one line
| ```{speed} overview train     encodings by lengths
| ```{speed} details train      everything about a mode, a tab per length
| ```{speed} family distance    what the encodings of a family cost
| ```{speed} peers train        ours beside other libraries'
| ```{speed} windows            what encodings cost in a window, of the newest GPU's record of that
| ```{speed} drift | deterministic
| {speed-ratio}`pope train 16384`    its tokens per second over those of NoPE, in prose

Without a record the page says so, and the blocks that would show it say that nothing is measured.
Only ``windows`` is empty then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from book_directives import Book, Made, narrow
from book_pictures import Figures
from book_studies import Speeds
from docutils.parsers.rst import directives
from sphinx.util import logging

from pe import runs
from pe._errors import unknown
from pe.encodings.core.spec import part_names
from pe.figures import speed as figures_speed
from pe.results.markdown import pipe
from pe.speed import record, tables
from pe.speed.names import library, members, spelled, title
from pe.speed.record import Speed

log = logging.getLogger(__name__)
PICTURE = "speed-training"
NOTHING = "*Not measured yet.*"
SAME_WITHIN = 0.05
"""Encodings share a line of the summary if their numbers differ by no more."""
LONG = 16384
"""Tokens per window of the summary's long texts, where the record has them."""
MADE_BY = f"""\
```{{admonition}} No GPU has been measured yet
:class: note
There is no record of a GPU in `runs/speed/`. One command makes it, in as many minutes as it is
given; what follows then fills itself.
```

```bash
{tables.COMMAND}
```
"""


def load(root: Path) -> Speeds:
    """Read the committed records of speed and the reader's own.

    Raises:
        RunError: a committed record is damaged.
    """
    found = [*record.find(root / "runs"), *record.find(runs.root())]
    speeds: dict[Path, Speed] = {}
    for run in {run.file: run for run in found}.values():
        try:
            speeds[run.file] = Speed(run.read())
        except runs.RunError as error:
            if run.directory.is_relative_to(root):
                raise
            log.warning("a speed run of yours is left out: %s", error, type="pe", subtype="run")
    return Speeds(list(speeds.values()), tables.best(list(speeds.values())), list(speeds))


def figures_of(speeds: Speeds) -> Figures:
    """Return the figure of the record that pages show; none without a record."""
    if speeds.best is None:
        return {}
    file = speeds.files[speeds.all.index(speeds.best)]
    return {PICTURE: ([file], functools.partial(figures_speed.training, speeds.best))}


class SpeedBlock(Made):
    """One part of the page; see the module."""

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required}
    classes: ClassVar[list[str]] = []

    def text(self) -> str:
        part, word = self.arguments[0], "".join(self.arguments[1:])
        if part not in PARTS:
            raise unknown("part", part, PARTS)
        if bool(word) != bool(PARTS[part]):
            raise ValueError(f"speed {part}: expected {PARTS[part] or 'no word'} after it, got "
                             f"{word or 'nothing'}")  # fmt: skip
        mode = _mode(word) if PARTS[part] == MODE else ""
        family = members(word) if part == "family" else []
        best = self.book.speeds.best
        if part == "machine":
            machine = tables.machine(best) if best else ""
            return machine if best and best.on_gpu else f"{MADE_BY}\n\n{machine}"
        if best is None:
            return "" if part in ("picture", "windows") else NOTHING
        if part == "picture":
            caption = "\n".join(self.content)
            alt = f":alt: {self.options['alt']}\n" if "alt" in self.options else ""
            return f"````{{picture}} {PICTURE}\n{alt}\n{caption}\n````"
        if part == "windows":
            return in_windows(self.book.speeds.all)
        if part == "details":
            return details(best, mode)
        if part == "peers":
            return self.peers(best, mode)
        table = {
            "summary": lambda: summary(best),
            "overview": lambda: tables.known_lengths(best, mode) and tables.overview(best, mode),
            "family": lambda: tables.costs(best, family),
            "deterministic": lambda: tables.deterministic(self.book.speeds.all),
            "drift": lambda: tables.drift(best),
        }[part]()
        return narrow(table) if table else NOTHING

    def peers(self, best: Speed, mode: str) -> str:
        """Write the table of other libraries, from the newest record if ``best`` has none."""
        there = [speed for speed in self.book.speeds.all if tables.peers(speed, mode)]
        shown = best if best in there else tables.best(there)
        if shown is None:
            return NOTHING
        earlier = "" if shown is best else f"*Of an earlier run:* {tables.machine(shown)}\n\n"
        return earlier + narrow(tables.peers(shown, mode))


MODE = "a mode such as train"
PARTS = {
    "machine": "", "picture": "", "summary": "", "overview": MODE, "details": MODE,
    "windows": "", "family": "the name of a family", "peers": MODE, "drift": "",
    "deterministic": "",
}  # fmt: skip
"""The parts of the page, and what stands after each."""


def details(speed: Speed, mode: str) -> str:
    """Write everything about a mode, a tab per length."""
    tabs = [
        f"`````{{tab-item}} {n:,} tokens\n{narrow(tables.details(speed, mode, n))}\n`````"
        for n in tables.known_lengths(speed, mode)
    ]
    return "\n".join(["``````{tab-set}", *tabs, "``````"]) if tabs else NOTHING


def in_windows(speeds: Sequence[Speed]) -> str:
    """Write what training costs in a window, from the newest GPU's record that has one, or "".

    The fastest at the longest length comes first, after NoPE.
    """
    made = [
        speed
        for speed in speeds
        if speed.on_gpu
        and any("window" in part_names(spelled(system)[0]) for system in _ours(speed))
    ]
    if not made:
        return ""
    newest = max(made, key=lambda speed: str(speed.record["sessions"][0]["created"]))
    length = newest.lengths("train")[-1]

    def speed_over_nope(system: str) -> float:
        return math.inf if system == "nope" else newest.ratio(system, "train", length) or 0.0

    ordered = sorted(_ours(newest), key=speed_over_nope, reverse=True)
    return narrow(tables.costs(newest, ordered)) + "\n\n" + tables.machine(newest)


def _ours(speed: Speed) -> list[str]:
    return [system for system in speed.systems("train") if not library(system)]


def summary(speed: Speed) -> str:
    """Write a table of our encodings, the fastest on long texts first; "" without two lengths.

    An encoding shares the line of another if none of their numbers differ by more than
    `SAME_WITHIN`. The line then has the least and the largest number.
    """
    lengths = speed.lengths("train")
    if len(lengths) < 2:
        return ""
    short, long = lengths[0], next((n for n in reversed(lengths) if n <= LONG), lengths[-1])
    groups: list[list[tuple[str, list[float | None]]]] = []
    for system in tables.shown(speed, "train"):
        if library(system):
            continue
        costs = [
            _over_nope(speed, system, "train", short),
            _over_nope(speed, system, "train", long),
            _over_nope(speed, system, "prefill", long),
            speed.result(system, "train", long)["peak_memory_gib"],
        ]
        group = next((g for g in groups if _close(costs, g[0][1])), None)
        if group is None:
            groups.append(group := [])
        group.append((system, costs))
    groups.sort(key=lambda group: -(group[0][1][1] or 0.0))
    heads = [
        "encoding", f"training, {short:,} tokens", f"training, {long:,} tokens",
        f"prompt, {long:,} tokens", f"GiB, training, {long:,} tokens",
    ]  # fmt: skip
    lines = []
    for group in groups:
        columns = list(zip(*(costs for _, costs in group), strict=True))
        cells = [_range(column, "{:.2f}") for column in columns[:-1]]
        names = "; ".join(title(system) for system, _ in group)
        lines.append([names, *cells, _range(columns[-1], "{:.1f}")])
    return pipe(heads, lines, 1)


def _over_nope(speed: Speed, system: str, mode: str, length: int) -> float | None:
    if length not in speed.lengths(mode) or system not in speed.systems(mode):
        return None
    return 1.0 if system == "nope" else speed.ratio(system, mode, length)


def _close(costs: Sequence[float | None], others: Sequence[float | None]) -> bool:
    pairs = zip(costs, others, strict=True)
    return all(
        a == b if a is None or b is None else abs(a / b - 1) <= SAME_WITHIN for a, b in pairs
    )


def _range(values: Sequence[float | None], form: str) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    return "–".join(dict.fromkeys(form.format(end) for end in (min(known), max(known))))


def ratio_of_book(book: Book, text: str) -> str:
    """Return `ratio` of the record that pages show."""
    return ratio(book.speeds.best, text)


def ratio(best: Speed | None, text: str) -> str:
    """Return tokens per second over those of NoPE; a dash without a record.

    Args:
        text: SYSTEM MODE LENGTH, such as ``pope train 1024``.

    Raises:
        ValueError: the text is not of that form, or the record does not have it.
    """
    words = text.split()
    if len(words) != 3 or not words[2].isdigit():
        raise ValueError(f"expected SYSTEM MODE LENGTH such as 'pope train 1024', got {text!r}")
    system, mode, length = words[0], _mode(words[1]), int(words[2])
    if best is None:
        return "–"
    known = tables.shown(best, mode)
    if system not in known:
        raise unknown("encoding of the speed record", system, known)
    found = best.ratio(system, mode, length)
    if found is None:
        raise ValueError(f"the record has no ratio of {system} in {mode} at {length} tokens")
    return f"{found:.2f}"


def _mode(name: str) -> str:
    if name not in tables.MODES:
        raise unknown("mode", name, tables.MODES)
    return name
