"""The table of encodings: made from the registry, right where it can be known otherwise."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import speed_records

from pe.conformance import LAWS
from pe.encodings import list_encodings
from pe.speed.record import Speed

ROOT = Path(__file__).parents[1]
import book_costs  # noqa: E402
import book_encodings  # noqa: E402

ROWS = {row.name: row for row in book_encodings.rows()}


def test_every_encoding_has_a_row() -> None:
    assert set(ROWS) == set(list_encodings())
    text = book_encodings.markdown(list(ROWS.values()))
    assert text.count("\n") == len(ROWS) + 1
    assert all(line.count("|") == text.splitlines()[0].count("|") for line in text.splitlines())


@pytest.mark.parametrize(
    ("name", "place", "relative", "learned", "cached", "longest"),
    [
        ("nope", "nothing", True, 0, "raw", None),
        ("rope", "q, k", True, 0, "rotated", None),
        ("yarn", "frequencies", True, 0, "rotated", None),
        ("pope", "q, k", True, 6 * 8 * 64, "rotated, 2d wide", None),
        ("alibi", "logits", True, 0, "raw", None),
        ("t5", "logits", True, 32 * 8, "raw", None),
        ("learned", "embeddings", False, 1024 * 512, "raw", 1023),
        ("dynamic_ntk", "frequencies", False, 0, "raw", None),
        ("ssmax", "scale", False, 6 * 8, "raw", None),
    ],
)
def test_rows_that_are_known(
    name: str, place: str, relative: bool, learned: int, cached: str, longest: int | None
) -> None:
    row = ROWS[name]
    found = (row.place, row.relative, row.learned, row.cached, row.longest)
    assert found == (place, relative, learned, cached, longest)


def test_a_term_of_the_layer_input_looks_at_the_content() -> None:
    assert ROWS["fox"].content
    assert ROWS["relative_content"].content
    assert ROWS["cope"].content
    assert not ROWS["alibi"].content
    assert not ROWS["rope"].content


def test_pages_and_papers_exist() -> None:
    keys = re.findall(r"@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text())
    for row in ROWS.values():
        assert row.page is None or (ROOT / "book" / "methods" / f"{row.page}.md").exists()
        assert row.paper is None or row.paper in keys
    assert ROWS["kerple_log"].page == ROWS["kerple_power"].page == "kerple"
    assert ROWS["rope"].paper == "su2021"


def test_the_page_of_an_encoding_is_its_own_where_another_shows_its_file_too() -> None:
    assert ROWS["rope"].page == "rope"  # multiscale_rope.md shows a function of rope.py


def test_sentences_of_laws_fit_into_a_table() -> None:
    for law in LAWS.values():
        assert "|" not in law.sentence
        assert len(law.sentence) < 80


def test_a_page_says_which_sums_the_package_accepts_and_why_it_refuses_others() -> None:
    text = book_costs.combinations(["pope"])
    assert "`pope+alibi`" in text.splitlines()[0]
    assert "- Refused: `pope+yarn`, because yarn changes RoPE's frequencies" in text
    assert book_costs.combinations(["nope"]).count("Refused") == 1, "one reason, one line"
    same = book_costs.combinations(["binary", "binary_norm"])
    assert "`binary` combines" in same
    assert "`binary_norm` combines" not in same, "what is equal is said once"


def test_an_encoding_that_combines_with_nothing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = [book_costs.Sum("pope+fox", "fox", "it is refused")]
    monkeypatch.setattr(book_costs, "sums", lambda name: refused)
    assert book_costs.combinations(["pope"]).splitlines()[0] == "- Combines with none of them."


def test_costs_come_from_the_registry_and_the_speed_record() -> None:
    unmeasured = book_costs.costs(["yarn"], None)
    assert [cell.strip() for cell in unmeasured.splitlines()[0].split("|")[1:-1]] == [
        "", "NoPE", "RoPE", "YaRN",
    ]  # fmt: skip
    assert "has not been measured" in unmeasured
    speed = Speed(speed_records.record())
    text = speed_records.squeezed(book_costs.costs(["pope"], speed))
    assert "| learned numbers in 6 layers | 0 | 3,072 |" in text
    assert "| training speed, 16,384 tokens | 1.00 | 0.85 |" in text


def test_no_method_page_types_costs_or_combinations_that_the_package_knows() -> None:
    pages = sorted((ROOT / "book" / "methods").glob("*.md"))
    for page in pages:
        text = page.read_text("utf-8")
        made = text.count("```{costs}"), text.count("```{combines}")
        assert made == ((0, 0) if page.stem == "index" else (1, 1)), page.name
        cost = text.partition("## Cost\n")[2].partition("\n## ")[0]
        assert "| " not in cost, f"{page.name}: a table of costs is typed"
