"""Print the built guide as one PDF: cover, contents with page numbers, chapters, bookmarks.

    python tools/print_guide.py _build/html _build/positional-encodings.pdf

The chapters of _toc.yml are joined into one page, in order, and Chromium prints it offline.
Solutions are opened, all tabs are shown, tables and code get the width of the paper, and links
between chapters become links within the PDF. The style is in print_guide.css.

The page is printed twice. The first PDF shows on which page each chapter begins.
"""

from __future__ import annotations

import argparse
import html
import json
import posixpath
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from bs4 import BeautifulSoup, Tag
from check_site import FLAGS, chromium, served

ROOT = Path(__file__).resolve().parent.parent
TITLE = "Positional encodings"
SUBTITLE = "Trained and measured"


@dataclass
class Chapter:
    """A page of the guide: its place, its title and its article."""

    name: str
    part: str | None
    """The part of the guide that it opens, if it opens one."""
    title: str = ""
    body: str = ""

    @property
    def key(self) -> str:
        """The chapter's name as an identifier."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower())


def chapters_of(toc: Path) -> list[Chapter]:
    """Return the chapters of the table of contents, in order."""
    listed = yaml.safe_load(toc.read_text("utf-8"))
    chapters = [Chapter(listed["root"], None)]
    for part in listed["parts"]:
        for place, entry in enumerate(part["chapters"]):
            chapters.append(Chapter(entry["file"], part["caption"] if place == 0 else None))
    return chapters


def fill(chapter: Chapter, site: Path, keys: dict[str, str]) -> BeautifulSoup:
    """Read a chapter's article and make it fit for paper. ``keys`` is by page of the site."""
    page = f"{chapter.name}.html"
    soup = BeautifulSoup((site / page).read_text("utf-8"), "html.parser")
    article = soup.find("article")
    assert isinstance(article, Tag), page
    for one in article.select(
        ".headerlink, .only-dark, script, style, noscript, button, .pe-run-it, .toctree-wrapper, "
        ".sd-summary-chevron-right, .sd-summary-chevron-down, .sd-summary-icon, link"
    ):
        one.decompose()
    fold(article)
    here = posixpath.dirname(page)
    for one in article.find_all(True):
        for name in ("id", "for"):
            if one.get(name):
                one[name] = f"{chapter.key}--{one[name]}"
        if one.get("src"):
            one["src"] = posixpath.normpath(posixpath.join(here, one["src"]))
        if one.name == "a" and one.get("href"):
            link(one, chapter, here, keys)
        one.attrs = {k: v for k, v in one.attrs.items() if not k.startswith(("aria-", "data-"))}
        one.attrs.pop("tabindex", None)
    for level in (5, 4, 3, 2, 1):
        for heading in article.find_all(f"h{level}"):
            heading.name = f"h{level + 1}"
    heading = article.find("h2")
    assert isinstance(heading, Tag), page
    chapter.title = " ".join(heading.get_text().split())
    heading["id"] = chapter.key
    chapter.body = article.decode_contents()
    return soup


def fold(article: Tag) -> None:
    """Open folded parts, and keep a number and its unit on one line."""
    for details in article.find_all("details"):
        details["open"] = ""
    for cell in article.find_all(["td", "th"]):
        for words in cell.find_all(string=re.compile(r"\d (?:[kMG]|GiB|ms|s|h)\b")):
            words.replace_with(re.sub(r"(\d) (?=(?:[kMG]|GiB|ms|s|h)\b)", "\\1\u00a0", words))


def link(one: Tag, chapter: Chapter, here: str, keys: dict[str, str]) -> None:
    """Let links lead to pages of the PDF, and turn links to other pages into plain text."""
    parts = urlsplit(str(one["href"]))
    if parts.scheme:
        return
    target = posixpath.normpath(posixpath.join(here, unquote(parts.path))) if parts.path else None
    key = chapter.key if target is None else keys.get(target)
    if key is None:
        del one["href"]
    else:
        anchor = f"{key}--{unquote(parts.fragment)}" if parts.fragment else key
        one["href"] = f"#{anchor}"


