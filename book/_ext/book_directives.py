"""Roles and directives by which pages read records. A key that does not exist is a warning.

| {record}`pope.ppl@4x`      a number (book_numbers); {record-code} sets it as code
| ```{results} demo          a study's table, links to its run pages
| ```{local-runs}            the reader's own runs beside it, or how to get some
| ```{picture} NAME          a picture or a figure of records, light and dark
| ```{record-schema} run     the format of a record, field by field
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from book_numbers import look_up
from book_pictures import Figures
from book_studies import LOCAL, Snapshot, Studies
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from pe import figures
from pe._errors import unknown
from pe.results import tables
from pe.runs import models

log = logging.getLogger(__name__)
_now: dict[str, Any] = {}


def use(studies: Studies, book: Path, drawn: Figures) -> None:
    """Give the directives the records of this build, and the figures made of them."""
    _now.update(studies=studies, book=book, figures=drawn)


class RecordRole(SphinxRole):
    """{record}`KEY`: the value that the records hold for a key; {record-code} sets it as code."""

    def __init__(self, node: type[nodes.TextElement] | None = None) -> None:
        super().__init__()
        self.node = node

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        self.env.note_dependency(str(_now["book"] / "_generated" / "records.json"))
        try:
            value = look_up(_now["studies"], self.text)
            return [self.node(text=value) if self.node else nodes.Text(value)], []
        except ValueError as error:
            log.warning("no record for %r: %s", self.text, error, location=self.get_location())
            return [nodes.literal(text=self.text)], []


class Block(SphinxDirective):
    """A directive whose result is Markdown that the page's own parser reads."""

    def markdown(self, text: str, holder: nodes.Element | None = None) -> list[nodes.Node]:
        """Parse text as part of the page, into ``holder`` if there is one."""
        self.env.note_dependency(str(_now["book"] / "_generated" / "records.json"))
        target = nodes.Element() if holder is None else holder
        lines = StringList(text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, target)
        return list(target.children) if holder is None else [target]

    def warn(self, message: str) -> list[nodes.Node]:
        """Report where the page is wrong; the page goes on without this block."""
        log.warning(message, location=self.get_location())
        return []

    def study_table(self, found: list[Snapshot], columns: list[str] | None = None) -> str:
        """The Markdown table of some runs, linked to the pages that exist."""
        pages = {
            run.name: f"/runs/{run.study}/{run.name}/train.ipynb"
            for run in found
            if (_now["book"] / "runs" / run.study / run.name / "train.ipynb").exists()
        }
        return tables.markdown(tables.study_table(found, columns, pages))


class Results(Block):
    """A study's table."""

    optional_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        "encodings": directives.unchanged,
        "columns": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        studies: Studies = _now["studies"]
        study = self.arguments[0] if self.arguments else studies.reference
        if study not in studies.runs:
            return self.warn(str(unknown("study", study, studies.runs)))
        found = studies.runs[study]
        known = [group.pe for group in tables.groups(found)]
        wanted = _words(self.options.get("encodings")) or known
        for pe in wanted:
            if pe not in known:
                return self.warn(str(unknown("encoding", pe, known)))
        chosen = [run for run in found if run.read()["pe"] in wanted]
        try:
            text = self.study_table(chosen, _words(self.options.get("columns")))
        except ValueError as error:
            return self.warn(str(error))
        return self.markdown(text, nodes.container(classes=["pe-results"]))


class LocalRuns(Block):
    """The reader's own runs, with the same columns as the reference study."""

    def run(self) -> list[nodes.Node]:
        studies: Studies = _now["studies"]
        found, unfinished = studies.runs.get(LOCAL, []), studies.incomplete.get(LOCAL, [])
        if not found and not unfinished:
            return self.markdown(
                "There are no runs of yours here yet. After `make demo`, or one `papermill` "
                "command and another build of the book, your numbers appear in this place."
            )
        result: list[nodes.Node] = []
        if found:
            holder = nodes.container(classes=["pe-results"])
            result += self.markdown(self.study_table(found), holder)
            result += self.markdown(
                "```{picture} local-perplexity-by-length\n"
                ":alt: Perplexity by context length of the runs made on this machine\n\n"
                "The same figure from your own runs.\n```"
            )
        if unfinished:
            lines = ["Not shown, because they have not ended well:", ""]
            for run in unfinished:
                record = run.read()
                reason = f": {record['reason']}" if record["reason"] else ""
                lines.append(f"- `{run.name}` is {record['status']}{reason}")
            result += self.markdown("\n".join(lines))
        return result


class Picture(Block):
    """A figure with a light and a dark image of which the theme shows one."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "alt": directives.unchanged_required,
        "name": directives.unchanged,
        "width": directives.length_or_percentage_or_unitless,
    }

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        folder = _now["book"] / "_generated"
        if not (folder / f"{name}.svg").exists():
            drawn = sorted(p.stem for p in folder.glob("*.svg") if not p.stem.endswith("-dark"))
            return self.warn(str(unknown("picture", name, drawn)))
        if "alt" not in self.options:
            return self.warn(f"picture {name!r} has no :alt: text for readers who cannot see it")
        figure = nodes.figure(align="center")
        pair = nodes.container(classes=["pe-pair"])  # the theme hides captions beside a hidden twin
        for twin, shown in (("", "only-light"), ("-dark", "only-dark")):
            image = nodes.image(uri=f"/_generated/{name}{twin}.svg", alt=self.options["alt"])
            image["classes"] = [shown]
            if "width" in self.options:
                image["width"] = self.options["width"]
            pair += image
        figure += pair
        text = "\n".join(self.content)
        if name in _now["figures"]:
            text += f" *{figures.caption(_now['figures'][name][0])}.*"
        caption, *more = self.markdown(text) or [nodes.paragraph()]
        figure += nodes.caption(text, "", *caption.children)
        if more:
            figure += nodes.legend("", *more)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


class RecordSchema(Block):
    """The fields of a file of a record (`pe.runs.models`) as a table: name, type, meaning."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(models.__file__)
        lines = ["| field | type | meaning |", "| :-- | :-- | :-- |"]
        for path, kind, meaning in models.fields(self.arguments[0]):
            lines.append(f"| `{path}` | {kind} | {meaning} |")
        return self.markdown("\n".join(lines), nodes.container(classes=["pe-results", "wrap"]))


def _words(text: str | None) -> list[str] | None:
    return [word.strip() for word in text.split(",") if word.strip()] if text else None


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_role("record", RecordRole())
    app.add_role("record-code", RecordRole(nodes.literal))
    app.add_directive("results", Results)
    app.add_directive("local-runs", LocalRuns)
    app.add_directive("picture", Picture)
    app.add_directive("record-schema", RecordSchema)
