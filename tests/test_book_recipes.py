"""The page "Data and recipes": its table of recipes, its variables, its way to use several GPUs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytest.importorskip("sphinx")

import book_recipes  # noqa: E402
import book_records  # noqa: E402

import pe  # noqa: E402
from pe.data.corpora import names, open_corpus  # noqa: E402
from pe.recipes.named import RECIPES  # noqa: E402
from pe.speed.record import Speed, find  # noqa: E402

PAGE = (ROOT / "book" / "data.md").read_text("utf-8")
INTERNAL = {"PE_COMMAND", "PE_GPU_MUTEX", "PE_RUN_DIR"}
"""Variables that one process of the package sets for another."""


def test_every_recipe_has_a_line_with_its_sizes() -> None:
    lines = book_records.lines(book_recipes.table({"demo": RECIPES["demo"]}, [], []))
    assert lines[-1] == [
        "`demo`", "1.3 M", "4 × 128", "256", "480", "1.0 M", *book_recipes.NOT_MEASURED,
        "`stdlib`",
    ]  # fmt: skip


def test_costs_are_those_of_records() -> None:
    runs = book_records.committed().complete()
    speeds = [Speed(run.read()) for run in find(ROOT / "runs")]
    demo, tiny, small = (book_recipes.cost(RECIPES[n], runs, speeds) for n in
                         ("demo", "tiny", "small"))  # fmt: skip
    assert "cores" in demo.where
    assert re.fullmatch(r"\d min \d\d s", demo.time)
    (record,) = (s for s in speeds if s.record["run"] == "h200-2")
    rate = record.result("rope", "train", 1024).tokens_per_second
    assert tiny.where == record.hardware["name"]
    assert float(tiny.time.removesuffix(" s")) == pytest.approx(1000 * 65536 / rate, abs=1)
    assert small == book_recipes.NOT_MEASURED


def test_the_page_has_every_variable_corpus_and_recipe() -> None:
    sources = "\n".join(path.read_text("utf-8") for path in (ROOT / "pe").rglob("*.py"))
    read = set(re.findall(r"\bPE_[A-Z_]+\b", sources)) - INTERNAL
    assert set(re.findall(r"^\| `(PE_\w+)`", PAGE, re.M)) == read
    for name in [*names(), *RECIPES]:
        assert f"`{name}`" in PAGE, name


def test_errors_of_corpora_and_recipes_name_the_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Data and recipes"):
        pe.recipe("dmeo")
    for corpus in ("fineweb-edux", str(tmp_path)):
        with pytest.raises(ValueError, match=r"book/data\.md") as caught:
            open_corpus(corpus)
        assert "\n" not in str(caught.value)
