"""What the roles and directives of the book share, and those that read no particular record.

| {record}`pope.ppl@4x`      a number (book_numbers); {record-code} sets it as code
| ```{picture} NAME          a picture or a figure of records, light and dark
| ```{record-schema} run     the format of a record, field by field

`bookext` registers all roles and directives. A key that does not exist is a warning.
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
RESULTS = "pe-results"
"""The class of a table in small letters, which scrolls where it is wider than the page."""
PLAIN = "plain:"
"""Begins the address of a page that Sphinx does not make, from the root of the site."""


@dataclass(frozen=True)
class Book:
    """The records and figures of a build. `bookext` makes it; directives find it on the app."""

    studies: Studies
    folder: Path
    figures: Figures
    speeds: Speeds
    shared: dict[str, Any] = field(default_factory=dict)
    """What several directives need, by name; `once` fills it."""

    @classmethod
    def of(cls, env: BuildEnvironment) -> Book:
        """Return the book of the running build."""
        book: Book = env.app.pe_book  # type: ignore[attr-defined]
        return book

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Return ``make()``, which only the first directive that asks for ``name`` calls."""
        if name not in self.shared:
            self.shared[name] = make()
        value: T = self.shared[name]
        return value

    @property
    def stamp(self) -> str:
        """The file that changes whenever a record or the code of the package changes."""
        return str(self.folder / "_generated" / "stamp")

    def pages(self, rows: Iterable[Row]) -> dict[str, str]:
        """Return each run's page by its name: its executed notebook, or else its record."""
        pages = {}
        for run in (run for row in rows for run in row.runs):
            place = f"runs/{run.study}/{run.name}"
            executed = (self.folder / place / "train.ipynb").exists()
            pages[run.name] = f"/{place}/train.ipynb" if executed else f"{PLAIN}{place}/record.html"
        return pages


class ValueRole(SphinxRole):
    """A role that becomes a value from the records, or a warning that says why there is none.

    Args:
        value: returns the text; a ValueError becomes the warning.
        node: what the text is set in; None: plain text.
    """

    def __init__(
        self, value: Callable[[Book, str], str], node: type[nodes.TextElement] | None = None
    ) -> None:
        super().__init__()
        self.value, self.node = value, node

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        book = Book.of(self.env)
        self.env.note_dependency(book.stamp)
        try:
            text = self.value(book, self.text)
        except ValueError as error:
            log.warning("no record for %r: %s", self.text, error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        return [self.node(text=text) if self.node else nodes.Text(text)], []


def record(book: Book, key: str) -> str:
    """Return the value of a key of `book_numbers`."""
    return look_up(book.studies, key)


class Block(SphinxDirective):
    """A directive whose result is Markdown that the page's own parser reads."""

    @property
    def book(self) -> Book:
        """The book of this build."""
        return Book.of(self.env)

    def markdown(self, text: str, holder: nodes.Element | None = None) -> list[nodes.Node]:
        """Parse Markdown as part of the page, into ``holder`` if there is one."""
        self.env.note_dependency(self.book.stamp)
        target = nodes.Element() if holder is None else holder
        up = "../" * self.env.docname.count("/")
        text = re.sub(rf"\[([^]\n]*)\]\({PLAIN}([^)\n]*)\)", rf'<a href="{up}\2">\1</a>', text)
        lines = StringList(text.splitlines(), source=self.get_source_info()[0])
        self.state.nested_parse(lines, self.content_offset, target)
        return list(target.children) if holder is None else [target]

    def warn(self, message: str) -> list[nodes.Node]:
        """Report a mistake in the page, which is built without this block."""
        log.warning(message, location=self.get_location())
        return []


class Made(Block):
    """A directive that writes one piece of Markdown; a ValueError of `text` becomes a warning.

    ``classes`` are those of the container around it. `RESULTS` scrolls sideways if it is too wide.
    """

    required_arguments = 1
    classes: ClassVar[list[str]] = [RESULTS]

    def run(self) -> list[nodes.Node]:
        try:
            text = self.text()
        except ValueError as error:
            return self.warn(str(error))
        return self.markdown(text, nodes.container(classes=self.classes)) if text else []

    def text(self) -> str:
        """Return the Markdown. If it is empty, nothing is shown."""
        raise NotImplementedError

    def words(self, option: str) -> list[str]:
        """Return the values of an option, which commas separate."""
        return [word.strip() for word in self.options.get(option, "").split(",") if word.strip()]


def narrow(markdown: str) -> str:
    """Put Markdown into small letters and a box that scrolls where it is wider than the page."""
    return f"````{{container}} {RESULTS}\n{markdown}\n````"


def twins(name: str, alt: str, *classes: str) -> nodes.container:
    """Return the light and the dark image of a picture of _generated, of which one is shown.

    The theme hides captions beside a hidden twin, so both share a container without one.
    """
    pair = nodes.container(classes=["pe-pair", *classes])
    for twin, shown in (("", "only-light"), ("-dark", "only-dark")):
        pair += nodes.image(uri=f"/_generated/{name}{twin}.svg", alt=alt, classes=[shown])
    return pair


class Picture(Block):
    """A figure with a light and a dark image, of which the theme shows one."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "alt": directives.unchanged_required,
        "name": directives.unchanged,
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
        figure += twins(name, self.options["alt"], least_width(folder / f"{name}.svg"))
        text = "\n".join(self.content)
        caption, *more = self.markdown(text) or [nodes.paragraph()]
        figure += nodes.caption(text, "", *caption.children)
        if name in self.book.figures and self.book.figures[name][0]:
            records = f"{_made_of(self.book.figures[name][0])}."
            figure[-1] += [nodes.Text(" "), nodes.emphasis(text=records, classes=["pe-made-of"])]
        if more:
            figure += nodes.legend("", *more)
        self.set_source_info(figure)
        self.add_name(figure)
        return [figure]


def _made_of(shown: list[Snapshot] | list[Path]) -> str:
    """Name the runs that a figure is made of, or the folders of other records."""
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
    """Return the class of the least width at which a picture's smallest letters can be read.

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
    """The fields of a file of a record (`pe.runs.models`): name, type and meaning of each."""

    classes: ClassVar[list[str]] = [RESULTS, "wrap"]

    def text(self) -> str:
        lines = [
            [f"`{path}`", kind, meaning] for path, kind, meaning in models.fields(self.arguments[0])
        ]
        return pipe(["field", "type", "meaning"], lines, 3)
