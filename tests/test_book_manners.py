"""What pages say about themselves, and that they load what they use and no more."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import book_manners
import pytest
from book_browser import Visit
from book_directives import least_width
from book_manners import About, keep_together, mend, web_address
from book_site import listed
from docutils import nodes
from docutils.utils import new_document

ROOT = Path(__file__).resolve().parent.parent
HERE = About(
    "The authors", "pe: encodings", "0.1.0", "2026-01-02", "MIT", "0123456789abcdef", "2026-02-03",
    None, None,
)  # fmt: skip
THERE = HERE.__class__(
    **(HERE.__dict__ | {"repository": "https://github.com/a/pe", "site": "https://a.io/pe"})
)
PAGE = """<html><head>
<meta name="viewport" content="a" /><meta name="viewport" content="b" />
<script defer src="_static/scripts/fontawesome.js?digest=1"></script>
<script>window.MathJax = {}</script>
<script defer="defer" src="_static/../mathjax/tex-svg.js?v=5"></script>
<script src="searchindex.js"></script>
<link rel="stylesheet" href="_static/mystnb.0a1b.css" />
<link rel="stylesheet" href="_static/proof.css" />
</head><body><h1>One</h1>BODY<p class="component-author">By</p></body></html>"""


def mended(name: str = "one", body: str = "", about: About = HERE) -> str:
    context = {
        "pagename": name, "title": "One <em>page</em>", "docstitle": "Book",
        "pathto": lambda target, _: target, "pe_description": 'Says "this".',
    }  # fmt: skip
    return mend(PAGE.replace("BODY", body), context, about)


def test_a_page_loads_no_icons_search_or_mathematics_that_it_does_not_use() -> None:
    text = mended()
    assert "<script" not in text
    assert text.count("viewport") == 1
    assert "stylesheet" not in text
    assert "mystnb" in mended(body='<div class="cell tag_x">')
    assert "tex-svg" in mended(body='<span class="math">')
    assert "searchindex" in mended("search")


def test_a_page_has_a_description_a_card_and_a_way_to_cite_it() -> None:
    text = mended()
    assert '<meta name="description" content="Says &quot;this&quot;."/>' in text
    assert '<meta property="og:title" content="One page"/>' in text
    assert "MIT licence" in text
    assert "0123456789ab" in text
    assert "2026-02-03" in text
    assert "@misc{pe-one" in text
    assert "http" not in text, "no address is invented where none is known"


def test_a_picture_of_a_notebook_is_named_after_the_heading_above_it() -> None:
    heading = '<h2>The <em>loss</em><a class="headerlink" href="#a">#</a></h2>'
    picture = '<img alt="../../_images/0b5.svg" src="../../_images/0b5.svg"/>'
    own = '<img alt="A wave" src="../_images/wave.svg"/>'
    text = mended("runs/demo/a/train", heading + picture + own)
    assert '<img alt="Figure: The loss" src="../../_images/0b5.svg"/>' in text
    assert own in text
    twin = '<img alt="A wave" class="only-dark" src="../_images/wave-dark.svg"/>'
    assert twin.replace("<img", '<img loading="lazy"') in mended(body=twin)


def test_a_full_stop_does_not_leave_its_formula() -> None:
    page = new_document("page")
    page += nodes.paragraph(
        "", "", nodes.math(text="x"), nodes.Text(". Then "), nodes.math(text="y")
    )
    keep_together(None, page)  # type: ignore[arg-type]
    held, rest, last = page[0].children
    assert (held["classes"], held.astext(), rest.astext()) == (["pe-together"], "x.", " Then ")
    assert isinstance(last, nodes.math), "nothing follows it"


def test_addresses_are_those_of_the_repository_and_the_site() -> None:
    text = mended(about=THERE)
    assert '<link rel="canonical" href="https://a.io/pe/one.html"/>' in text
    assert "https://a.io/pe/card.png" in text
    assert "https://github.com/a/pe/tree/0123456789abcdef" in text
    assert "https://a.io/pe/positional-encodings.pdf" in text
    notebook = mended("notebooks/train", about=THERE)
    assert "colab.research.google.com/github/a/pe/blob/HEAD/notebooks/train.ipynb" in notebook


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://user:token@github.com/a/pe.git", "https://github.com/a/pe"),
        ("git@gitlab.example.org:group/pe", "https://gitlab.example.org/group/pe"),
        ("/srv/git/pe", None), (None, None),
    ],
)  # fmt: skip
def test_only_a_public_remote_is_a_link(remote: str | None, address: str | None) -> None:
    assert web_address(remote) == address


def test_a_description_ends_with_a_sentence_or_says_that_it_goes_on() -> None:
    def of(text: str) -> str:
        section = nodes.section("", nodes.paragraph(text=text))
        return book_manners.described(SimpleNamespace(findall=section.findall))  # type: ignore[arg-type]

    sentence = "A sentence that is long enough to stand alone as what a page is about. "
    assert of(sentence * 3) == (sentence * 2).strip()
    long = of("word " * 60)
    assert long.endswith("…")
    assert len(long) <= book_manners.DESCRIPTION


def test_a_figure_is_wide_enough_for_letters_of_nine_pixels(tmp_path: Path) -> None:
    path = tmp_path / "one.svg"
    path.write_text('<svg viewBox="0 0 400 200"><text style="font: 8px sans-serif"/></svg>')
    assert least_width(path) == "pe-least-480"  # 9 * 400 / 8 = 450
    css = (ROOT / "book" / "_static" / "pe.css").read_text()
    assert ".pe-least-480 img" in css


def test_every_icon_on_a_page_is_there(site: Path) -> None:
    css = (ROOT / "book" / "_static" / "icons.css").read_text()
    there = set(re.findall(r"\.(fa-[a-z-]+) \{ --icon", css)) | {"fa-lg", "fa-solid"}
    for name in [*listed(), "search", "genindex"]:
        text = (site / f"{name}.html").read_text("utf-8")
        used = set(re.findall(r"fa-[a-z-]+", " ".join(re.findall(r'class="[^"]*fa-[^"]*"', text))))
        assert used <= there, name
        assert 'name="description"' in text, name
        assert "pe-cite" in text, name
        assert "fontawesome.js" not in text, name


@pytest.mark.browser
def test_icons_are_seen_and_the_search_works_without_its_index_on_every_page(
    browser: object, address: str
) -> None:
    with Visit(browser, f"{address}/index.html") as visit:
        icon = visit.page.locator(".theme-switch-button .fa-solid:visible").first
        assert icon.evaluate("e => getComputedStyle(e).maskImage").startswith("url(")
        assert icon.bounding_box()["width"] > 8
        sizes = visit.page.evaluate(
            "performance.getEntries().reduce((sum, e) => sum + (e.decodedBodySize || 0), 0)"
        )
        assert sizes < 1_500_000
        assert not visit.errors
