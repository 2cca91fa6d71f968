"""A Chromium and the guide's site for tests in a browser: one of each per session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import check_site


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = check_site.found_chromium()
    if path is None:
        pytest.skip("no Chromium found: install one or name it in PE_CHROMIUM")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=check_site.FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    with check_site.served(site) as served:
        yield served


class Visit:
    """One page in a fresh context, with everything it complained about or asked for."""

    def __init__(self, browser: Any, url: str, **options: Any) -> None:
        self.outside: list[str] = []
        self.errors: list[str] = []
        host = "/".join(url.split("/")[:3])
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.on("request", lambda r: None if r.url.startswith((host, "data:"))
                     else self.outside.append(r.url))  # fmt: skip
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.go(url)

    def go(self, url: str) -> None:
        """Open an address and wait for its formulas; what the page before complained of is gone.

        A page in the tab of another starts no process and compiles no scripts once more.
        """
        self.outside.clear()
        self.errors.clear()
        self.page.goto(url)
        self.page.wait_for_function(
            "!window.MathJax?.startup || MathJax.startup.promise.then(() => true)", timeout=30_000
        )

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def overflow(self) -> int:
        """Pixels by which the page is wider than its window."""
        return int(
            self.page.evaluate("(e => e.scrollWidth - e.clientWidth)(document.scrollingElement)")
        )