def assemble(site: Path, chapters: list[Chapter], about: dict[str, str]) -> str:
    """Return the whole guide as one page, with `{page:KEY}` in place of page numbers."""
    keys = {f"{chapter.name}.html": chapter.key for chapter in chapters}
    mathjax = ""
    for chapter in chapters:
        soup = fill(chapter, site, keys)
        for script in soup.find_all("script"):
            if "window.MathJax" in (script.string or ""):
                mathjax = f'{script}<script defer src="mathjax/tex-svg.js"></script>'
    contents, pages, running = [], [], []
    for chapter in chapters:
        if chapter.part:
            contents.append(f'<li class="part">{html.escape(chapter.part)}</li>')
        contents.append(
            f'<li><a href="#{chapter.key}"><span>{html.escape(chapter.title)}</span>'
            f"<b>{{page:{chapter.key}}}</b></a></li>"
        )
        part = f'<h1 class="part">{html.escape(chapter.part)}</h1>' if chapter.part else ""
        pages.append(
            f'<article class="bd-article chapter" style="page: c-{chapter.key}">'
            f"{part}{chapter.body}</article>"
        )
        running.append(f"@page c-{chapter.key} {{ @top-left {{ content: {css(chapter.title)} }} }}")
    style = (Path(__file__).parent / "print_guide.css").read_text("utf-8")
    sheets = "".join(
        f'<link rel="stylesheet" href="{path.relative_to(site).as_posix()}">'
        for path in sorted((site / "_static").rglob("*.css"))
        if path.name in ("pygments.css", "sphinx-design.min.css", "proof.css")
    )
    facts = "".join(f"<p>{html.escape(text)}</p>" for text in about.values() if text)
    return f"""<!doctype html><html lang="en" data-theme="light"><head><meta charset="utf-8">
<title>{TITLE}</title>{sheets}<style>{style}
{chr(10).join(running)}</style>{mathjax}</head><body>
<section class="cover">
<p class="title">{TITLE}</p><p class="subtitle">{SUBTITLE}</p>{facts}
</section>
<nav class="contents"><h1>Contents</h1><ol>{"".join(contents)}</ol></nav>
{"".join(pages)}</body></html>"""


def css(text: str) -> str:
    """Quote a text for CSS."""
    return json.dumps(text, ensure_ascii=False)


def pages_in(pdf: bytes) -> int:
    """Count the pages of a PDF from Chromium."""
    return len(re.findall(rb"/Type /Page\b(?!s)", pdf))


def page_numbers(pdf: bytes) -> dict[str, int]:
    """Return the page number of each named destination in an uncompressed PDF from Chromium.

    Pages are counted in the order of the page tree.
    """
    kids = {
        int(number): [int(kid) for kid in re.findall(rb"(\d+) 0 R", kids)]
        for number, kids in re.findall(
            rb"(\d+) 0 obj\s*<<[^>]*?/Type /Pages\b[^>]*?/Kids \[([^\]]*)\]", pdf
        )
    }
    leaves: list[int] = []

    def walk(node: int) -> None:
        if node in kids:
            for kid in kids[node]:
                walk(kid)
        else:
            leaves.append(node)

    inner = {kid for several in kids.values() for kid in several}
    for top in sorted(kids.keys() - inner):
        walk(top)
    order = {number: place for place, number in enumerate(leaves, 1)}
    places = re.findall(rb"/([^\s/<>\[\]()]+)\s*\[\s*(\d+) 0 R\s*/XYZ", pdf)
    return {
        re.sub(r"#([0-9A-Fa-f]{2})", lambda m: chr(int(m[1], 16)), name.decode("latin-1")): order[
            int(number)
        ]
        for name, number in places
        if int(number) in order
    }


