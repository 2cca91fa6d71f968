"""The whole guide: it builds without a warning, holds what it lists, and no link is dead."""

from __future__ import annotations

import functools
import json
import re
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
    pages = {path: soup_of(path) for path in html(site)}
    anchors = {
        path: {tag[key] for tag in soup.find_all(True) for key in ("id", "name") if tag.get(key)}
        for path, soup in pages.items()
    }
    broken = []
    for path, soup in pages.items():
        for tag in soup.find_all(["a", "img", "script", "link", "source"]):
            address = tag.get("href") or tag.get("src")
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


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    for path in html(site):
        soup = soup_of(path)
        loaded = [tag.get("src") for tag in soup.find_all(["script", "img", "iframe", "source"])]
        loaded += [
            tag.get("href") for tag in soup.find_all("link") if "canonical" not in tag["rel"]
        ]
        assert not [a for a in loaded if a and urlsplit(a).netloc], path
        assert "thebe" not in path.read_text("utf-8").lower(), path


def test_no_reference_is_left_unresolved(site: Path) -> None:
    """Warnings would fail the build; these are what a reader sees when one is only suppressed."""
    for name in listed():
        article = soup_of(site / f"{name}.html").find("article")
        code = {
            id(text)
            for block in article.find_all(["pre", "code"])
            for text in block.find_all(string=True)
        }
        words = " ".join(text for text in article.find_all(string=True) if id(text) not in code)
        assert "{record}" not in words, name
        assert "```" not in words, f"{name}: a directive that is not read"
        assert not re.search(r"\[\?\]|\?\?|None\b.*perplexity", words), name


def test_pictures_come_in_pairs_with_words_for_those_who_cannot_see(site: Path) -> None:
    found = 0
    for name in listed():
        soup = soup_of(site / f"{name}.html")
        for figure in soup.select("figure"):
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
