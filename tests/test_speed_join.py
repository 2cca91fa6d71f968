"""Parts of a speed run, measured side by side on cards of one machine, become one record."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import speed_records

from pe.runs import RunError
from pe.speed.join import join
from pe.speed.plan import settings
from pe.speed.record import TIME_UP, Speed, SpeedRun, speed_run

pytestmark = pytest.mark.usefixtures("own_runs")
OTHER = {"commit": "f" * 40, "dirty": False, "version": "0.1.0"}
CHOSEN: dict[str, Any] = {"recipe": "tiny", "tokens": 32, "lengths": (16,), "compiled": False}


def part(name: str, rates: dict[str, float], mode: str = "train", **changes: Any) -> SpeedRun:
    """A record of one session: NoPE, then ``rates``, at 16 tokens."""
    peers = [s for s in rates if "/" in s]
    own = [s for s in rates if "/" not in s]
    chosen = settings(**CHOSEN, encodings=own, peers=peers, modes=(mode,))
    cells = [speed_records.row(s, 16, rate, mode=mode, batch=2) for s, rate in rates.items()]
    record = speed_records.record(run=name, cells=cells, **changes)
    record["settings"] = chosen.to_dict()
    run = speed_run(name)
    run.write(record)
    return run


def test_a_whole_has_all_cells_and_each_ratio_of_its_part() -> None:
    parts = [
        part("a", {"nope": 100.0, "rope": 90.0, "alibi": 80.0}),
        part("b", {"nope": 200.0, "rope": 150.0, "alibi": 140.0}, "prefill"),
        part("c", {"nope": 110.0, "transformers/rope": 55.0}),
        part("d", {"nope": 210.0, "transformers/rope": 84.0}, "prefill"),
    ]
    record = join(speed_run("whole"), parts)
    assert record == speed_run("whole").read()
    whole = Speed(record)
    assert whole.settings["systems"] == ["nope", "rope", "alibi", "transformers/rope"]
    assert whole.settings["modes"] == ["train", "prefill"]
    assert record["status"] == "complete"
    assert [row["session"] for row in record["cells"]] == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]
    rounds = [row["round"] for row in record["cells"] if row["system"] == "nope"]
    assert rounds == [0, 0, 1, 1]
    # Each over the round of NoPE on its own card, though the cards differ by a tenth.
    assert whole.ratio("rope", "train", 16) == pytest.approx(0.9)
    assert whole.ratio("transformers/rope", "train", 16) == pytest.approx(0.5)
    assert whole.ratio("transformers/rope", "prefill", 16) == pytest.approx(0.4)
    assert whole.result("nope", "train", 16).tokens_per_second == 105.0


def test_what_no_part_measured_is_left_to_be_done() -> None:
    first = part("a", {"nope": 100.0, "rope": 90.0})
    late = part("b", {"nope": 100.0, "alibi": 80.0})
    record = late.read()
    record["cells"][-1] |= dict.fromkeys(("tokens_per_second", "least", "most")) | {
        "reason": TIME_UP
    }
    late.write(record)
    whole = join(speed_run("whole"), [first, late])
    assert whole["status"] == "stopped"
    assert [row["system"] for row in whole["cells"]] == ["nope", "rope", "nope"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda r: r["settings"].update(tokens=64), "tokens"),
        (lambda r: r["settings"].update(deterministic=True), "deterministic"),
        (lambda r: r["sessions"][0]["hardware"].update(name="NVIDIA H200"), "hardware"),
        (lambda r: r["sessions"][0]["code"].update(commit="f" * 40), "code"),
        (lambda r: r["sessions"].append(speed_records.session(code=OTHER)), "code"),
    ],
)
def test_parts_of_different_makes_are_not_joined(change: Any, named: str) -> None:
    first = part("a", {"nope": 100.0, "rope": 90.0})
    other = part("b", {"nope": 100.0, "alibi": 80.0})
    record = copy.deepcopy(other.read())
    change(record)
    other.write(record)
    with pytest.raises(RunError, match=f"b and a have other {named}; join records"):
        join(speed_run("whole"), [first, other])
    assert not speed_run("whole").exists()


def test_one_part_is_no_whole_and_no_record_is_written_over() -> None:
    first = part("a", {"nope": 100.0, "rope": 90.0})
    with pytest.raises(RunError, match="two parts or more, got 1"):
        join(speed_run("whole"), [first])
    with pytest.raises(RunError, match="give the whole another name"):
        join(first, [first, first])
