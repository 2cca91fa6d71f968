"""The table of every encoding: rows of the speed record, quality where a study has it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import speed_records

ROOT = Path(__file__).resolve().parent.parent

pytest.importorskip("sphinx")

import book_every  # noqa: E402
import book_records  # noqa: E402
from book_studies import Studies  # noqa: E402

from pe.results.rows import Row  # noqa: E402
from pe.speed.record import Speed  # noqa: E402


def row(root: Path, name: str) -> Row:
    return Row(name, name, name, (book_records.write(root, name, 0, study="made-up"),))


def made(tmp_path: Path, extended: dict[str, Any]) -> tuple[list[list[str]], list[str]]:
    rope = row(tmp_path, "rope")
    return book_every.every(
        {"nope": row(tmp_path, "nope"), "rope": rope},
        extended, rope if extended else None, Speed(speed_records.record()),
        {"rope": "/methods/rope"},
    )  # fmt: skip


def test_rows_are_those_of_the_speed_record_and_what_no_study_has_is_named(tmp_path: Path) -> None:
    (heads, *lines), absent = made(tmp_path, {})
    found = {line[0]: dict(zip(heads, line, strict=True)) for line in lines}
    assert not any("x-transformers" in name or "transformers" in name for name in found)
    rope = found["{doc}`RoPE </methods/rope>`"]
    assert (rope["seeds"], rope["training, 1k"], rope["training, 16k"]) == ("0", "0.98", "0.99")
    assert rope["GiB"] == "12.0"
    assert float(rope["1×"]) > 1
    assert found["NoPE"]["own parameters"] == "0"
    fire = found["FIRE"]
    assert fire["1×"] == fire["seeds"] == fire["training, 16k"] == "–"
    assert {"FIRE", "ALiBi", "PoPE"} <= set(absent)
    assert not {"NoPE", "RoPE"} & set(absent)


def test_rows_without_quality_can_be_left_out_and_a_column_nobody_fills_is(
    tmp_path: Path,
) -> None:
    rows = {"nope": row(tmp_path, "nope")}
    speed = Speed(speed_records.record())
    table, absent = book_every.every(rows, {}, None, speed, {}, measured=True)
    heads, *lines = table
    assert [line[0] for line in lines] == ["NoPE", "nope, cut to the training length"]
    assert "FIRE" in absent
    assert "found at 4×" not in heads, "no run was asked for a number"
    assert len(heads) == len(lines[0]) == len(book_every.HEADS) - 1
    quality, costs = map(book_records.lines, book_every.split(table))
    assert quality == [line[: -book_every.COST] for line in table]
    assert [line[0] for line in costs] == ["encoding", "NoPE"], "cutting has no speed"


def test_a_method_put_on_a_trained_model_has_the_factor_of_each_column(tmp_path: Path) -> None:
    length = row(tmp_path, "rope").runs[0].read()["recipe"]["context_length"]
    cells = {f"alibi@{m}": {"perplexity": {str(m * length): {"value": 10.0 * m}}} for m in (2, 4)}
    (heads, *lines), absent = made(tmp_path, cells)
    found = {line[0]: dict(zip(heads, line, strict=True)) for line in lines}
    alibi = found["ALiBi" + book_every.PUT_ON]
    assert [alibi[f"{m}×"] for m in (2, 4, 16)] == ["20.0", "40.0", "–"]
    assert alibi["1×"] == found["{doc}`RoPE </methods/rope>`"]["1×"]
    assert "ALiBi" not in absent
    both = {f"rope@{m}": {"perplexity": {str(m * length): {"value": 7.0}}} for m in (2, 4)}
    names = [line[0] for line in made(tmp_path, both)[0]]
    rope = "{doc}`RoPE </methods/rope>`"
    assert names.index(rope + book_every.PUT_ON) == names.index(rope) + 1, "trained, and put on"


def test_a_row_is_of_the_first_study_that_trained_it_from_the_first_step(
    tmp_path: Path,
) -> None:
    first, later = row(tmp_path / "a", "rope"), row(tmp_path / "b", "rope")
    dropped = Row("dropped", "dropped", "rope", (Dropped(),))  # type: ignore[arg-type]
    known = Studies("one", {"one": [], "two": []})
    known._rows |= {"one": {"rope": first}, "two": {"rope": later, "dropped": dropped}}
    block = object.__new__(book_every.EveryEncoding)
    env = SimpleNamespace(app=SimpleNamespace(pe_book=SimpleNamespace(studies=known)))
    block.state = SimpleNamespace(  # type: ignore[assignment]
        document=SimpleNamespace(settings=SimpleNamespace(env=env))
    )
    assert block.rows(["not recorded", "one", "two"]) == {"rope": first}
    for extended, wrong in (("three/rope", "three"), ("one/roep", "roep")):
        block.options = {"extended": extended}
        with pytest.raises(ValueError, match=f"unknown .* '{wrong}'"):
            block.base()


def test_rows_of_other_seeds_are_compared_on_those_that_all_have(tmp_path: Path) -> None:
    runs = [book_records.write(tmp_path, "rope", s, "made-up", 1 + s / 10) for s in (0, 1)]
    rows = {"nope": row(tmp_path, "nope"), "rope": Row("rope", "RoPE", "rope", tuple(runs))}
    table, _ = book_every.every(rows, {}, None, Speed(speed_records.record()), {}, measured=True)
    found = {line[0]: line[1:3] for line in table[1:]}
    assert found["RoPE"] == ["0", "40.0"]
    assert found["*RoPE, mean of 2 seeds*"][0] == "0, 1"
    assert found["RoPE, cut to the training length"] == ["0", "40.0"]


class Dropped:
    def read(self) -> dict[str, Any]:
        return {"parent": {"run": "rope"}}
