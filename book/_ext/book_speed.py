"""What the speed page shows, from the records of runs/speed/*/speed.json.

| ```{speed} machine            where and with what the record was made, or how to make one
| ```{speed} picture            throughput and memory by length, light and dark
| ```{speed} summary            encodings that cost about the same on one line
| ```{speed} overview train     encodings by lengths
| ```{speed} details train      everything about a mode, a tab a length
| ```{speed} family distance    what one family costs
| ```{speed} peers train      ours beside other libraries'
| ```{speed} drift | deterministic
| {speed-ratio}`pope train 16384`    its tokens a second over those of NoPE, in prose

Without a record the page says so, and the blocks that would show it say that nothing is measured.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from book_directives import Block, Book, least_width, made_of
from book_mirror import write
from book_studies import Speeds
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

from pe import figures, runs
from pe._errors import unknown
from pe.figures import speed as figures_speed
from pe.results.markdown import pipe
from pe.speed import record, tables
from pe.speed.names import library, members, title
from pe.speed.record import Speed, SpeedRun

log = logging.getLogger(__name__)
FOLDER = Path("_generated") / "speed"
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


def prepare(root: Path, book: Path) -> Speeds:
    """Read the records and draw the figure. RunError names a committed record that is damaged."""
    speeds = []
    for run in dict.fromkeys(run.directory for run in _all(root)):
        try:
            speeds.append(Speed(SpeedRun(run).read()))
        except runs.RunError as error:
            if run.is_relative_to(root):
                raise
            log.warning("a speed run of yours is left out: %s", error, type="pe", subtype="run")
    best = tables.best(speeds)
    code = [*Path(str(record.__file__)).parent.glob("*.py"), Path(__file__)]
    code.append(Path(str(figures_speed.__file__)))
    parts = [hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(code)]
    parts += [json.dumps(speed.record, sort_keys=True) for speed in speeds]
    write(book / FOLDER / "stamp", hashlib.sha256("".join(parts).encode()).hexdigest() + "\n")
    for twin in ("", "-dark"):
        target = book / FOLDER / f"training{twin}.svg"
        if best is None:
            target.unlink(missing_ok=True)
            continue
        with figures.style():
            light = figures.svg(figures_speed.training(best))
        write(target, figures.darken(light) if twin else light)
    return Speeds(speeds, best)


def _all(root: Path) -> list[SpeedRun]:
    return [*record.find(root / "runs"), *record.find(runs.root())]


class SpeedBlock(Block):
    """One part of the page; see the module."""

    required_arguments = 1
    optional_arguments = 1
    final_argument_whitespace = False
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(self.book.folder / FOLDER / "stamp"))
        part, *more = self.arguments
        makers = {
            "machine": self.machine, "picture": self.picture, "overview": self.overview,
            "summary": self.summary,
            "details": self.details, "family": self.family, "peers": self.peers,
            "drift": self.drift, "deterministic": self.deterministic,
        }  # fmt: skip
        if part not in makers:
            return self.warn(str(unknown("part", part, makers)))
        try:
            return makers[part](*more)
        except (TypeError, ValueError) as error:
            return self.warn(str(error))

    def table(self, text: str) -> list[nodes.Node]:
        """A table with its own box to scroll in."""
        return self.markdown(text, nodes.container(classes=["pe-results"]))

    def machine(self) -> list[nodes.Node]:
        best = self.book.speeds.best
        text = tables.machine(best) if best else ""
        return self.markdown(text if best and best.on_gpu else f"{MADE_BY}\n\n{text}")

    def picture(self) -> list[nodes.Node]:
        if self.book.speeds.best is None:
            return []
        figure = nodes.figure(align="center")
        least = least_width(self.book.folder / FOLDER / "training.svg")
        pair = nodes.container(classes=["pe-pair", least])
        for twin, shown in (("", "only-light"), ("-dark", "only-dark")):
            image = nodes.image(uri=f"/{FOLDER}/training{twin}.svg", alt=self.options["alt"])
            image["classes"] = [shown]
            pair += image
        figure += pair
        run = self.book.speeds.best.record
        text = "\n".join(self.content)
        caption, *_ = self.markdown(text)
        figure += nodes.caption(text, "", *caption.children)
        figure[-1] += made_of(f"Record: {run['study']}/{run['run']}")
        return [figure]

    def summary(self) -> list[nodes.Node]:
        text = summary(self.book.speeds.best) if self.book.speeds.best else ""
        return self.table(text) if text else self.markdown(NOTHING)

    def overview(self, mode: str) -> list[nodes.Node]:
        best = self.book.speeds.best
        if best is None or not tables.known_lengths(best, _mode(mode)):
            return self.markdown(NOTHING)
        return self.table(tables.overview(best, mode))

    def details(self, mode: str) -> list[nodes.Node]:
        best = self.book.speeds.best
        if best is None or not tables.known_lengths(best, _mode(mode)):
            return self.markdown(NOTHING)
        tabs = [
            f"````{{tab-item}} {length:,} tokens\n"
            f"```{{container}} pe-results\n{tables.details(best, mode, length)}\n```\n````"
            for length in tables.known_lengths(best, mode)
        ]
        return self.markdown("`````{tab-set}\n" + "\n".join(tabs) + "\n`````")

    def family(self, name: str) -> list[nodes.Node]:
        asked = members(name)
        text = tables.costs(self.book.speeds.best, asked) if self.book.speeds.best else ""
        return self.table(text) if text else self.markdown(NOTHING)

    def peers(self, mode: str = "train") -> list[nodes.Node]:
        """Of the record that the page shows, or else of the newest one that has peers."""
        best = self.book.speeds.best
        there = [speed for speed in self.book.speeds.all if tables.peers(speed, mode)]
        shown = best if best in there else tables.best(there)
        if shown is None:
            return self.markdown(NOTHING)
        table = self.table(tables.peers(shown, mode))
        if shown is best:
            return table
        return [*self.markdown(f"*Of an earlier run:* {tables.machine(shown)}"), *table]

    def deterministic(self) -> list[nodes.Node]:
        text = tables.deterministic(self.book.speeds.all)
        return self.table(text) if text else self.markdown(NOTHING)

    def drift(self) -> list[nodes.Node]:
        text = tables.drift(self.book.speeds.best) if self.book.speeds.best else ""
        return self.table(text) if text else self.markdown(NOTHING)


def summary(speed: Speed) -> str:
    """Our encodings by what they cost, the fastest on long texts first; "" without two lengths.

    Those whose numbers all differ from another's by less than `SAME_WITHIN` share its line, which
    gives the least and the most of them.
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
    there = [form.format(value) for value in values if value is not None]
    if not there:
        return "–"
    return (
        min(there, key=float)
        if len({*there}) == 1
        else "–".join((min(there, key=float), max(there, key=float)))
    )


class SpeedRatio(SphinxRole):
    """{speed-ratio}`SYSTEM MODE LENGTH`: tokens a second over those of NoPE."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book = Book.of(self.env)
        self.env.note_dependency(str(book.folder / FOLDER / "stamp"))
        try:
            return [nodes.Text(ratio(book.speeds.best, self.text))], []
        except ValueError as error:
            log.warning("speed-ratio: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []


def ratio(best: Speed | None, text: str) -> str:
    """What the role writes; ValueError says what the record lacks."""
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


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("speed", SpeedBlock)
    app.add_role("speed-ratio", SpeedRatio())
