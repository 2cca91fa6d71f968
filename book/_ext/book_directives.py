"""Roles and directives by which pages read records. A key that does not exist is a warning.

| {record}`pope.ppl@4x`      a number (book_numbers); {record-code} sets it as code
| ```{picture} NAME          a picture or a figure of records, light and dark
| ```{record-schema} run     the format of a record, field by field
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from book_numbers import look_up
from book_pictures import Figures
from book_studies import Snapshot, Speeds, Studies
from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

from pe import figures
from pe._errors import unknown
from pe.results.markdown import pipe
from pe.results.rows import Row
from pe.runs import models

log = logging.getLogger(__name__)
T = TypeVar("T")
PLAIN = "plain:"
"""Begins the address of a page that Sphinx does not make, from the root of the site."""


@dataclass(frozen=True)
class Book:
    """What a build shows: `bookext` makes it, and directives find it on the application."""

    studies: Studies
    folder: Path
    figures: Figures
    speeds: Speeds
    shared: dict[str, Any] = field(default_factory=dict)
    """What several directives of a build need and one of them has made (`once`)."""

    @classmethod
    def of(cls, env: BuildEnvironment) -> Book:
        """That of the build."""
        book: Book = env.app.pe_book  # type: ignore[attr-defined]
        return book

    def once(self, name: str, make: Callable[[], T]) -> T:
        """The value of ``make``, which only the first directive that needs it calls."""
        if name not in self.shared:
            self.shared[name] = make()
        value: T = self.shared[name]
        return value

    @property
    def stamp(self) -> str:
        """The file that changes when a record or the code that shows records does."""
        return str(self.folder / "_generated" / "records.json")

    def pages(self, rows: Iterable[Row]) -> dict[str, str]:
        """By a run's name, the page of its executed notebook, or else that of its record."""
        found = {}
        for run in (run for row in rows for run in row.runs):
            place = f"runs/{run.study}/{run.name}"
            executed = (self.folder / place / "train.ipynb").exists()
            found[run.name] = f"/{place}/train.ipynb" if executed else f"{PLAIN}{place}/record.html"
        return found


class RecordRole(SphinxRole):
    """{record}`KEY`: the value that the records hold for a key; {record-code} sets it as code."""

    def __init__(self, node: type[nodes.TextElement] | None = None) -> None:
        super().__init__()
        self.node = node

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book = Book.of(self.env)
        self.env.note_dependency(book.stamp)
        try:
            value = look_up(book.studies, self.text)
            return [self.node(text=value) if self.node else nodes.Text(value)], []
        except ValueError as error:
            log.warning("no record for %r: %s", self.text, error, location=self.get_location())
            return [nodes.literal(text=self.text)], []


class Block(SphinxDirective):
    """A directive whose result is Markdown that the page's own parser reads."""

    @property
    def book(self) -> Book:
        """What this build shows."""
        return Book.of(self.env)

    def markdown(self, text: str, holder: nodes.Element | None = None) -> list[nodes.Node]:
        """Parse text as part of the page, into ``holder`` if there is one."""
        self.env.note_dependency(self.book.stamp)
        target = nodes.Element() if holder is None else holder
        up = "../" * self.env.docname.count("/")
        text = re.sub(rf"\[([^]\n]*)\]\({PLAIN}([^)\n]*)\)", rf'<a href="{up}\2">\1</a>', text)
        lines = StringList(text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, target)
        return list(target.children) if holder is None else [target]

    def warn(self, message: str) -> list[nodes.Node]:
        """Report where the page is wrong; the page goes on without this block."""
        log.warning(message, location=self.get_location())
        return []


