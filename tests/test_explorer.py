"""The explorers: the numbers of the browser are the package's, and a reader can use both."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import book_explorer
import book_explorer_data
import book_records
import pytest
import torch
from book_browser import Visit
from book_numbers import look_up
from book_studies import Studies
from bs4 import BeautifulSoup

from pe.encodings import encoding, extension_methods
from pe.encodings.core.extension import Rotary, extension_method
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.self_extend import SelfExtend
from pe.pretrained.methods import first_new
from pe.pretrained.rope import turns

ROOT = Path(__file__).resolve().parent.parent
CODE = book_explorer.CODE / "explorer"
PAGES = book_explorer_data.Pages(ROOT / "book")
METHODS = extension_methods()

MODELS = [
    {"theta": 10000.0, "dim": 64, "trained": 64, "length": 192},
    {"theta": 500000.0, "dim": 8, "trained": 96, "length": 200},
    {"theta": 100.0, "dim": 32, "trained": 80, "length": 80},
]


def grid() -> list[dict[str, Any]]:
    """Settings of all methods; a base that no factor leads to is asked for in its own test."""
    return [
        model | {"method": method, "factor": factor, "window": window}
        for model in MODELS
        for method in ["", *METHODS]
        for factor, window in ((4.0, 0), (6.5, 48), *([(1.0, 0)] if model is MODELS[1] else []))
        if method != "abf" or model["theta"] > 100
    ]


class Package(NamedTuple):
    """What the package has for some settings."""

    inv_freq: torch.Tensor
    magnitude: float
    distances: torch.Tensor
    """As the last token and the token so far before it are rotated."""
    logits: list[float]
    """Of a query and a key whose channels are all equal, by distance."""


def of_the_package(s: dict[str, Any]) -> Package:
    spec, options = "rope", {}
    if s["method"]:
        method = extension_method(s["method"])
        rope = Rotary(s["theta"], s["dim"], s["trained"])
        spec, options = method.spec, method.options(rope, s["factor"])
    enc = encoding(
        spec, head_dim=s["dim"], num_heads=1, original_length=s["trained"],
        **{"theta": s["theta"]} | options,
    )  # fmt: skip
    spectrum = enc.frequencies(torch.tensor(s["length"]))
    ones = torch.ones(1, 1, s["length"], s["dim"], dtype=torch.float64)
    positions = distances = torch.arange(s["length"])
    q, k = enc.rotate(ones, ones, positions, positions)
    logits = k[0, 0] @ q[0, 0, -1] / s["dim"]
    if isinstance(enc, SelfExtend):
        bias = enc.bias(ones, ones, positions, positions)[0, 0, -1]
        logits = logits + bias / math.sqrt(s["dim"])
        of_q, of_k = enc.grouped(positions, positions)
        far = (of_q[-1] - of_k).flip(0)
        distances = torch.where(distances < enc.neighbor_window, distances, far)
    return Package(spectrum.inv_freq, float(spectrum.magnitude), distances, logits.flip(0).tolist())


@pytest.fixture(scope="module")
def script(browser: Any) -> Any:
    """An empty page that has the formulas."""
    page = browser.new_page()
    page.add_script_tag(path=str(CODE / "encodings.js"))
    yield page
    page.close()


@pytest.mark.browser
def test_frequencies_angles_logits_and_temperature_are_the_package_s(script: Any) -> None:
    cases = grid()
    found = script.evaluate(
        """cases => cases.map(s => {
          const r = window.peEncodings.compute(s);
          const logits = Array.from({length: s.length}, (_, d) =>
            window.peEncodings.logit(r.frequencies, r.magnitude, r.distance(d)));
          const firstNew = r.firstNew.map(String);
          return {...r, distance: null, firstNew, logits_by_distance: logits};
        })""",
        cases,
    )
    for s, ours in zip(cases, found, strict=True):
        theirs = of_the_package(s)
        close = {"rel": 1e-9, "abs": 1e-12}
        assert ours["frequencies"] == pytest.approx(theirs.inv_freq.tolist(), **close), s
        assert ours["magnitude"] == pytest.approx(theirs.magnitude, **close), s
        assert ours["logits"] == pytest.approx(theirs.magnitude**2, **close), s
        assert ours["logits_by_distance"] == pytest.approx(theirs.logits, abs=1e-6), s
        seen = base_frequencies(s["dim"], s["theta"]).inv_freq
        window = s["window"] or math.inf
        trained, reach = int(min(s["trained"], window)), int(min(s["length"], window))
        made, furthest = turns(seen, trained), int(theirs.distances[reach - 1])
        assert ours["furthest"] == furthest, s
        assert ours["turns"] == pytest.approx(made.tolist(), **close), s
        assert ours["completed"] == int((made >= 1).sum()), s
        there = turns(theirs.inv_freq, furthest + 1)
        assert ours["turnsAtLength"] == pytest.approx(there.tolist(), **close), s
        new = first_new(seen, theirs.inv_freq, trained, furthest + 1)
        first = [
            float((theirs.distances >= one).nonzero()[0]) if one.isfinite() else math.inf
            for one in new
        ]
        assert [float(one.replace("Infinity", "inf")) for one in ours["firstNew"]] == first, s
        assert ours["unseen"] == sum(map(math.isfinite, first)), s


@pytest.mark.browser
def test_every_way_to_extend_a_model_is_in_the_explorer(script: Any) -> None:
    known = script.evaluate("Object.keys(window.peEncodings.METHODS)")
    offered = [method["name"] for method in book_explorer.rotary_settings()["methods"]]
    assert set(known) == set(offered) == {"", *METHODS}


@pytest.mark.browser
@pytest.mark.parametrize(
    ("wrong", "word"),
    [({"dim": 7}, "even"), ({"theta": 1}, "Base"), ({"factor": 0.5}, "Factor"),
     ({"window": 1.5}, "Window"), ({"method": "abf", "theta": 100, "trained": 1024}, "base")],
)  # fmt: skip
def test_a_wrong_setting_is_named(script: Any, wrong: dict[str, Any], word: str) -> None:
    settings = MODELS[0] | {"method": "yarn", "factor": 4.0, "window": 0} | wrong
    message = script.evaluate(
        "s => { try { peEncodings.compute(s); } catch (e) { return e.message; } }", settings
    )
    assert word in message


@pytest.fixture(scope="module")
def studies() -> Studies:
    return book_records.committed()  # type: ignore[no-any-return]


def test_cells_are_those_of_prose_and_tables(studies: Studies) -> None:
    study = "dropping"
    rows = dict(list(studies.rows(study).items())[:4])
    data = book_explorer_data.study_set(study, [study], list(rows.values()), PAGES)
    shown = {row["label"]: row for row in data["rows"] if "a" in row["views"]}
    assert shown.keys() == rows.keys()
    checked = 0
    for quantity in data["quantities"]:
        for label, row in shown.items():
            for i, cell in enumerate(row["cells"].get(quantity["key"], [])):
                place = f"@{quantity['lengths'][i]['at']:g}x" if quantity["lengths"] else ""
                if cell and len(cell) > 1:
                    assert cell[0] == look_up(studies, f"{study}/{label}.{quantity['key']}{place}")
                    checked += 1
    assert checked > 40


def test_a_mean_stands_beside_means_of_the_same_seeds(studies: Studies) -> None:
    names = ["demo", "demo-every"]
    assert names in book_explorer_data.together(
        {n: list(studies.rows(n).values()) for n in studies.runs}
    )
    rows = [row for name in names for row in studies.rows(name).values()]
    data = book_explorer_data.study_set("both", names, rows, PAGES)
    assert {tuple(row["seeds"]) for row in data["rows"] if "c" in row["views"]} == {(0,)}
    every = [row for row in data["rows"] if "e" in row["views"] and row["pe"] == "rope"]
    assert [row["seeds"] for row in every] == [[0], [1], [2]]


def test_the_data_of_the_site_hold_every_complete_run(site: Path, studies: Studies) -> None:
    folder = site / "explorer"
    listed = json.loads((folder / "data.js").read_text("utf-8").partition(" = ")[2].rstrip(";\n"))
    sets = [
        json.loads((folder / one["file"]).read_text("utf-8").partition("(")[2].rstrip(");\n"))
        for one in listed["sets"]
    ]
    pages = {run["name"]: run["page"] for one in sets for run in one["runs"]}
    for run in studies.complete():
        if run.study != "local":
            assert (site / pages[f"{run.study}/{run.name}"]).exists()
    for one in sets:
        assert (site / one["page"]).exists()
        keys = [(row["key"], view) for row in one["rows"] for view in row["views"]]
        assert len(keys) == len(set(keys)), one["name"]


PHONE = {"viewport": {"width": 360, "height": 740}, "color_scheme": "dark"}


def fits(page: Any) -> bool:
    """Whether no letter of any chart is smaller than 9 pixels."""
    sizes = page.locator(".pe-x-chart text").evaluate_all(
        "ts => ts.map(t => parseFloat(getComputedStyle(t).fontSize) "
        "* t.ownerSVGElement.getBoundingClientRect().width "
        "/ t.ownerSVGElement.viewBox.baseVal.width)"
    )
    return bool(sizes) and min(sizes) >= 9


@pytest.mark.browser
def test_results_are_chosen_sorted_filtered_and_opened_on_a_phone_and_from_the_disk(
    browser: Any, site: Path
) -> None:
    address = (site / "explorer.html").as_uri() + "#study=dropping&quantity=ppl"
    with Visit(browser, address, **PHONE) as visit:
        page = visit.page
        page.wait_for_selector(".pe-x-point", state="attached")
        assert page.locator(".pe-x-chart .pe-x-point").count() > 20
        assert visit.overflow() <= 0
        assert fits(page)
        page.locator(".pe-x-table thead button").nth(2).click()
        assert page.locator(".pe-x-table th[aria-sort=ascending]").count() == 1
        values = page.locator(".pe-x-table tbody tr td:nth-child(3)").all_inner_texts()
        assert values == sorted(values, key=lambda v: float(v.split()[0].replace(",", "")))
        page.locator(".pe-x input[type=search]").fill("yarn")
        titles = page.locator(".pe-x-table tbody th").all_inner_texts()
        assert titles
        assert all("YaRN" in title for title in titles)
        assert f"{len(titles)} row" in page.locator(".pe-x-status").inner_text()
        page.locator("[data-key=length]").select_option("2")
        assert "length=2" in page.url
        page.locator("[data-key=length]").select_option("")
        page.locator(".pe-x-point[tabindex='0']").focus()
        first = page.locator(".pe-x-tip").inner_text()
        assert "dropping/" in first, "hovering and the keyboard name the record"
        page.keyboard.press("ArrowRight")
        assert page.locator(".pe-x-tip").inner_text() != first
        page.keyboard.press("Enter")
        page.wait_for_url("**/runs/dropping/**", timeout=5_000)
        assert page.locator("h1").count() == 1
        assert not visit.errors


@pytest.mark.browser
def test_an_address_opened_over_another_view_is_followed(browser: Any, site: Path) -> None:
    with Visit(browser, (site / "explorer.html").as_uri(), **PHONE) as visit:
        study = visit.page.locator("select[data-key=study]")
        other = study.locator("option").nth(2).get_attribute("value")
        visit.page.evaluate("name => { location.hash = new URLSearchParams({study: name}) }", other)
        visit.page.wait_for_function(
            "name => document.querySelector('select[data-key=study]')?.value === name", arg=other
        )


@pytest.mark.browser
def test_another_method_changes_what_was_never_seen(browser: Any, site: Path) -> None:
    with Visit(browser, (site / "comparisons/explorer.html").as_uri(), **PHONE) as visit:
        assert visit.overflow() <= 0
        assert fits(visit.page)
        status = visit.page.locator(".pe-x-status")
        assert "the first at distance" in status.inner_text()
        visit.page.get_by_label("Method").select_option("yarn")
        assert "No frequency reaches" in status.inner_text()
        visit.page.get_by_label("Rotated channels per head", exact=True).fill("7")
        assert "even number" in visit.page.locator(".pe-x-error").inner_text()
        assert not visit.errors


@pytest.mark.parametrize("name", ["explorer", "comparisons/explorer"])
def test_without_scripts_a_picture_is_in_the_place_of_an_explorer(site: Path, name: str) -> None:
    soup = BeautifulSoup((site / f"{name}.html").read_text("utf-8"), "html.parser")
    light, dark = soup.select(".pe-x .pe-pair img")
    assert len(light["alt"]) > 40
    assert "only-dark" in dark["class"]
    css = (site / "_static" / "pe.css").read_text()
    assert 'html[data-theme="auto"] .only-dark:not(#x) { display: none' in css
