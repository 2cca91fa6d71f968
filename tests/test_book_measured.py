"""What the pages of methods show of runs: the method's own, beside others of the same budget."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx")

import book_measured  # noqa: E402
import book_records  # noqa: E402
from book_studies import Studies  # noqa: E402

from pe.study.plan import load_plan  # noqa: E402


def studies(root: Path, small: list[str], large: list[str]) -> Studies:
    """Made-up records of the demo's four, of ``demo-every`` and of ``every``."""
    four = ["nope", "rope", "yarn", "pope"]
    for seed in (0, 1):
        for pe in four:
            book_records.write(root, pe, seed, study="demo")
    for study, names in (("scaffold-seeds", four), ("demo-every", small), ("every", large)):
        for pe in names:
            book_records.write(root, pe, 0, study=study)
    return Studies.load(root, root, "demo")


def test_a_method_stands_beside_others_of_its_budget_on_the_seed_that_they_share(
    tmp_path: Path,
) -> None:
    made = studies(tmp_path, ["kerple_log", "kerple_power", "t5"], [])
    rows = book_measured.found(made, "kerple")
    assert list(rows) == ["demo-every"]
    own, beside = rows["demo-every"]
    assert [row.label for row in own] == ["kerple_log", "kerple_power"]
    assert [(row.label, len(row.runs)) for row in beside] == [
        ("nope", 2), ("rope", 2), ("yarn", 2), ("pope", 2),
    ]  # fmt: skip
    text = book_measured.text("kerple", rows, {})
    assert "```{picture} demo-every-kerple" in text
    lines = [line[:2] for line in book_records.lines(text)]
    assert lines[1] == ["KERPLE (log)", "0"]
    assert ["RoPE", "0"] in lines
    assert ["*RoPE, mean of 2 seeds*", "0, 1"] in lines
    assert "compared on seed 0" in text
    assert "its next one would lie between" in text
    assert "All rows have the learning rate" in text


def test_both_budgets_are_shown_and_the_larger_comes_first(tmp_path: Path) -> None:
    made = studies(tmp_path, ["t5"], ["t5"])
    assert list(book_measured.found(made, "t5")) == ["every", "demo-every"]
    drawn = book_measured.figures_of(made)
    assert set(drawn) == {"every-t5", "demo-every-t5", "every-reach", "demo-every-reach"}
    runs, draw = drawn["demo-every-t5"]
    assert {run.study for run in runs} == {"demo", "demo-every"}
    (axes,) = draw().axes
    widths = {line.get_label(): line.get_linewidth() for line in axes.lines}
    assert widths["T5"] > widths["RoPE"], "the page's own method is drawn strongly"


def test_a_method_that_no_study_has_trained_says_how_to(tmp_path: Path) -> None:
    made = studies(tmp_path, [], [])
    assert book_measured.found(made, "kerple") == {}
    text = book_measured.text("kerple", {}, {})
    assert "`-p pe kerple_log` or `-p pe kerple_power`" in text


def test_a_sum_is_on_the_page_of_each_of_its_parts_that_has_one(tmp_path: Path) -> None:
    made = studies(tmp_path, ["alibi", "rope+alibi"], [])
    own, _ = book_measured.found(made, "alibi")["demo-every"]
    assert [row.label for row in own] == ["rope+alibi", "alibi"]


def test_the_block_belongs_on_a_method_s_page(monkeypatch: pytest.MonkeyPatch) -> None:
    block = object.__new__(book_measured.Measured)
    block.state = SimpleNamespace(  # type: ignore[assignment]
        document=SimpleNamespace(settings=SimpleNamespace(env=SimpleNamespace(docname="speed")))
    )
    said: list[str] = []
    monkeypatch.setattr(block, "warn", lambda message: said.append(message) or [])
    assert block.run() == []
    assert "page of a method" in said[0]


def test_the_block_may_show_one_study_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = object.__new__(book_measured.Measured)
    block.state = SimpleNamespace(  # type: ignore[assignment]
        document=SimpleNamespace(
            settings=SimpleNamespace(env=SimpleNamespace(docname="methods/t5"))
        )
    )
    book = SimpleNamespace(studies=studies(tmp_path, ["t5"], ["t5"]), pages=lambda rows: {})
    monkeypatch.setattr(book_measured.Measured, "book", book)
    monkeypatch.setattr(block, "markdown", lambda text: [text])
    monkeypatch.setattr(block, "warn", lambda message: [message])
    shown = {}
    for arguments in ([], ["every"], ["everything"]):
        block.arguments = arguments
        (shown[tuple(arguments)],) = block.run()  # type: ignore[assignment]
    assert "```{picture} demo-every-t5" in shown[()]
    assert "```{picture} every-t5" in shown["every",]
    assert "demo-every-t5" not in shown["every",]
    assert shown["everything",] == (
        "measured shows the study every or demo-every, not 'everything'"
    )


def test_every_encoding_of_the_study_is_shown_on_a_page() -> None:
    for entry in load_plan("demo-every"):
        pages = {book_measured.pages()[name] for name in entry.recipe.pe.split("+")} - {None}
        texts = [(ROOT / "book" / "methods" / f"{page}.md").read_text() for page in pages]
        assert any("```{measured}" in text for text in texts), entry.label