LIMIT = 1_200_000
"""Milliseconds: a busy machine takes minutes for thousands of formulas."""
PAPER = 657
"""The width of the text on paper, in CSS pixels: 174 mm."""
FIT = """() => {
  for (const table of document.querySelectorAll('table')) {
    const room = table.parentElement.clientWidth;
    let size = parseFloat(getComputedStyle(table).fontSize);
    for (; table.scrollWidth > room + 1 && size > 6.5; size -= 0.5)
      table.style.fontSize = size - 0.5 + 'px';
    if (table.scrollWidth > room + 1) table.classList.add('too-wide');
  }
  for (const formula of document.querySelectorAll('div.math mjx-container > svg')) {
    const room = formula.closest('div.math').clientWidth - 50;
    const width = formula.getBoundingClientRect().width;
    if (width > room) formula.closest('div.math').style.zoom = Math.max(room / width, 0.5);
  }
}"""


def print_guide(browser: Any, site: Path, chapters: list[Chapter], about: dict[str, str]) -> bytes:
    """Print chapters of a built guide as a PDF."""
    text = assemble(site, chapters, about)
    print(f"{len(chapters)} chapters, {len(text) / 1e6:.1f} MB: setting the formulas", flush=True)
    numbers: dict[str, int] = {}
    with served(site) as address:
        page = browser.new_page(viewport={"width": PAPER, "height": 980})
        page.emulate_media(media="print")
        url = f"{address}/print-guide.html"
        page.route(url, lambda route: route.fulfill(body=text, content_type="text/html"))
        page.goto(url, wait_until="load", timeout=LIMIT)
        page.wait_for_function(
            "!window.MathJax?.startup || MathJax.startup.promise.then(() => true)", timeout=LIMIT
        )
        page.evaluate(FIT)
        for turn in ("to see where chapters begin", "with their numbers"):
            print(f"Printing {turn}", flush=True)
            page.evaluate(
                """numbers => document.querySelectorAll('.contents a').forEach(a => {
                     a.querySelector('b').textContent = numbers[a.hash.slice(1)] ?? '000'; })""",
                numbers,
            )
            pdf = bytes(page.pdf(prefer_css_page_size=True, print_background=True, outline=True,
                                 tagged=True))  # fmt: skip
            numbers = page_numbers(pdf)
        page.close()
    missing = [chapter.key for chapter in chapters if chapter.key not in numbers]
    if missing:
        raise SystemExit(f"the PDF names no page for {', '.join(missing)}")
    return pdf


def about() -> dict[str, str]:
    """Return the author, version, commit, date and licence for the cover, as in the footers."""
    sys.path[:0] = [str(ROOT), str(ROOT / "book" / "_ext")]
    from book_manners import About

    known = About.read()
    commit = f", commit {known.commit[:12]}" if known.commit else ""
    return {
        "author": known.author,
        "version": f"pe {known.version}{commit}, {known.date}",
        "licence": f"{known.licence} licence",
        "address": known.site or known.repository or "",
    }


def main() -> None:
    """Print the guide that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path, help="the built guide, _build/html")
    parser.add_argument("target", type=Path, help="the PDF to write")
    parser.add_argument("--only", nargs="*", help="only these chapters, such as methods/rope")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    start = time.monotonic()
    chapters = chapters_of(ROOT / "_toc.yml")
    if options.only:
        chapters = [chapter for chapter in chapters if chapter.name in options.only]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        pdf = print_guide(browser, options.site, chapters, about())
        browser.close()
    options.target.parent.mkdir(parents=True, exist_ok=True)
    options.target.write_bytes(pdf)
    spent = time.monotonic() - start
    print(f"{options.target}: {pages_in(pdf)} pages, {len(pdf) / 1e6:.1f} MB, {spent:.0f} s")


if __name__ == "__main__":
    main()
