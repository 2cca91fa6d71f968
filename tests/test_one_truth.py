"""One quantity of the same runs is one number, whichever table, figure or sentence shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import book_records
import numpy as np
import pytest
from book_records import committed

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx")

import book_every  # noqa: E402
import book_measured  # noqa: E402
import book_tables  # noqa: E402
from book_numbers import look_up  # noqa: E402
from book_pictures import record_figures  # noqa: E402

from pe.figures import reach as figures_reach  # noqa: E402
from pe.results.rows import Row, comparable  # noqa: E402
from pe.speed import tables  # noqa: E402
from pe.speed.record import Speed  # noqa: E402

FOUR = ("nope", "rope", "yarn", "pope")
MULTIPLES = (1, 2, 4, 8, 16)


def said(study: str, row: str) -> list[str]:
    """What prose says of a row at each length: ``22.4 (21.0–24.0)``."""
    return [look_up(committed(), f"{study}/{row}.ppl@{m}x") for m in MULTIPLES]


def table(study: str, **more: str) -> dict[tuple[str, str], list[str]]:
    """By title and seeds, the cells of a study's table as prose writes them."""
    text = book_tables.study_table(committed().rows(study), {}, ["ppl"], [], {}, **more)  # type: ignore[arg-type]
    lines = book_records.lines(text)[1:]
    return {(a, b): [c.replace("<br>", " ") for c in cells] for a, b, *cells in lines}


@pytest.mark.parametrize("study", ["demo", "scaffold", "scaffold-seeds", "extend"])
def test_prose_and_the_study_s_table_agree(study: str) -> None:
    shown = table(study)
    for row in committed().rows(study).values():
        cells = shown[row.title, ", ".join(map(str, row.seeds))]
        for quantity, cell in zip(columns(study), cells, strict=True):
            assert look_up(committed(), f"{study}/{row.label}.{quantity}") == cell


def columns(study: str) -> list[str]:
    runs = committed().runs[study]
    length = runs[0].read()["recipe"]["context_length"]
    return [f"ppl@{n / length:g}x" for n in (runs[0].evaluation() or {})["lengths"]]


def test_the_pages_of_methods_and_the_table_of_all_encodings_agree() -> None:
    rows = {**committed().rows("demo-every"), **committed().rows("demo")}
    records = sorted((ROOT / "runs" / "speed").glob("*/speed.json"))
    speed = tables.best([Speed(json.loads(path.read_text())) for path in records])
    assert speed is not None
    table, _ = book_every.every(rows, {}, None, speed, {}, measured=True)
    shown = {line[0]: line for line in table[1:]}
    for stem in ("alibi", "fox", "t5", "kerple"):
        own = book_measured.found(committed(), stem)["demo-every"]
        page = book_measured.text(stem, {"demo-every": own}, {})
        lines = book_records.lines(page)[1:]
        assert len(lines) >= 4 + 1 + 1 + 4  # beside, its own, cut, and the means of four
        for title, seeds, *cells in lines:
            if title in shown:
                assert shown[title][1] == seeds
                assert shown[title][2:5] == cells[:3]
                assert shown[title][5] == cells[4], "16×"
    assert shown["RoPE"][2] == look_up(committed(), "demo/rope#0.ppl@1x")
    assert shown["*RoPE, mean of 3 seeds*"][2].replace("<br>", " ") == said("demo", "rope")[0]


def drawn(name: str) -> dict[str, list[float]]:
    """By its label, the values of a line of a figure."""
    _, draw = (record_figures(committed()) | book_measured.figures_of(committed()))[name]
    return {
        str(line.get_label()): [float(y) for y in np.asarray(line.get_ydata(), dtype=float)]
        for axes in draw().axes
        for line in axes.lines
    }


def number(text: str) -> float:
    return float(re.split(r"[ <]", text)[0].replace(",", ""))


@pytest.mark.parametrize("pe", FOUR)
def test_figures_draw_what_the_tables_write(pe: str) -> None:
    title = committed().rows("demo")[pe].title
    of_all = drawn("perplexity-by-length")[title]
    assert of_all == pytest.approx([number(t) for t in said("demo", pe)], rel=0.006)
    of_page = drawn("demo-every-fox")[title]  # there beside a run of seed 0
    seed = [number(look_up(committed(), f"demo/{pe}#0.ppl@{m}x")) for m in MULTIPLES]
    assert of_page == pytest.approx(seed, rel=0.006)


def test_the_picture_of_all_encodings_is_of_the_seeds_of_the_table() -> None:
    rows = [*committed().rows("demo").values(), *committed().rows("demo-every").values()]
    found = {row.label: near for row, near, _ in figures_reach.ordered(comparable(rows), 16)}
    for pe in FOUR:
        assert found[pe] == pytest.approx(number(look_up(committed(), f"{pe}#0.ppl@1x")), rel=0.006)


def test_readme_says_what_the_guide_says() -> None:
    block = re.search(r"<!-- results.*?<!-- end", (ROOT / "README.md").read_text(), re.S)
    assert block
    lines = {line[0]: line for line in book_records.lines(block[0].partition("-->\n")[2])}
    names = {
        "RoPE": "kept@3e-3", "RoPE, then YaRN for 4×": "yarn-4x",
        "RoPE, rotation dropped (DroPE)": "dropped@3e-3", "NoPE from the first step": "nope",
    }  # fmt: skip
    for title, label in names.items():
        assert lines[title][1:] == [
            look_up(committed(), f"dropping/{label}.{kind}@{n}x")
            for kind in ("ppl", "multikey")
            for n in (1, 2, 4)
        ]
    assert lines["RoPE, cut to the training length"][5] == look_up(
        committed(), "dropping/kept@3e-3.cut.multikey@2x"
    )


def test_differences_in_prose_are_those_of_the_table() -> None:
    text = book_tables.study_table(
        committed().rows("scaffold-seeds"), {}, ["ppl@1x"], [], {}, against="rope"
    )
    cells = {line[0]: line[2].strip("*") for line in book_records.lines(text)[1:]}
    for pe in ("nope", "pope"):
        words = look_up(committed(), f"scaffold-seeds/{pe} vs rope.ppl@1x")
        size = re.search(r"by (\d+)% \(([\d.]+) to ([\d.]+)%\)", words)
        assert size
        shown = re.findall(r"[\d.]+", cells[committed().rows("scaffold-seeds")[pe].title])
        assert [float(x) for x in size.groups()] == pytest.approx(
            [float(x) for x in shown], rel=0.05
        )


def test_every_row_of_a_table_is_of_the_same_seeds_or_says_that_it_is_a_mean() -> None:
    mixed = [*committed().rows("demo").values(), *committed().rows("demo-every").values()]
    assert {row.seeds for row in comparable(mixed)} == {(0,)}
    row = Row("rope", "RoPE", "rope", mixed[0].runs)
    assert row.of([0]).seeds == (0,)