class Made(Block):
    """A directive that is one piece of Markdown, or a warning that says what is wrong."""

    required_arguments = 1
    classes: ClassVar[list[str]] = ["pe-results"]

    def run(self) -> list[nodes.Node]:
        try:
            text = self.text()
        except ValueError as error:
            return self.warn(str(error))
        return self.markdown(text, nodes.container(classes=self.classes)) if text else []

    def text(self) -> str:
        """The Markdown; nothing is shown of an empty one."""
        raise NotImplementedError

    def words(self, option: str, default: str = "") -> list[str]:
        """The values of an option, apart by commas."""
        given = self.options.get(option, default)
        return [word.strip() for word in given.split(",") if word.strip()]


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
        folder = self.book.folder / "_generated"
        if not (folder / f"{name}.svg").exists():
            drawn = sorted(p.stem for p in folder.glob("*.svg") if not p.stem.endswith("-dark"))
            return self.warn(str(unknown("picture", name, drawn)))
        if "alt" not in self.options:
            return self.warn(f"picture {name!r} has no :alt: text for readers who cannot see it")
        figure = nodes.figure(align="center")
        # the theme hides captions beside a hidden twin
        pair = nodes.container(classes=["pe-pair", least_width(folder / f"{name}.svg")])
        for twin, shown in (("", "only-light"), ("-dark", "only-dark")):
            image = nodes.image(uri=f"/_generated/{name}{twin}.svg", alt=self.options["alt"])
            image["classes"] = [shown]
            if "width" in self.options:
                image["width"] = self.options["width"]
            pair += image
        figure += pair
        text = "\n".join(self.content)
        caption, *more = self.markdown(text) or [nodes.paragraph()]
        figure += nodes.caption(text, "", *caption.children)
        if name in self.book.figures and self.book.figures[name][0]:
            figure[-1] += made_of(_made_of(self.book.figures[name][0]))
        if more:
            figure += nodes.legend("", *more)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def made_of(records: str) -> list[nodes.Node]:
    """The end of a caption: the records that a figure was made of, in small letters."""
    return [nodes.Text(" "), nodes.emphasis(text=f"{records}.", classes=["pe-made-of"])]


def _made_of(shown: list[Snapshot] | list[Path]) -> str:
    """What a figure is made of, in words: its runs, or the folders of other records."""
    runs = [one for one in shown if isinstance(one, Snapshot)]
    if runs:
        return figures.caption(runs)
    records = [one.parent for one in shown if isinstance(one, Path) and one.suffix == ".json"]
    names = dict.fromkeys(f"{folder.parent.name}/{folder.name}" for folder in records)
    return f"Records: {', '.join(names) or 'none yet'}"


SMALLEST_TEXT = 9
"""Pixels of the smallest letters of a figure, on any screen."""
_LEAST = range(320, 801, 40)
"""Widths for which _static/pe.css has a class."""


def least_width(picture: Path) -> str:
    """The class of the width, in pixels, at which a picture's smallest letters can be read.

    A narrower screen shows the picture that wide, in a box that scrolls.
    """
    text = picture.read_text("utf-8")
    box = re.search(r'viewBox="0 0 ([\d.]+)', text)
    sizes = [float(size) for size in re.findall(r"font:? ?(?:-size: )?([\d.]+)px", text)]
    if box is None or not sizes:
        return f"pe-least-{_LEAST[0]}"
    needed = SMALLEST_TEXT * float(box[1]) / min(sizes)
    return f"pe-least-{next((width for width in _LEAST if width >= needed), _LEAST[-1])}"


class RecordSchema(Made):
    """The fields of a file of a record (`pe.runs.models`) as a table: name, type, meaning."""

    classes: ClassVar[list[str]] = ["pe-results", "wrap"]

    def text(self) -> str:
        self.env.note_dependency(models.__file__)
        lines = [
            [f"`{path}`", kind, meaning] for path, kind, meaning in models.fields(self.arguments[0])
        ]
        return pipe(["field", "type", "meaning"], lines, 3)


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_role("record", RecordRole())
    app.add_role("record-code", RecordRole(nodes.literal))
    app.add_directive("picture", Picture)
    app.add_directive("record-schema", RecordSchema)
