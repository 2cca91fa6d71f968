"""What a speed record says: targets, ratios to peers, tables and figures, from a made-up record."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import speed_records

from pe import figures
from pe.figures import speed as figures_speed
from pe.speed import tables
from pe.speed.families import FAMILIES, counterpart, title
from pe.speed.plan import PEERS, all_encodings
from pe.speed.record import TIME_UP, Speed
from pe.speed.targets import Verdict, all_targets


def speed(**changes: Any) -> Speed:
    return Speed(speed_records.record(**changes))


def verdicts(*speeds: Speed) -> dict[tuple[str, int], Verdict]:
    return {
        (target.title, length): target.verdict(speeds, length)
        for target in all_targets()
        for length in target.goal
    }


PLAIN = "NoPE, RoPE and all that change its frequencies"
BIASES = "ALiBi, KERPLE (log), KERPLE (power), Sandwich, T5"
MEMORY = "Memory grows linearly with the length, for every encoding"
LARGE = "RoPE with about 320 M parameters"


def test_targets_are_worked_out_from_the_record() -> None:
    found = verdicts(speed())
    assert found["CoPE", 1024] == ("reached", "least 0.600 (CoPE)")
    assert found["PoPE, xPos, FoPE", 16384] == ("reached", "least 0.850 (PoPE)")
    assert found["FIRE, FoX", 1024] == ("not reached", "FIRE 0.800")
    assert found["FIRE, FoX", 16384] == ("not reached", "FIRE (out of memory)")
    assert found[BIASES, 1024] == (
        "reached where measured", "least 0.950 (T5); not measured: KERPLE (power)",
    )  # fmt: skip
    assert found[BIASES, 16384].word == "not reached"
    assert found[BIASES, 16384].detail.startswith("T5 0.890; not measured")
    assert found[PLAIN, 1024].word == "reached where measured"
    assert found[PLAIN, 1024].detail.startswith("least 1.764 M (RoPE); not measured: PI, ")
    assert found[LARGE, 1024].word == "not measured"


def test_a_target_is_missed_by_a_little_and_by_what_could_not_run() -> None:
    record = speed_records.record()
    for row in record["cells"]:
        if (row["system"], row["length"]) == ("cope", 1024):
            row["tokens_per_second"] = 0.499 * speed_records.NOPE[1024]
        if (row["system"], row["length"]) == ("cope", 16384):
            row |= {"tokens_per_second": None, "reason": "the chooser refuses"}
    found = verdicts(Speed(record))
    assert found["CoPE", 1024] == ("not reached", "CoPE 0.499")
    assert found["CoPE", 16384] == ("not reached", "CoPE (refused)")
    for row in record["cells"]:
        if row["system"] == "cope":
            row |= {"tokens_per_second": None, "reason": TIME_UP}
    assert verdicts(Speed(record))["CoPE", 16384] == ("not measured", "")


def test_what_time_did_not_allow_is_named_once_and_fills_no_rows() -> None:
    record = speed_records.record()
    for row in record["cells"]:
        if row["system"] == "cope" or row["length"] == 16384:
            row |= {"tokens_per_second": None, "reason": TIME_UP}
    found = Speed(record)
    assert tables.known_lengths(found, "train") == [n for n in found.lengths("train") if n != 16384]
    shown = tables.overview(found)
    assert "| CoPE |" not in shown
    assert "16,384" not in shown
    assert "*Not measured, since time was up: CoPE.*" in shown
    assert "CoPE" not in tables.details(found, "train", 1024)
    assert "CoPE" not in tables.of_family(found, FAMILIES["cope"])
    assert "| CoPE |" in tables.overview(speed())


def test_memory_is_linear_if_it_is_as_much_at_both_lengths() -> None:
    record = speed_records.record()
    found = verdicts(Speed(record))
    assert found[MEMORY, 16384] == ("not reached", "FIRE (out of memory)")
    for row in record["cells"]:
        if row["system"] == "fire":
            row |= {
                "tokens_per_second": 1e6,
                "peak_memory_gib": row["length"] / 1000,
                "reason": None,
            }
    assert verdicts(Speed(record))[MEMORY, 16384] == ("not reached", "FIRE 16.0")
    for row in record["cells"]:
        if row["system"] == "fire":
            row["peak_memory_gib"] = 12.0 + row["length"] / 16384
    word, detail = verdicts(Speed(record))[MEMORY, 16384]
    assert word == "reached"
    assert detail == "most 1.08 (FIRE), of 12 measured"


def test_other_cards_sizes_and_settings_are_not_judged() -> None:
    def changed(what: str, **changes: Any) -> Speed:
        record = speed_records.record()
        place = record["sessions"][0]["hardware"] if what == "hardware" else record["settings"]
        place |= changes
        return Speed(record)

    for other in (
        changed("hardware", name="NVIDIA A100-SXM4-80GB"),
        changed("hardware", device="cpu"),
        changed("settings", recipe="small"),
        changed("settings", tokens=32768),
        changed("settings", compiled=False),
    ):
        assert {v.word for v in verdicts(other).values()} == {"not measured"}
    assert verdicts()["CoPE", 1024].word == "not measured"
    h200 = changed("hardware", name="NVIDIA H200")  # the same processors, faster memory
    assert verdicts(h200) == verdicts(speed())


def test_the_large_model_has_a_record_of_its_own() -> None:
    large = speed_records.record()
    large["settings"]["recipe"] = "paper"
    for row in large["cells"]:
        row["parameters"] = 336_000_000
    assert verdicts(speed(), Speed(large))[LARGE, 1024] == ("not reached", "40.0%")
    for row in large["cells"]:
        row["mfu"] = 0.52
    found = verdicts(speed(), Speed(large))
    assert found[LARGE, 1024] == ("reached", "52.0%")
    assert found["CoPE", 1024].word == "reached", "the 34 M model's record still counts"


def test_every_encoding_belongs_to_one_family_and_has_a_name() -> None:
    members = [m for family in FAMILIES.values() for m in family.members]
    assert sorted(members) == sorted(all_encodings())
    assert len({title(m) for m in members}) == len(members)
    assert {counterpart(peer) for peer in PEERS} <= set(members)
    assert title("x-transformers/dynamic") == "x-transformers: dynamic bias"


def test_tables_hold_the_numbers_and_the_reasons() -> None:
    found = speed()
    lines = tables.overview(found).splitlines()
    assert lines[0] == "| encoding | 1,024 tokens | 16,384 tokens |"
    assert "| NoPE | 1.80 M | 800 k |" in lines
    assert "| FIRE | 1.44 M (0.80) | out of memory |" in lines
    assert lines.index("| RoPE | 1.76 M (0.98) | 792 k (0.99) |") == 3  # by family, NoPE first
    assert lines[-1] == "| x-transformers: ALiBi | 540 k (0.30) | 80.0 k (0.10) |"
    text = tables.details(found, "train", 16384)
    assert f"| FIRE | {speed_records.SHORT} | – |" in text
    assert "| T5 | torch SDPA | 712 k | 0.890 | 12.00 | 40.0% | 705 k | 719 k | 4 | 11.0 |" in text
    assert "| x-transformers: ALiBi | ALiBi | 3.23× (540 k) | 9.50× (80.0 k) |" in tables.peers(
        found
    )
    assert "| training | 1,024 | 2 | 1.78 M | 1.80 M | 1.82 M |" in tables.drift(found)
    family = tables.of_family(found, FAMILIES["distance"])
    assert "| ALiBi | torch SDPA | 0.97 · 12.0 GiB | 0.95 · 12.0 GiB |" in family
    assert "| 1.80 M/s · 12.0 GiB | 800 k/s · 12.0 GiB |" in tables.of_family(
        found, FAMILIES["none"]
    )
    assert tables.of_family(found, FAMILIES["additive"]) == ""
    heads, *rows = tables.targets([found]).splitlines()
    assert heads == "| goal, one H100 | 1,024 tokens | 16,384 tokens |"
    assert any("at least 0.50 of NoPE: **reached**; least 0.600 (CoPE)" in row for row in rows)
    assert rows[-1] == "*Judged by `runs/speed/h100`, measured on NVIDIA H100 80GB HBM3.*"


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


def test_the_figure_has_a_line_for_each_family_that_was_measured() -> None:
    figure = figures_speed.training(speed())
    rates, memory = figure.axes
    labels = [line.get_label() for line in rates.lines]
    assert labels == [
        "NoPE", "RoPE (rotation)", "ALiBi (bias by distance)", "FIRE", "FoX", "CoPE",
        "PoPE", "transformers: RoPE",
    ]  # fmt: skip
    assert list(rates.lines[1].get_ydata()) == pytest.approx([0.98 * 1.8e6, 0.99 * 8e5])
    assert list(memory.lines[3].get_ydata())[:1] == [12.0]
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
    text = tables.deterministic([Speed(r) for r in (usual, same, other)])
    assert "| NoPE | 0.75 (1.35 M) | 0.75 (600 k) |" in text
    assert "`runs/speed/h100-deterministic` over `runs/speed/h100`" in text
    assert tables.deterministic([Speed(usual), Speed(other)]) == ""
    assert tables.deterministic([Speed(same), Speed(other)]) == ""
