"""The whole guide: it builds without a warning, holds what it lists, and no link is dead."""

from __future__ import annotations

import functools
import json
import re
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import book_site
from book_site import listed
from bs4 import BeautifulSoup

import pe

ROOT = book_site.ROOT


@functools.cache
def soup_of(path: Path) -> BeautifulSoup:
    """A page, parsed once for all tests; they only look at it."""
    return BeautifulSoup(path.read_text("utf-8"), "html.parser")


@functools.cache
def file_at(folder: Path, address: str) -> Path | None:
    """What the link leads to; the pages of a folder share most of theirs."""
    target = (folder / unquote(address)).resolve()
    return target if target.exists() else None


TAG = re.compile(r"<[a-z][^<>]*>", re.I)
ATTRIBUTE = re.compile(r'\s(id|name|href|src)="([^"]*)"')


@functools.cache
def attributes_of(path: Path) -> tuple[frozenset[str], list[str]]:
    """A page's anchors and the addresses that it names. A parser of HTML takes eight times as long.

    The builder quotes all values and escapes what ends a tag in them.
    """
    found = [
        match for tag in TAG.findall(path.read_text("utf-8")) for match in ATTRIBUTE.findall(tag)
    ]
    anchors = frozenset(unescape(value) for key, value in found if key in ("id", "name"))
    return anchors, [unescape(value) for key, value in found if key in ("href", "src")]


def html(site: Path) -> list[Path]:
    """The site's pages, without the theme's templates."""
    return [path for path in site.rglob("*.html") if "_static" not in path.parts]


def title(name: str) -> str:
    path = ROOT / "book" / f"{name}.md"
    if path.exists():
        return re.search(r"^# (.+)$", path.read_text("utf-8"), re.M)[1]  # type: ignore[index]
    cells = json.loads((ROOT / f"{name}.ipynb").read_text("utf-8"))["cells"]
    return re.search(r"^# (.+)$", "".join(cells[0]["source"]), re.M)[1]  # type: ignore[index]


def test_the_front_page_lists_every_chapter(site: Path) -> None:
    soup = soup_of(site / "index.html")
    words = " ".join(soup.get_text(" ").replace("\u2019", "'").split())  # as typeset
    for name in listed():
        assert (site / f"{name}.html").exists(), name
        assert " ".join(title(name).replace("`", "").split()) in words, name


def test_every_committed_run_has_a_page_that_the_measurements_link_to(site: Path) -> None:
    soup = soup_of(site / "measurements.html")
    linked = {a["href"] for a in soup.select("article .pe-results a")}
    notebooks = sorted((ROOT / "runs" / "demo").glob("*/train.ipynb"))
    assert notebooks
    for path in notebooks:
        assert f"runs/demo/{path.parent.name}/train.html" in linked


def test_every_internal_link_and_anchor_leads_somewhere(site: Path) -> None:
    pages = html(site)
    anchors = {path: attributes_of(path)[0] for path in pages}
    broken = []
    for path in pages:
        for address in attributes_of(path)[1]:
            if not address or urlsplit(address).scheme:
                continue
            parts = urlsplit(address)
            target = file_at(path.parent, parts.path) if parts.path else path
            if target is None or (
                parts.fragment
                and target in anchors
                and unquote(parts.fragment) not in anchors[target]
            ):
                broken.append(f"{path.relative_to(site)}: {address}")
    assert not broken, "\n".join(broken)


def test_addresses_are_read_as_a_parser_of_html_reads_them(site: Path) -> None:
    path = site / "methods" / "rope.html"
    tags, (anchors, addresses) = soup_of(path).find_all(True), attributes_of(path)
    assert anchors == {tag[key] for tag in tags for key in ("id", "name") if tag.get(key)}
    read = [tag[key] for tag in tags for key in ("href", "src") if key in tag.attrs]
    assert sorted(addresses) == sorted(read)


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loading = ("<script", "<img", "<iframe", "<source", "<link")
    for path in html(site):
        text = path.read_text("utf-8")
        tags = [tag for tag in TAG.findall(text) if tag.startswith(loading)]
        named = [ATTRIBUTE.findall(tag) for tag in tags if 'rel="canonical"' not in tag]
        loaded = [value for tag in named for key, value in tag if key in ("href", "src")]
        assert loaded, path
        assert not [address for address in loaded if urlsplit(address).netloc], path
        assert "thebe" not in text.lower(), path


def test_no_reference_is_left_unresolved(site: Path) -> None:
    """Warnings would fail the build; these are what a reader sees when one is only suppressed."""
    for name in listed():
        page = (site / f"{name}.html").read_text("utf-8")
        article = re.search(r"<article\b.*?</article>", page, re.S)
        assert article is not None, name
        text = re.sub(r"<(pre|code)\b.*?</\1>", " ", article[0], flags=re.S)
        words = unescape(re.sub(r"<[^<>]*>", " ", text))
        assert len(words) > 100, name
        assert "{record}" not in words, name
        assert "```" not in words, f"{name}: a directive that is not read"
        assert not re.search(r"\[\?\]|\?\?|None\b.*perplexity", words), name


def test_pictures_come_in_pairs_with_words_for_those_who_cannot_see(site: Path) -> None:
    found = 0
    for name in listed():
        page = (site / f"{name}.html").read_text("utf-8")
        for text in re.findall(r"<figure\b.*?</figure>", page, re.S):
            figure = BeautifulSoup(text, "html.parser")
            images = figure.find_all("img")
            if not images:
                continue
            found += 1
            assert [image["class"][0] for image in images] == ["only-light", "only-dark"], name
            assert all(len(image["alt"]) > 20 for image in images), name
            assert len(figure.find("figcaption").get_text()) > 20, name
    assert found > 5


def test_the_public_names_are_documented() -> None:
    page = (ROOT / "book" / "api.md").read_text("utf-8")
    documented = set(re.findall(r"```\{api\} (\S+)", page))
    modules = {"runs", "figures", "tasks"}
    internal = {"__version__", "RECIPES", "PEModel"}
    for name in set(pe.__all__) - modules - internal:
        assert f"pe.{name}" in documented, name


def test_vendored_mathjax_is_the_published_file_and_has_its_licence() -> None:
    import hashlib

    folder = ROOT / "book" / "vendor" / "mathjax"
    digest = hashlib.sha256((folder / "tex-svg.js").read_bytes()).hexdigest()
    assert digest == "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"  # 3.2.2
    assert "Apache License" in (folder / "LICENSE").read_text()


def test_nothing_that_the_book_is_made_of_is_a_symlink() -> None:
    for part in book_site.PARTS:
        for path in (ROOT / part).rglob("*"):
            assert not path.is_symlink() or "local" in path.parts or "checkpoint" in str(path), path
