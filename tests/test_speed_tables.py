"""What a speed record says: ratios to peers, tables and figures, from a made-up record."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import speed_records
from speed_records import squeezed

from pe import figures
from pe.encodings import FAMILIES
from pe.figures import speed as figures_speed
from pe.speed import tables
from pe.speed.names import PEERS, all_encodings, counterpart, members, title
from pe.speed.record import TIME_UP, Speed


def speed(**changes: Any) -> Speed:
    return Speed(speed_records.record(**changes))


def test_what_time_did_not_allow_is_named_once_and_fills_no_rows() -> None:
    record = speed_records.record()
    for row in record["cells"]:
        if row["system"] == "cope" or row["length"] == 16384:
            row |= {"tokens_per_second": None, "reason": TIME_UP}
    found = Speed(record)
    assert tables.known_lengths(found, "train") == [n for n in found.lengths("train") if n != 16384]
    shown = squeezed(tables.overview(found))
    assert "| CoPE |" not in shown
    assert "16,384" not in shown
    assert "*Not measured, since time was up: CoPE.*" in shown
    assert "CoPE" not in tables.details(found, "train", 1024)
    assert "CoPE" not in tables.costs(found, members("cope"))
    assert "| CoPE |" in squeezed(tables.overview(speed()))


def test_every_encoding_belongs_to_a_family_and_has_a_name() -> None:
    found = members(",".join(FAMILIES[:-1]))
    assert sorted(found) == sorted(all_encodings())
    assert len({title(m) for m in found}) == len(found)
    assert {counterpart(peer) for peer in PEERS} <= set(found)
    assert title("x-transformers/dynamic") == "x-transformers: dynamic bias"
    assert members("cope,rope+alibi") == ["cope", "rope+alibi", "cope@64"]
    with pytest.raises(ValueError, match="unknown family 'biass'.*'bias'"):
        members("biass")


def test_tables_hold_the_numbers_and_the_reasons() -> None:
    found = speed()
    lines = squeezed(tables.overview(found)).splitlines()
    assert lines[0] == "| encoding | 1,024 tokens | 16,384 tokens |"
    assert "| NoPE | 1.80 M | 800 k |" in lines
    assert "| FIRE | 1.44 M (0.80) | out of memory |" in lines
    assert "| RoPE | 1.76 M (0.98) | 792 k (0.99) |" in lines
    order = [line.split(" | ")[0].removeprefix("| ") for line in lines[2:-2]]
    assert order[0] == "NoPE"  # by family
    assert order.index("RoPE") < order.index("ALiBi")
    assert lines[-1] == "| x-transformers: ALiBi | 540 k (0.30) | 80.0 k (0.10) |"
    text = squeezed(tables.details(found, "train", 16384))
    assert f"| FIRE | {speed_records.SHORT} | – |" in text
    assert "| T5 | torch SDPA | 712 k | 0.890 | 12.00 | 40.0% | 705 k | 719 k | 4 | 11.0 |" in text
    assert "| x-transformers: ALiBi | ALiBi | 3.23× (540 k) | 9.50× (80.0 k) |" in squeezed(
        tables.peers(found)
    )
    assert "| training | 1,024 | 2 | 1.78 M | 1.80 M | 1.82 M |" in squeezed(tables.drift(found))
    family = squeezed(tables.costs(found, members("bias")))
    assert "| ALiBi | torch SDPA | 0.97 · 12.0 GiB | 0.95 · 12.0 GiB |" in family
    assert "| 1.80 M/s · 12.0 GiB | 800 k/s · 12.0 GiB |" in squeezed(
        tables.costs(found, members("none"))
    )
    assert tables.costs(found, members("embeddings")) == ""


def test_a_peer_with_a_smaller_batch_says_so() -> None:
    record = speed_records.record()
    for row in record["cells"]:
        if row["system"] == "x-transformers/alibi":
            row["batch"] //= 2
    assert "(540 k, batch 32)" in tables.peers(Speed(record))


def test_a_cpu_says_that_its_speeds_compare_with_nothing() -> None:
    record = speed_records.record()
    assert "no speeds to compare" not in tables.machine(Speed(record))
    assert "34.1 M parameters" in tables.machine(Speed(record))
    assert "side by side" not in tables.machine(Speed(record))
    record["sessions"].append(speed_records.session(helpers=4))
    assert "first steps with 4 processes compiling side by side" in tables.machine(Speed(record))
    assert "2 cards" in tables.machine(Speed(record)), "both at the same time"
    record["sessions"][1] |= {"created": record["sessions"][0]["finished"], "finished": None}
    assert "cards" not in tables.machine(Speed(record)), "one after the other"
    record["sessions"][0]["hardware"] |= {"device": "cpu", "name": "Test processor"}
    record["status"] = "stopped"
    text = tables.machine(Speed(record))
    assert text.startswith("**CPU, small: no speeds to compare with a GPU's.**")
    assert "Not everything was measured" in text


def test_a_gpu_is_shown_before_a_cpu_and_the_newest_first() -> None:
    cpu, old, new = (copy.deepcopy(speed_records.record(run=n)) for n in ("cpu", "old", "new"))
    cpu["sessions"][0]["hardware"]["device"] = "cpu"
    cpu["sessions"][0]["created"] = "2027-01-01T00:00:00+00:00"
    new["sessions"][0]["created"] = "2026-06-01T00:00:00+00:00"
    speeds = [Speed(r) for r in (cpu, new, old)]
    best = tables.best(speeds)
    assert best is not None
    assert best.record["run"] == "new"
    assert tables.best([]) is None
    assert tables.best([Speed(speed_records.record(sessions=[], cells=[]))]) is None


def test_a_newer_record_of_a_few_encodings_does_not_replace_the_one_of_all() -> None:
    all_of_them, few = (copy.deepcopy(speed_records.record(run=n)) for n in ("all", "few"))
    few["sessions"][0]["created"] = "2026-06-01T00:00:00+00:00"
    few["cells"] = [r for r in few["cells"] if r["system"] in ("nope", "rope", "fire")]
    best = tables.best([Speed(few), Speed(all_of_them)])
    assert best is not None
    assert best.record["run"] == "all"
    all_of_them["sessions"][0]["hardware"]["device"] = "cpu"
    best = tables.best([Speed(few), Speed(all_of_them)])
    assert best is not None
    assert best.record["run"] == "few", "one of a GPU"


def test_the_figure_has_a_line_for_each_encoding_that_costs_something_else() -> None:
    figure = figures_speed.training(speed())
    rates, memory = figure.axes
    labels = [line.get_label() for line in rates.lines]
    assert labels == [
        "NoPE", "RoPE", "FIRE", "CoPE", "transformers: RoPE",
    ]  # fmt: skip
    assert list(rates.lines[1].get_ydata()) == pytest.approx([0.98 * 1.8e6, 0.99 * 8e5])
    assert list(memory.lines[2].get_ydata())[:1] == [12.0]
    assert figures.svg(figure) == figures.svg(figures_speed.training(speed()))

    record = speed_records.record()
    for row in record["cells"]:
        row["peak_memory_gib"] = None  # as on a CPU
    assert len(figures_speed.training(Speed(record)).axes) == 1


def test_what_the_same_bits_cost_stands_over_the_usual_record_of_the_same_machine() -> None:
    usual = speed_records.record()
    same = copy.deepcopy(usual)
    same["run"] = "h100-deterministic"
    same["settings"] |= {"deterministic": True, "systems": ["nope", "rope"]}
    same["cells"] = [r for r in same["cells"] if r["system"] in ("nope", "rope")]
    for row in same["cells"]:
        row["tokens_per_second"] *= 0.75
    other = copy.deepcopy(usual)
    other["sessions"][0]["hardware"]["name"] = "another card"
    other["sessions"][0]["created"] = "2027-01-01T00:00:00+00:00"
    text = squeezed(tables.deterministic([Speed(r) for r in (usual, same, other)]))
    assert "| NoPE | 0.75 (1.35 M) | 0.75 (600 k) |" in text
    assert "`runs/speed/h100-deterministic` over `runs/speed/h100`" in text
    assert tables.deterministic([Speed(usual), Speed(other)]) == ""
    assert tables.deterministic([Speed(same), Speed(other)]) == ""
