"""Check the built guide in a browser: accessibility, phone, dark theme, and size of the pages.

    npm install --no-save axe-core@4.14.1
    python tools/check_site.py _build/html --axe node_modules/axe-core/axe.min.js

Every page is opened once in Chromium and checked in both themes, at widths of 1,280 and 360 pixels:

* axe-core finds no violation, no other host is contacted, and no error is written to the console;
* at 360 pixels only boxes made for it scroll sideways, and no text is smaller than 9 pixels, also
  in figures; at 1,280 pixels no figure is cut off;
* a page has less than 1.5 MB, without MathJax.

Of the pages of records only one per study or task is checked, unless ``--all`` is given. The exit
code is 1 if anything is wrong. ``--report FILE`` writes all measurements as JSON.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import os
import shutil
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS = (1280, 360)
THEMES = ("light", "dark")
SMALLEST_TEXT = 9.0
HEAVIEST = 1_500_000
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

# axe does not read MathML, so it calls table heads with only a formula empty. They are left out.
AXE = """axe.run(document, {resultTypes: ['violations'] RULES}).then(r => r.violations
    .map(v => ({...v, nodes: v.nodes.filter(n => v.id !== 'empty-table-header'
      || !document.querySelector(n.target.join(' '))?.querySelector('math'))}))
    .filter(v => v.nodes.length).map(v => ({
    rule: v.id, impact: v.impact, count: v.nodes.length,
    nodes: v.nodes.slice(0, 4).map(n => n.target.join(' ') + ' :: ' + n.html.slice(0, 160)
        + ' :: ' + (n.any[0]?.message ?? ''))})))"""

# A theme changes only colours, so in the dark theme only rules about colours are checked again.
AXE_RULES = {"light": "", "dark": ", runOnly: ['color-contrast', 'link-in-text-block']"}

WEIGHT = """() => {
  const kinds = [[/mathjax/, 'mathjax'], [/searchindex/, 'search'], [/explorer/, 'explorer'],
    [/\\.css$/, 'css'], [/\\.js$/, 'js'], [/woff2?$/, 'fonts']];
  const sum = {};
  for (const e of performance.getEntries()) {
    if (!('decodedBodySize' in e)) continue;
    const name = e.name.split('?')[0];
    const kind = e.entryType === 'navigation' ? 'html'
      : (kinds.find(([test]) => test.test(name)) ?? [0, 'images'])[1];
    sum[kind] = (sum[kind] ?? 0) + e.decodedBodySize;
  }
  return sum;
}"""

OVERFLOW = "(e => e.scrollWidth - e.clientWidth)(document.scrollingElement)"

# Font sizes of visible figures and visible text in screen pixels.
LETTERS = """async () => {
  window.svgSizes ??= {};
  const small = [];
  for (const image of document.querySelectorAll('article img, .pe-x img')) {
    if (!image.offsetParent || !/\\.svg/.test(image.currentSrc)) continue;
    const name = image.currentSrc;
    if (!(name in svgSizes)) {
      const text = await (await fetch(name)).text();
      const sizes = [...text.matchAll(/font:? ?(?:-size: ?)?(?:[a-z]+ )*([\\d.]+)px/g)]
        .map(m => +m[1]);
      svgSizes[name] = [+(text.match(/viewBox="0 0 ([\\d.]+)/) ?? [0, 0])[1], Math.min(...sizes)];
    }
    const [width, least] = svgSizes[name];
    if (!width || !isFinite(least)) continue;
    const seen = least * image.getBoundingClientRect().width / width;
    if (seen < LEAST - 0.05) small.push([name.split('/').pop(), +seen.toFixed(1)]);
  }
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const seen = new Set();
  while (walk.nextNode()) {
    const at = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || seen.has(at) || at.closest('mjx-container')) continue;
    seen.add(at);
    if (!at.checkVisibility({visibilityProperty: true})) continue;
    let size = parseFloat(getComputedStyle(at).fontSize);
    const svg = at.closest('svg[viewBox]');
    if (svg) size *= svg.getBoundingClientRect().width / svg.viewBox.baseVal.width;
    if (size < LEAST - 0.05) small.push([at.tagName + ': ' + at.textContent.trim().slice(0, 30),
                                         +size.toFixed(1)]);
  }
  return small;
}""".replace("LEAST", str(SMALLEST_TEXT))

# Elements wider than their place: figures (an error at 1,280 pixels), tables and code (reported).
CUT = """() => {
  const cut = {};
  for (const [kind, selector] of [['figures', '.pe-pair, .cell_output, .pe-x'],
      ['tables', '.pe-results, .pst-scrollable-table-container'], ['code', 'article pre'],
      ['formulas', 'div.math']])
    cut[kind] = [...document.querySelectorAll(selector)]
      .filter(e => e.offsetParent && e.scrollWidth > e.clientWidth + 1)
      .filter(e => kind !== 'figures' || e.querySelector('img, svg, canvas'))
      .map(e => e.scrollWidth - e.clientWidth);
  return cut;
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server that logs nothing."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def served(site: Path) -> Iterator[str]:
    """Serve a folder while the block runs; yields the address."""
    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def found_chromium() -> str | None:
    """Return the path of a Chromium on this machine. PE_CHROMIUM overrides the search."""
    named = os.environ.get("PE_CHROMIUM")
    names = [named] if named else ["/usr/bin/chromium", "chromium", "chromium-browser",
                                   "google-chrome", "google-chrome-stable"]  # fmt: skip
    return next((found for name in names if (found := shutil.which(name))), None)


def chromium() -> str:
    """Return the path of a Chromium; exit the program if there is none."""
    path = found_chromium()
    if path is None:
        raise SystemExit("no Chromium found: install one or name it in PE_CHROMIUM")
    return path


def pages_of(site: Path, every: bool) -> list[str]:
    """Return the pages of the site, with all pages of records or the first per study or task."""
    names = [
        path.relative_to(site).as_posix()
        for path in sorted(site.rglob("*.html"))
        if "_static" not in path.parts
    ]
    if every:
        return names
    seen: set[tuple[str, str]] = set()
    kept = []
    for name in names:
        parts = name.split("/")
        kind = ("", name)
        if len(parts) > 2 and parts[0] in ("runs", "tasks"):
            kind = (parts[1], parts[-1] if len(parts) > 3 else "")
        if kind not in seen:
            seen.add(kind)
            kept.append(name)
    return kept


def judge(page: Any, url: str, axe: str | None) -> dict[str, Any]:
    """Measure one page."""
    outside: list[str] = []
    errors: list[str] = []
    host = "/".join(url.split("/")[:3])
    page.on("request", lambda r: None if r.url.startswith((host, "data:", "blob:"))
            else outside.append(r.url))  # fmt: skip
    page.on("console", lambda m: errors.append(m.text) if m.type == "error" else None)
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.emulate_media(color_scheme=THEMES[0])
    page.goto(url, wait_until="load", timeout=90_000)
    page.wait_for_function(
        "!window.MathJax?.startup || MathJax.startup.promise.then(() => true)", timeout=90_000
    )
    result: dict[str, Any] = {"weight": page.evaluate(WEIGHT), "axe": {}, "overflow": {}}
    # While colours change from one theme to the other, they belong to neither.
    page.add_style_tag(content="*, ::before, ::after { transition: none !important; }")
    if axe:
        page.evaluate(axe)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900 if width > 600 else 740})
        result["overflow"][width] = page.evaluate(OVERFLOW)
        result.setdefault("cut", {})[width] = page.evaluate(CUT)
        if width == WIDTHS[-1]:
            result["small"] = page.evaluate(LETTERS)
        for theme in THEMES if axe else ():
            page.emulate_media(color_scheme=theme)
            result["axe"][f"{theme} {width}"] = page.evaluate(
                AXE.replace("RULES", AXE_RULES[theme])
            )
    return result | {"outside": outside, "errors": errors}


def faults(name: str, result: dict[str, Any]) -> list[str]:
    """Return the faults of a page, one line each."""
    found = [
        f"axe {where}: {one['rule']} ({one['impact']}), {one['count']} x, {one['nodes'][0]}"
        for where, all_of in result["axe"].items()
        for one in all_of
    ]
    found += [
        f"scrolls {by} px sideways at {width} px"
        for width, by in result["overflow"].items()
        if by > 0
    ]
    found += [f"letters of {size} px at 360 px: {what}" for what, size in result["small"]]
    found += [
        f"a figure is cut by {by} px at 1,280 px" for by in result["cut"][WIDTHS[0]]["figures"]
    ]
    weight = sum(size for kind, size in result["weight"].items() if kind != "mathjax")
    if weight > HEAVIEST:
        found.append(f"weighs {weight / 1e6:.2f} MB without MathJax: {result['weight']}")
    found += [f"asks another host: {url}" for url in result["outside"]]
    found += [f"console: {text}" for text in result["errors"]]
    return [f"{name}: {text}" for text in found]


def summary(results: dict[str, dict[str, Any]]) -> str:
    """Summarise the violations by rule, the heaviest pages, and what scrolls at 1,280 pixels."""
    lines = []
    for where in next(iter(results.values()))["axe"]:
        rules: Counter[str] = Counter()
        nodes: defaultdict[str, int] = defaultdict(int)
        for result in results.values():
            for one in result["axe"][where]:
                rules[one["rule"]] += 1
                nodes[one["rule"]] += one["count"]
        told = "; ".join(f"{rule}: {n} pages, {nodes[rule]} nodes" for rule, n in rules.items())
        lines.append(f"axe, {where} px, {len(results)} pages: {told or 'no violation'}")
    lines.append("The heaviest pages, MB:")
    for name, result in sorted(results.items(), key=lambda it: -sum(it[1]["weight"].values()))[:10]:
        weight = dict(sorted(result["weight"].items(), key=lambda it: -it[1]))
        parts = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in weight.items())
        lines.append(f"  {sum(weight.values()) / 1e6:5.2f}  {name}: {parts}")
    for kind in ("tables", "code", "formulas"):
        wide = {n: len(r["cut"][WIDTHS[0]][kind]) for n, r in results.items()}
        there = [f"{name} {count}" for name, count in wide.items() if count]
        lines.append(f"{kind} that scroll at 1,280 px: {sum(wide.values())} on {len(there)} pages")
    return "\n".join(lines)


