"""The speed page: it builds and says so where nothing is measured, and follows the record."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import book_records
import book_site
import pytest
import speed_records

pytest.importorskip("sphinx")

import book_speed

from pe.speed.record import Speed, SpeedRun

PAGE = book_site.ROOT / "book" / "speed.md"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small book that has the speed page, and no record of speed."""
    target = book_site.small_tree(tmp_path_factory.mktemp("speed"))
    book_records.write(target / "runs", "rope")
    page = re.sub(r"\{doc\}`[^`]*`", "its page", PAGE.read_text())  # a small book has no others
    page += "\n```{bibliography}\n```\n"
    (target / "book" / "measured.md").write_text(page)
    shutil.copytree(book_site.ROOT / "book" / "tables", target / "book" / "tables")
    return target


def words(tree: Path) -> str:
    return book_site.text(tree / "_build" / "html" / "measured.html")


def test_the_page_stands_without_a_record_and_names_wrong_words(tree: Path) -> None:
    page = tree / "book" / "measured.md"
    good = page.read_text()
    blocks = ("famly fire", "family fir", "family", "summary train")
    page.write_text(good + "".join(f"\n```{{speed}} {block}\n```\n" for block in blocks))
    try:
        result = book_site.build_small(tree)
    finally:
        page.write_text(good)
    assert result.returncode != 0
    assert result.stdout.count("WARNING: ") == len(blocks), result.stdout[-4000:]
    assert "did you mean 'family'" in result.stdout
    assert "did you mean 'fire'" in result.stdout
    assert "speed family: expected the name of a family after it, got nothing" in result.stdout
    assert "speed summary: expected no word after it, got train" in result.stdout

    shown = words(tree)
    assert "No GPU has been measured yet" in shown
    assert "pe speed --minutes" in shown
    assert shown.count("Not measured yet.") >= 5
    assert "Three numbers from the data sheet" in shown, "the reasoning needs no record"


def test_the_page_follows_a_record_and_a_damaged_one_stops_the_build(tree: Path) -> None:
    run = SpeedRun(tree / "runs" / "speed" / "h100")
    run.write(speed_records.record())
    result = book_site.build_small(tree)
    assert result.returncode == 0, result.stdout[-4000:]
    shown = words(tree)
    assert "No GPU has been measured yet" not in shown
    assert "NVIDIA H100 80GB HBM3" in shown
    assert speed_records.SHORT in shown
    assert "Records: speed/h100." in shown
    html = (tree / "_build" / "html" / "measured.html").read_text("utf-8")
    drawn = set(re.findall(r"_images/([\w-]+\.svg)", html))
    assert {"speed-training.svg", "speed-training-dark.svg"} <= drawn

    run.file.write_text(run.file.read_text().replace('"mode": "train"', '"mode": "trian"', 1))
    result = book_site.build_small(tree, strict=False)
    assert result.returncode != 0
    assert f"{run.file}: unknown cells[0].mode 'trian'" in result.stdout


def test_a_ratio_in_prose_is_the_record_s_and_names_what_is_wrong() -> None:
    speed = Speed(speed_records.record())
    found = book_speed.ratio(speed, "rope train 1024")
    assert found == f"{speed.ratio('rope', 'train', 1024):.2f}"
    assert book_speed.ratio(None, "rope train 1024") == "–"
    for text, message in (
        ("rope", "SYSTEM MODE LENGTH"),
        ("rpe train 1024", "did you mean 'rope'"),
        ("rope trian 1024", "did you mean 'train'"),
        ("rope train 77", "no ratio of rope in train at 77 tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            book_speed.ratio(speed, text)


def test_what_a_window_costs_is_shown_from_the_newest_record_that_has_one() -> None:
    usual = Speed(speed_records.record())
    assert book_speed.in_windows([usual]) == ""
    made = []
    for year, over in (("2026", 2.4), ("2025", 9.9)):
        record = speed_records.record(run=f"windows-{year}")
        record["sessions"][0]["created"] = f"{year}-06-01T00:00:00+00:00"
        record["settings"]["systems"] = ["nope", "t5+window:512"]
        rows = [row for row in record["cells"] if row["system"] == "nope"]
        record["cells"] = rows + [
            speed_records.row("t5+window:512", n, over * speed_records.NOPE[n])
            for n in speed_records.NOPE
        ]
        made.append(Speed(record))
    shown = book_speed.in_windows([usual, *made])
    assert "T5 + window 512" in shown
    assert "2.40" in shown
    assert "9.90" not in shown
    assert "runs/speed/windows-2026" in shown
    record = json.loads((book_site.ROOT / "runs/speed/windows/speed.json").read_text())
    lines = book_speed.in_windows([Speed(record)]).splitlines()
    costs = [re.search(r"(\d\.\d\d) ·", line) for line in lines]
    over = [float(cost[1]) for cost in costs if cost]
    assert over == sorted(over, reverse=True), "the fastest first"


def test_what_the_page_says_of_steps_with_a_window_is_in_the_record() -> None:
    record = json.loads((book_site.ROOT / "runs/speed/windows/speed.json").read_text())
    speed = Speed(record)
    over = {
        system.partition("+")[0]: speed.ratio(system, "train", 16384) or 0.0
        for system in speed.systems("train")
        if system != "nope"
    }
    assert min(over, key=lambda name: over[name]) == "cope"
    for name in ("cope", "relative_content"):  # "gain next to nothing"
        assert 0.95 < over.pop(name) < 1.15
    slower = sorted(name for name in over if over[name] <= 2)
    assert slower == ["fire", "stickbreaking"]  # "most encodings ... more than twice as fast"
    for name in ("t5", "bam", "pope"):
        assert over[name] < min(over[other] for other in ("rope", "alibi", "kerple_log", "fox"))


def test_what_the_page_says_of_attention_with_each_encoding_is_in_its_table() -> None:
    path = book_site.ROOT / "book" / "tables" / "2026-12-01-h200-windows-encodings.csv"
    with path.open() as file:
        rows = {row["system"].removeprefix("ours, "): row for row in csv.DictReader(file)}
    forward = {name: float(row["forward"]) for name, row in rows.items()}
    whole = {name: forward[name] + float(row["backward"]) for name, row in rows.items()}
    for rotation in ("xPos", "LeRoPE"):  # their kernel is the one without an encoding
        assert whole[rotation] > 2 * whole["ours"]
    assert forward["Sandwich"] > 2 * forward["T5"]  # whose kernel reads such a table, too
    newer = path.with_name("2026-12-01-h200-windows-relative-content.csv")
    with newer.open() as file:
        now = {row["system"].removeprefix("ours, "): row for row in csv.DictReader(file)}
    row = now["Relative content"]
    faster = whole["Relative content"] / (float(row["forward"]) + float(row["backward"]))
    assert 1.75 < faster < 2  # "nearly twice as fast"


def test_the_summary_puts_what_costs_the_same_on_one_line() -> None:
    lines = [line.split("|")[1:-1] for line in book_speed.summary(
        Speed(speed_records.record())).splitlines()[2:]]  # fmt: skip
    rows = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}
    shared = next(name for name in rows if name.startswith("NoPE"))
    assert {"NoPE", "RoPE"} <= set(shared.split("; "))
    assert rows["CoPE"][:3] == ["0.60", "0.40", "–"]
    assert "x-transformers" not in "".join(rows), "other libraries are no encodings"
