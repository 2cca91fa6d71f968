"""The pages of the scaffold study: numbers come from records, rows and figures name runs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path

import book_site
import pytest
import yaml
from bs4 import BeautifulSoup

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "book" / "_ext"))
from book_explorer_data import Pages  # noqa: E402
from book_numbers import look_up  # noqa: E402
from book_pictures import record_figures  # noqa: E402
from book_record_pages import record_page  # noqa: E402
from book_studies import Studies  # noqa: E402

from pe.recipes.named import recipe as named_recipe  # noqa: E402

STUDIES = Studies.load(ROOT / "runs", ROOT / "runs", "demo")
PAGES = (
    "scaffold", "seeds", "paper", "extended", "finetuned", "every", "dropped", "rerun", "tasks",
)  # fmt: skip


def recorded(label: str) -> tuple[dict, dict]:
    """run.json and evaluation.json of a row, read without the code under test."""
    folder = ROOT / "runs" / "scaffold" / STUDIES.rows("scaffold")[label].runs[0].name
    return (json.loads((folder / f"{name}.json").read_text()) for name in ("run", "evaluation"))  # type: ignore[return-value]


def test_numbers_of_a_study_are_asked_for_by_the_names_of_its_yaml() -> None:
    record, evaluation = recorded("rope-dropped-at-10")
    assert (record["pe"], record["parent"]["step"]) == ("nope", 5000)
    wanted = evaluation["perplexity"]["4096"]["value"]
    assert look_up(STUDIES, "scaffold/rope-dropped-at-10.ppl@4x") == f"{wanted:,.0f}"
    assert look_up(STUDIES, "scaffold/rope-dropped-at-10.recipe.start_step") == "5,000"
    assert look_up(STUDIES, "scaffold/rope-dropped-at-10.title") == "RoPE, dropped at 5,000"
    right = sum(evaluation["retrieval"]["tasks"]["needle"]["1024"]["exact"])
    text = look_up(STUDIES, "scaffold/rope-dropped-at-10.needle@1x")
    assert re.fullmatch(rf"{100 * right / 110:.0f}% \(\d+–\d+\)", text)
    assert look_up(STUDIES, "scaffold/rope-dropped-at-10.needle@1x:.0%") == f"{right / 110:.0%}"
    before = float(look_up(STUDIES, "scaffold/rope-dropped-at-10.before"))
    assert before > float(look_up(STUDIES, "scaffold/rope-dropped-at-10.validation_loss")) + 1
    fit = evaluation["tempered"]["fit"]["value"]
    assert look_up(STUDIES, "scaffold/rope-dropped-at-10.c") == f"{fit:.2f}"


def test_extensions_ratios_and_facts_of_the_study() -> None:
    cells = json.loads(
        next((ROOT / "runs" / "scaffold").glob("rope-*/extension.json")).read_text()
    )["cells"]
    value = cells["yarn@4"]["perplexity"]["4096"]["value"]
    assert look_up(STUDIES, "scaffold/rope.extension.yarn@4.ppl@4x:.3f") == f"{value:.3f}"
    ratio = look_up(STUDIES, "scaffold/rope.ppl@2x / scaffold/rope.ppl@1x:.2f")
    _, evaluation = recorded("rope")
    losses = evaluation["perplexity"]
    assert ratio == f"{losses['2048']['value'] / losses['1024']['value']:.2f}"
    assert look_up(STUDIES, "scaffold/study.runs") == "10"
    assert look_up(STUDIES, "scaffold/study.prompts") == "110"
    assert look_up(STUDIES, "scaffold/study.control_prompts") == f"{10 * 2 * 5 * 2 * 110:,}"
    assert look_up(STUDIES, "order.ppl@16x") == "PoPE ≈ RoPE ≈ NoPE < YaRN"
    with pytest.raises(ValueError, match="rows of one seed each are not ranked"):
        look_up(STUDIES, "scaffold/order.ppl@16x")
    with pytest.raises(ValueError, match="has no run of seed '7'"):
        look_up(STUDIES, "rope#7.ppl@1x")


def test_comparisons_are_words_and_never_call_overlap_a_difference() -> None:
    assert re.fullmatch(
        r"(lower|higher) by \d[\d.]*% \([\d.]+ to [\d.]+%\)",
        look_up(STUDIES, "scaffold/rope vs nope.ppl@1x"),
    )
    assert look_up(STUDIES, "scaffold/rope vs rope.ppl@1x") == "no difference shown"
    for key in re.findall(r"\{record\}`(scaffold/\S+ vs [^`]+)`", page("scaffold")):
        look_up(STUDIES, key)


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("scaffold/rope-dropped-at-11.ppl@1x", "rope-dropped-at-1"),
        ("scaffold/rope.extension.yarn@5.ppl@4x", "yarn@"),
        ("scaffold/nope.extension.yarn@4.ppl@4x", r"extension\.json"),
        ("scaffold/rope.recipe.learning_rte", "learning_rate"),
        ("scaffold/rope vs rpoe.ppl@1x", "'rope'"),
        ("scaffold/rope.before", "first step"),
        ("scaffold/rope.title:.2f", "no number"),
    ],
)
def test_a_key_that_is_not_there_names_the_nearest(key: str, hint: str) -> None:
    with pytest.raises(ValueError, match=hint):
        look_up(STUDIES, key)


def page(name: str) -> str:
    return (ROOT / "book" / f"{name}.md").read_text("utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_no_result_is_typed_into_the_pages(name: str) -> None:
    """What is left when roles, code, formulas and multiples are taken out holds no measurement."""
    made = (
        "study-table|scaling|dropping-table|kept-and-dropped|missing-runs|extension|rerun|fine-tuned|"
        "settings|tasks"
    )
    text = re.sub(rf"```\{{({made})\}}.*?```", "", page(name), flags=re.S)
    text = re.sub(r"^(:(alt|name|class|columns):.*|```\{picture\} \S+)$", "", text, flags=re.M)
    text = re.sub(r"`{3,}", "", re.sub(r"```bash.*?```", "", text, flags=re.S))
    text = re.sub(r"\{[a-z:-]+\}`[^`]*`|`[^`]*`|\$[^$]*\$|\(arXiv:[\d.]+\)", "", text)
    text = re.sub(r"\d+×|95%|\b100,000\b|factors? \d+|position 0|Llama 3|\bT5\b", "", text)
    left = re.findall(r"\d[\d.,]*", text)
    assert set(left) <= {"4"}, left  # the factor 4, explained as an example


def test_every_figure_of_the_study_is_drawn_from_its_runs() -> None:
    figures = record_figures(STUDIES)
    shown = re.findall(r"```\{picture\} (scaffold-\S+)", page("scaffold") + page("extended"))
    assert len(shown) == 6
    for name in shown:
        runs, _ = figures[name]
        assert len(runs) == (1 if "extension" in name else 10)


def test_the_built_tables_hold_the_records(site: Path) -> None:
    soup = BeautifulSoup((site / "scaffold.html").read_text("utf-8"), "html.parser")
    tables = soup.select(".pe-results table")
    rows = STUDIES.rows("scaffold")
    first = [
        [cell.get_text().strip() for cell in line.find_all(["td", "th"])]
        for line in tables[0].find_all("tr")
    ]
    assert [line[0] for line in first[1:-1]] == [row.title for row in rows.values()]
    for line, label in zip(first[1:-1], rows, strict=True):
        _, evaluation = recorded(label)
        wanted = [cell["value"] for cell in evaluation["perplexity"].values()]
        for text, value in zip(line[2:], wanted, strict=True):
            if value > 16384:
                assert text == "worse than guessing"
            else:
                assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
    links = {a["href"] for a in tables[0].find_all("a")}
    assert links == {f"runs/scaffold/{row.runs[0].name}/train.html" for row in rows.values()}
    for figure in soup.select("article figure"):
        (caption,) = figure.select("figcaption")
        assert "Runs: scaffold/" in caption.get_text()


def test_every_row_can_be_run_again_from_its_page(site: Path) -> None:
    words = book_site.text(site / "rerun.html")
    for study in ("scaffold", "scaffold-seeds", "demo", "tiny"):
        for run in STUDIES.runs[study]:
            record = run.read()
            assert " ".join(record["command"].split()) in words
            assert f"git checkout {record['code']['commit'][:12]}" in words
    extended = book_site.text(site / "extended.html")
    assert "YaRN + Resonance" in extended


def test_the_page_of_a_record_has_the_command_that_repeats_the_run() -> None:
    pages = Pages(ROOT / "book")
    for study in ("every", "rates"):
        run = STUDIES.runs[study][0]
        soup = BeautifulSoup(record_page(run, pages), "html.parser")
        (lines,) = (pre.get_text() for pre in soup.find_all("pre"))
        commit, command = lines.split("\n")
        assert commit == f"git checkout {run.read()['code']['commit'][:12]}"
        assert command.startswith("papermill notebooks/train.ipynb -y ")
        values = yaml.safe_load(shlex.split(command)[3])
        assert values.pop("study") == study
        made = named_recipe(values.pop("recipe"), **values.pop("overrides"), **values)
        assert made.config_hash() == run.read()["config_hash"]