def check(
    browser: Any, site: Path, names: list[str], axe: str | None
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Measure all pages and print their faults. Returns the measurements and the faults."""
    results: dict[str, dict[str, Any]] = {}
    wrong: list[str] = []
    with served(site) as address:
        context = browser.new_context()
        for name in names:
            page = context.new_page()
            results[name] = judge(page, f"{address}/{name}", axe)
            page.close()
            there = faults(name, results[name])
            wrong += there
            print("\n".join(there) or f"{name}: well", flush=True)
        context.close()
    return results, wrong


def main() -> int:
    """Check the site that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("site", type=Path, help="the built guide, _build/html")
    parser.add_argument("pages", nargs="*", help="only these, such as methods/rope.html")
    parser.add_argument("--axe", type=Path, help="axe.min.js of the npm package axe-core")
    parser.add_argument("--all", action="store_true", help="also every page of a record")
    parser.add_argument("--report", type=Path, help="where to write everything as JSON")
    options = parser.parse_args()
    from playwright.sync_api import sync_playwright

    axe = options.axe.read_text("utf-8") if options.axe else None
    names = options.pages or pages_of(options.site, options.all)
    start = time.monotonic()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        results, wrong = check(browser, options.site, names, axe)
        browser.close()
    print(f"\n{summary(results)}")
    print(f"{len(names)} pages in {time.monotonic() - start:.0f} s, {len(wrong)} faults")
    if options.report:
        options.report.write_text(json.dumps(results, indent=1))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
