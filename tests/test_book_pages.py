"""The search index of a build is whole, also after one that was stopped; runs are set aside."""

from __future__ import annotations

import os
import re
from pathlib import Path

import book_pages
import pytest
from book_site import listed
from sphinx.application import Sphinx
from sphinx.util.docutils import docutils_namespace, patch_docutils

PAGES = ("index", "one", "two", "runs/demo/a/train")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A site of four pages, one of them that of a run."""
    folder = tmp_path / "source"
    for name in PAGES:
        path = folder / f"{name}.rst"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name.capitalize()}\n{'=' * len(name)}\n\nWord{name[0]}.\n")
    with (folder / "index.rst").open("a") as file:
        file.write("\n.. toctree::\n\n   one\n   two\n")
    return folder


def build(source: Path) -> tuple[set[str], str]:
    """The pages that a build writes, and its warnings."""
    out, written, warnings = source.parent / "out", set[str](), source.parent / "warnings"
    with patch_docutils(), docutils_namespace(), warnings.open("w") as told:
        app = Sphinx(
            str(source), None, str(out), str(source.parent / "doctrees"), "html",
            confoverrides={"extensions": ["book_pages"], "html_theme": "basic"},
            status=None, warning=told,
        )  # fmt: skip
        app.connect("html-page-context", lambda app, name, *_: written.add(name))
        app.build()
    return written & set(PAGES), warnings.read_text()


def test_pages_of_runs_are_in_no_search_and_in_no_order_of_reading(source: Path) -> None:
    written, warnings = build(source)
    assert written == set(PAGES)
    assert not warnings, "a page outside every table of contents is meant here"
    index = (source.parent / "out" / "searchindex.js").read_text()
    assert "wordo" in index
    assert "wordr" not in index
    page = (source.parent / "out" / "two.html").read_text()
    assert 'rel="next"' not in page


ROOT_LIST = """<p class="caption" role="heading"><span class="caption-text">The idea</span></p>
<ul class="{ul}nav bd-sidenav">
<li class="toctree-l1{li}"><a class="{a}reference internal" href="{one}">The current one</a></li>
<li class="toctree-l1"><a class="reference internal" href="{two}">Two</a></li>
</ul>
<ul class="nav bd-sidenav">
<li class="toctree-l1"><a class="reference internal" href="{three}">Three</a></li>
<li class="toctree-l1"><a class="reference external" href="https://a.io/b">There</a></li>
</ul>
"""


def test_the_list_of_pages_is_turned_from_one_page_to_another() -> None:
    """As the theme makes it for each of them."""
    plain, current = {"ul": "", "li": "", "a": ""}, {"ul": "current ", "li": " current active"}
    root = ROOT_LIST.format(one="a/one.html", two="a/two.html", three="three.html", **plain)
    inside = ROOT_LIST.format(
        one="#", two="two.html", three="../three.html", a="current ", **current
    )
    beside = ROOT_LIST.format(
        one="../a/one.html", two="../a/two.html", three="../three.html", **plain
    )
    assert book_pages.from_the_root(inside, "a/one.html") == root
    assert book_pages.from_the_root(root, "index.html") == root
    assert book_pages.seen_from(root, "a/one.html") == inside
    assert book_pages.seen_from(root, "b/four.html") == beside


def test_a_build_without_changes_writes_nothing(source: Path) -> None:
    build(source)
    assert build(source)[0] == set()
    (source / "one.rst").write_text("One\n===\n\nWordn.\n")
    assert build(source)[0] == {"index", "one"}, "the index shows the title of the page"


@pytest.mark.parametrize("left", ["nothing", "an older one", "one of fewer pages", "half a file"])
def test_a_build_after_a_stopped_one_completes_the_search_index(source: Path, left: str) -> None:
    """sphinx-doc/sphinx#3270: pages written before the stop were in no later index."""
    build(source)
    index = source.parent / "out" / "searchindex.js"
    whole = index.read_text()
    if left == "nothing":
        index.unlink()
    elif left == "an older one":
        (source / "two.rst").write_text("Two\n===\n\nSomething else.\n")
        build(source)
        whole = index.read_text()
        os.utime(index, (1, 1))
    elif left == "one of fewer pages":
        index.write_text('Search.setIndex({"docnames": ["index", "two"]})')
    else:
        index.write_text(whole[: len(whole) // 2])
    assert build(source) == (set(PAGES), "")
    assert index.read_text() == whole
    assert book_pages.indexed(index) == set(PAGES)


def test_every_page_of_the_guide_marks_itself_in_the_list_of_pages(site: Path) -> None:
    """`book_pages.Sidebars` knows the theme's classes; this fails where they change."""
    item = re.compile(r'toctree-l1 current active"><a class="current [^>]*href="#">(.*?)</a>')
    for name in listed():
        text = (site / f"{name}.html").read_text("utf-8")
        title = re.search(r"<h1>(.*?)</h1>", text)
        assert title
        own = [] if name == "index" else [title[1]]
        assert item.findall(text) == own, name
        assert text.count('<ul class="current nav bd-sidenav">') == len(own), name
