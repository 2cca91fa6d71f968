"""The guide as a reader sees it: in a browser, on a phone, in the dark, with no other host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from book_browser import Visit
from book_site import listed

pytestmark = pytest.mark.browser


PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def tab(browser: Any, address: str) -> Iterator[Visit]:
    with Visit(browser, f"{address}/index.html", viewport=PHONE) as visit:
        yield visit


@pytest.mark.parametrize("name", listed())
def test_page(tab: Visit, address: str, name: str) -> None:
    tab.go(f"{address}/{name}.html")
    formulas = tab.page.locator(".math").count()
    drawn = tab.page.locator(".math mjx-container svg").count()
    assert drawn >= formulas, f"{formulas - drawn} formulas are not drawn"
    assert tab.page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert tab.page.evaluate(
        "[...document.images].every(i => !i.offsetParent || (i.complete && i.naturalWidth > 0))"
    )
    assert tab.overflow() <= 0
    assert not tab.outside
    assert not tab.errors


def test_a_run_page_shows_the_executed_notebook(browser: Any, address: str, site: Path) -> None:
    path = next(iter(sorted(site.glob("runs/demo/*/train.html"))))
    url = f"{address}/{path.relative_to(site).as_posix()}"
    with Visit(browser, url, viewport=PHONE) as visit:
        assert visit.page.locator("article div.cell_input").count() > 0
        assert visit.overflow() <= 0
        assert not visit.outside
        assert not visit.errors


def test_equations_are_numbered_and_references_lead_to_them(browser: Any, address: str) -> None:
    with Visit(browser, f"{address}/methods/rope.html") as visit:
        assert visit.page.locator("mjx-container[tabindex]").count() == 0, "stops of the tab key"
        visit.page.set_viewport_size({"width": 360, "height": 740})
        visit.page.wait_for_selector("mjx-container[tabindex]")  # what scrolls is one
        assert visit.page.locator("mjx-assistive-mml").count() > 0, "formulas are read aloud"
        numbers = visit.page.locator("span.eqno").all_inner_texts()
        assert len(numbers) >= 2
        links = visit.page.locator("a.reference[href^='#equation-']")
        assert links.count() > 0
        assert links.first.inner_text().startswith("(")


def test_wide_tables_scroll_in_their_own_box(browser: Any, address: str) -> None:
    url = f"{address}/measurements.html"
    with Visit(browser, url, viewport=PHONE) as visit:
        box = visit.page.locator(".pe-results").first
        wider = "x => x.scrollWidth > x.clientWidth"
        assert box.evaluate(f"e => [e, ...e.querySelectorAll('*')].some({wider})")
        assert box.evaluate("e => e.getBoundingClientRect().right <= innerWidth")


# Luminance contrast of an element's text with the nearest painted background behind it.
CONTRAST = """e => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const lum = c => { const [r, g, b] = rgb(c).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
      return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  let back = e;
  const clear = x => (rgb(getComputedStyle(x).backgroundColor)[3] ?? 1) === 0;
  while (back && clear(back)) back = back.parentElement;
  const pair = [lum(getComputedStyle(e).color),
                lum(back ? getComputedStyle(back).backgroundColor : 'rgb(255,255,255)')];
  return (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
}"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_themes_are_readable_and_show_their_own_pictures(
    browser: Any, address: str, theme: str
) -> None:
    with Visit(browser, f"{address}/index.html", color_scheme=theme) as visit:
        page = visit.page
        assert page.locator("html").get_attribute("data-theme") == theme
        for selector in ("article p", "figcaption .caption-text", "article pre", "article td",
                         "article h1", "article p a.reference"):  # fmt: skip
            assert page.locator(selector).first.evaluate(CONTRAST) >= 4.5, selector
        other = {"light": "dark", "dark": "light"}[theme]
        assert page.locator(f"figure img.only-{theme}").first.is_visible()
        assert not page.locator(f"figure img.only-{other}").first.is_visible()
        assert page.locator("figcaption").first.is_visible()


def test_search_finds_pages(browser: Any, address: str) -> None:
    with Visit(browser, f"{address}/search.html?q=rotary") as visit:
        visit.page.wait_for_selector("ul.search li a", timeout=15_000)
        assert visit.page.locator("ul.search li a[href*='methods/rope']").count() > 0
        assert not visit.outside
        assert not visit.errors
        methods = [name for name in listed() if name.startswith("methods/")]
        asked = {name.split("/")[1]: name for name in methods if name != "methods/index"}
        asked |= {
            "YaRN": "methods/yarn", "p-RoPE": "methods/partial", "Llama 3": "methods/llama3",
            "NTK": "methods/ntk", "position interpolation": "methods/pi",
            "stick-breaking": "methods/stickbreaking", "forget gate": "methods/fox",
        }  # fmt: skip
        first = visit.page.evaluate(FIRST_HITS, list(asked))
        assert first == asked, "the page of a method is the first hit for its name"


FIRST_HITS = """names => Object.fromEntries(names.map(name => {
  history.replaceState({}, '', '?q=' + encodeURIComponent(name));
  return [name, Search._performSearch(...Search._parseQuery(name)).at(-1)?.[0]];
}))"""
