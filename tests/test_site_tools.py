"""The tools that check and print the built guide, on a site of two pages."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<link rel="icon" href="data:,"></head>
<body><main><article class="bd-article">{body}</article></main></body></html>"""


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """check_site and print_guide, loaded from tools/."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    loaded = {}
    for name in ("check_site", "print_guide"):
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None and spec.loader is not None  # noqa: PT018
        loaded[name] = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, loaded[name])
        spec.loader.exec_module(loaded[name])
    return loaded


def write(site: Path, **bodies: str) -> Path:
    for name, body in bodies.items():
        (site / f"{name}.html").write_text(PAGE.format(title=name, body=body))
    return site


@pytest.mark.browser
def test_faults_of_a_page_are_named(
    tools: dict[str, ModuleType], browser: Any, tmp_path: Path
) -> None:
    (tmp_path / "small.svg").write_text(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 800 100" width="800" height="100">'
        '<text y="50" style="font: 10px sans-serif">ten</text></svg>'
    )
    picture = '<div class="pe-pair"><img alt="" style="width: {}px" src="small.svg"></div>'
    write(
        tmp_path,
        well="<h1>One</h1><p>Two</p>",
        wide='<div style="width: 500px">500</div>',
        small=picture.format(320) + '<p style="font-size: 7px">seven</p>',
        cut=picture.format(1900).replace("pe-pair", 'pe-pair" style="overflow-x: auto'),
        broken="<script>throw new Error('gone')</script>",
    )
    check = tools["check_site"]
    names = check.pages_of(tmp_path, every=False)
    _, wrong = check.check(browser, tmp_path, names, axe=None)
    told = "\n".join(wrong)
    assert "well.html" not in told
    assert re.search(r"wide.html: scrolls 1\d\d px sideways at 360 px", told)
    assert "small.html: letters of 4 px at 360 px: small.svg" in told
    assert "small.html: letters of 7 px at 360 px: P: seven" in told
    assert re.search(r"cut.html: a figure is cut by \d+ px at 1,280 px", told)
    assert "broken.html: console: gone" in told


def test_one_page_of_a_record_stands_for_its_study_or_task(
    tools: dict[str, ModuleType], tmp_path: Path
) -> None:
    records = ("runs/demo/a/train", "runs/demo/b/train", "runs/every/c/record")
    for name in (
        "index",
        *records,
        "tasks/copy-1/alibi",
        "tasks/copy-1/rope",
        "tasks/match-2/rope",
    ):
        path = tmp_path / f"{name}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    pages = tools["check_site"].pages_of
    assert len(pages(tmp_path, every=True)) == 7
    assert not {"runs/demo/b/train.html", "tasks/copy-1/rope.html"} & {
        *pages(tmp_path, every=False)
    }
    assert len(pages(tmp_path, every=False)) == 5


@pytest.mark.browser
def test_the_pdf_has_every_chapter_where_its_contents_say(
    tools: dict[str, ModuleType], browser: Any, tmp_path: Path
) -> None:
    long = "<p>word</p>" * 200
    solution = "<details><summary>Solution</summary><p>Forty-two.</p></details>"
    write(tmp_path, first=f"<h1>First</h1>{long}", second=(
        '<h1>Second</h1><p>See <a href="first.html">first</a>, <a href="runs/x.html">a run</a>.</p>'
        f"{solution}"
    ))  # fmt: skip
    printer = tools["print_guide"]
    chapters = [printer.Chapter("first", "A part"), printer.Chapter("second", None)]
    text = printer.assemble(tmp_path, chapters, {"author": "The authors"})
    assert '<a href="#first">first</a>' in text
    assert "<a>a run</a>" in text, "what is only on the website is no link"
    assert '<details open="">' in text
    pdf = printer.print_guide(browser, tmp_path, chapters, {"author": "The authors"})
    assert pdf.startswith(b"%PDF")
    numbers = printer.page_numbers(pdf)
    assert numbers["first"] == 3, "after cover and contents"
    assert numbers["second"] == printer.pages_in(pdf) > 4
