"""The two explorers: one of recorded results, one of the frequencies of rotary encodings.

| ```{explorer} results       lines and a table of any recorded study
| :picture: every-reach       shown instead where no script runs
| :alt: ...
| ```{explorer} encodings     what a rotary model saw in training, and what a longer text shows it

`book_explorer_data` makes the data of the first one. A run without a notebook gets a page of its
record (`book_record_pages`). The second one computes in the browser; tests compare its numbers with
those of the package.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import book_manners
from book_directives import Block, twins
from book_explorer_data import Pages, speed_sets, study_sets, write_sets
from book_mirror import write
from book_record_pages import record_page
from book_studies import Speeds, Studies
from docutils import nodes
from docutils.parsers.rst import directives
from matplotlib.figure import Figure

from pe._errors import unknown
from pe.figures.axes import LENGTHS, log_perplexity, numbers, powers_of_two
from pe.figures.style import FAINT, colour, marker, style
from pe.results import quantities
from pe.results.measure import measure
from pe.results.quantities import multiples
from pe.results.rows import Row, comparable

CODE = Path(__file__).resolve().parent / "explorers"
"""Scripts and styles; copied to the root of the site, where only the explorers load them."""
SITE = Path("_generated") / "site"
"""What is written at build time for the root of the site."""
SCRIPTS = {
    "results": ("chart.js", "data.js", "results.js"),
    "encodings": ("chart.js", "encodings.js"),
}


def prepare(studies: Studies, speeds: Speeds, book: Path) -> list[str]:
    """Write the data and the pages of records; return the folders that the site needs."""
    pages = Pages(book)
    sets = [*study_sets(studies, pages), *speed_sets(speeds)]
    kept = write_sets(sets, book / SITE / "explorer")
    for run in studies.complete():
        if not pages.notebook(run):
            path = book / SITE / pages.of(run)
            write(path, record_page(run, pages))
            kept.add(path)
    for path in [
        *(book / SITE / "explorer").rglob("*.js"),
        *(book / SITE / "runs").rglob("*.html"),
    ]:
        if path not in kept:
            path.unlink()
    first = next((one["name"] for one in sets if one["name"] in studies.runs), studies.reference)
    draw_card(list(studies.rows(first).values()), book / SITE / book_manners.CARD)
    return [str(CODE), str(book / SITE)]


def draw_card(rows: Sequence[Row], path: Path) -> None:
    """Draw the picture that sites show beside a link to the guide: 1,200 x 630 pixels."""
    shown = [row for row in comparable(rows) if measure(row, "ppl@1x").value is not None][:8]
    with style():
        figure = Figure(figsize=(12, 6.3), facecolor="white")
        axes = figure.add_axes((0.08, 0.13, 0.68, 0.6))
        at = [float(name[:-1]) for name in multiples([run for row in shown for run in row.runs])]
        for row in shown:
            values = numbers(measure(row, f"ppl@{one:g}x").value for one in at)
            axes.plot(at, values, color=colour(row.pe), marker=marker(row.pe), lw=3, ms=9,
                      label=row.title)  # fmt: skip
        if at:
            powers_of_two(axes, at)
            log_perplexity(axes, quantities.vocabulary(shown[0].runs[0]))
        axes.tick_params(labelsize=15)
        axes.set_xlabel(LENGTHS, fontsize=16)
        figure.legend(loc="center right", fontsize=17)
        figure.text(0.05, 0.87, "Positional encodings, trained and measured", fontsize=32)
        figure.text(0.05, 0.79, "perplexity of the same words behind longer and longer texts",
                    fontsize=18, color=FAINT)  # fmt: skip
        out = io.BytesIO()
        figure.savefig(out, format="png", dpi=100, metadata={"Software": None})
    write(path, out.getvalue())


def rotary_settings() -> dict[str, Any]:
    """Return what the explorer of encodings starts with: methods, sizes and colours."""
    from pe.encodings import about, extension_methods
    from pe.encodings.core.extension import extension_method

    methods = [{"name": "", "title": "RoPE as it is", "scaled": False, "paper": "2104.09864"}]
    for name in extension_methods():
        shown = about(name)
        scaled = extension_method(name).scaled
        methods.append(
            {"name": name, "title": shown.title, "scaled": scaled, "paper": shown.paper or ""}
        )
    start = {"theta": 10000, "dim": 64, "trained": 2048, "length": 8192, "method": "",
             "factor": 4, "window": 0}  # fmt: skip
    looks = {"before": colour("rope"), "after": colour("yarn")}
    return {"methods": methods, "start": start, "colours": looks}


class Explorer(Block):
    """One of the explorers, and a picture for readers without scripts."""

    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "picture": directives.unchanged_required,
        "alt": directives.unchanged_required,
    }

    def run(self) -> list[nodes.Node]:
        kind = self.arguments[0]
        if kind not in SCRIPTS:
            return self.warn(str(unknown("explorer", kind, SCRIPTS)))
        if "alt" not in self.options or "picture" not in self.options:
            return self.warn(f"the explorer {kind!r} needs :picture: and :alt:, for readers "
                             "without scripts")  # fmt: skip
        self.env.note_dependency(self.book.stamp)
        root = "../" * self.env.docname.count("/")
        settings = json.dumps(rotary_settings()) if kind == "encodings" else "{}"
        opening = (
            f'<link rel="stylesheet" href="{root}explorer/explorer.css">\n'
            f'<div class="pe-x" data-pe-explorer="{kind}" data-root="{root}">\n'
            f'<script type="application/json">{settings}</script>\n'
            "<noscript><p><em>This explorer needs scripts, which are off; a picture is in its "
            "place.</em></p></noscript>\n"
        )
        scripts = "".join(
            f'<script src="{root}explorer/{name}"></script>\n' for name in SCRIPTS[kind]
        )
        return [
            nodes.raw("", opening, format="html"),
            twins(self.options["picture"], self.options["alt"]),
            nodes.raw("", f"</div>\n{scripts}", format="html"),
        ]
