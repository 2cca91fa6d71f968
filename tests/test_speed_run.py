"""The speed run: NoPE comes round, time is up, a record is damaged, the command."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import speed_records
import torch

from pe import cli, runs
from pe.speed import rig
from pe.speed.record import TIME_UP, Settings, Speed, SpeedRun, speed_run

cells, measuring = rig("cell"), rig("measure")
measure, settings = measuring.measure, rig("plan").settings
SMALL: dict[str, Any] = {"recipe": "demo", "tokens": 32, "peers": (), "compiled": False}
pytestmark = pytest.mark.usefixtures("tiny_speed")


def fake(monkeypatch: pytest.MonkeyPatch, **by_system: Any) -> list[Any]:
    """Replace the measurement: a rate by system (1000), or an error to raise. Returns the log."""
    log: list[Any] = []

    def measured(cell: Any, chosen: Settings, device: torch.device) -> dict[str, Any]:
        log.append(cell)
        answer = by_system.get(cell.system, 1000.0)
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = answer()
        return cell._asdict() | cells.NOTHING | {
            "tokens_per_second": answer, "least": answer, "most": answer, "reason": None,
            "seconds": 0.1, "path": "p",
        }  # fmt: skip

    monkeypatch.setattr(measuring, "measure_cell", measured)
    return log


def test_nope_comes_round_again_and_ratios_are_to_its_neighbours(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The machine becomes slower and slower; ratios do not.
    pace = iter([1000.0, 800.0, 600.0])
    halves = iter([450.0, 450.0, 450.0, 450.0, 350.0, 350.0])
    names = ("alibi", "t5", "fire", "fox", "pope", "cope")
    log = fake(
        monkeypatch, nope=lambda: next(pace), **{name: lambda: next(halves) for name in names}
    )
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=names)
    record = measure(speed_run("drift"), chosen)
    assert [c.system for c in log].count("nope") == 2
    assert log[0].system == "nope"
    speed = Speed(record)
    assert speed.ratio("alibi", "train", 16) == pytest.approx(0.5)  # between 1000 and 800
    assert speed.ratio("cope", "train", 16) == pytest.approx(350 / 800)
    assert speed.ratio("alibi", "train", 16, to="cope") == pytest.approx(0.5 / (350 / 800))
    assert speed.result("nope", "train", 16).tokens_per_second == 900.0
    assert speed.result("nope", "train", 16).spread == (800.0, 1000.0)
    assert speed.ratio("rope", "train", 16) is None
    assert speed.result("rope", "train", 16).reason == "not measured"


def test_when_time_is_up_the_rest_is_said_to_be_missing_and_can_be_done_later(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(measuring.time, "monotonic", lambda: clock[0])

    def slow() -> float:
        clock[0] += 40.0
        return 900.0

    log = fake(monkeypatch, nope=slow, rope=slow, alibi=slow)
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=("rope", "alibi"))
    run = speed_run("short")
    record = measure(run, chosen, minutes=1)
    assert record == run.read()
    assert [c.system for c in log] == ["nope", "rope"]  # 80 s: over by one cell at most
    assert (record["status"], len(record["sessions"])) == ("stopped", 1)
    assert [(r["system"], r["reason"]) for r in record["cells"]] == [
        ("nope", None), ("rope", None), ("alibi", TIME_UP),
    ]  # fmt: skip

    log.clear()
    record = measure(run, chosen, minutes=10)
    assert [c.system for c in log] == ["nope", "alibi"]  # NoPE again, beside what is new
    assert (record["status"], len(record["sessions"])) == ("complete", 2)
    assert [(r["system"], r["session"], r["round"], r["reason"]) for r in record["cells"]] == [
        ("nope", 0, 0, None), ("rope", 0, 0, None), ("nope", 1, 1, None), ("alibi", 1, 0, None),
    ]  # fmt: skip
    log.clear()
    assert measure(run, chosen) == record
    assert not log


def test_a_measurement_that_fails_is_recorded_and_the_others_go_on(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake(monkeypatch, rope=RuntimeError("no such kernel\n  at line 3"))
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=("rope", "alibi"))
    run = speed_run("broken")
    with pytest.raises(ExceptionGroup, match="says which measurements failed"):
        measure(run, chosen)
    record = run.read()
    assert (record["status"], [c.system for c in log]) == ("complete", ["nope", "rope", "alibi"])
    assert [row["reason"] for row in record["cells"]] == [
        None, "failed: RuntimeError: no such kernel", None,
    ]  # fmt: skip
    assert measure(run, chosen) == record


def test_a_device_that_an_error_broke_ends_the_run(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake(monkeypatch, rope=RuntimeError("illegal memory access"))
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=("rope", "alibi"))

    def broken(*sizes: Any, **options: Any) -> torch.Tensor:
        raise RuntimeError("the device has an error")

    monkeypatch.setattr(torch, "zeros", broken)
    run = speed_run("broken")
    with pytest.raises(RuntimeError, match="the device has an error"):
        measure(run, chosen)
    assert run.read()["status"] == "stopped"
    assert [c.system for c in log] == ["nope", "rope"]


def test_a_killed_run_loses_the_cell_it_was_at(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = speed_run("killed")
    seen: list[tuple[str, int]] = []

    def look() -> float:
        record = run.read()
        seen.append((record["status"], len(record["cells"])))
        return 1.0

    fake(monkeypatch, rope=look, alibi=look)
    measure(run, settings(**SMALL, lengths=(16,), modes=("train",), encodings=("rope", "alibi")))
    assert seen == [("running", 1), ("running", 2)]


def test_another_machine_or_other_settings_want_another_name(own_runs: Path) -> None:
    run = speed_run("h100")
    run.write(speed_records.record(study="speed"))
    chosen = Settings.model_validate(run.read()["settings"])
    assert measure(run, chosen) == run.read()  # complete: it can be shown anywhere
    values = copy.deepcopy(run.read())
    values["cells"] = values["cells"][:3]
    run.write(values)
    with pytest.raises(runs.RunError, match="measured on NVIDIA H100 80GB HBM3 and this is"):
        measure(run, chosen)
    other = Settings.model_validate(chosen.model_dump() | {"tokens": 1, "repeats": 2})
    with pytest.raises(runs.RunError, match="other tokens, repeats"):
        measure(run, other)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda r: r.pop("sessions"), "sessions: missing"),
        (lambda r: r["cells"][0].update(mode="trian"), r"unknown cells\[0\]\.mode 'trian'"),
        (lambda r: r["cells"][0].update(ratio=1.0), r"cells\[0\]\.ratio: unknown field"),
        (lambda r: r["cells"][0].update(tokens_per_second="fast"), "tokens_per_second"),
        (
            lambda r: r["settings"].update(lengths=["1k"]),
            r"settings\.lengths\[0\]: expected",
        ),
        (lambda r: r.update(schema=2), "update pe to read it"),
    ],
)
def test_a_damaged_record_is_named(tmp_path: Path, change: Any, where: str) -> None:
    record = speed_records.record()
    change(record)
    folder = tmp_path / "speed" / "h100"
    folder.mkdir(parents=True)
    (folder / "speed.json").write_text(json.dumps(record))
    with pytest.raises(runs.RunError, match=where) as caught:
        SpeedRun(folder).read()
    assert "speed.json" in str(caught.value)
    with pytest.raises(runs.RunError):
        SpeedRun(folder).write(record)


def command(words: list[str]) -> int:
    return cli.main(["speed", *words])


def test_the_command_measures_prints_and_resumes(
    own_runs: Path, chooser: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tokens 32 --lengths 16 --modes train,small --encodings rope --repeats 1".split()
    assert command([*words, "--peers", "transformers/rope", "--minutes", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:5] for line in lines[:3]] == [
        ["train", "2", "x", "16", name] for name in ("nope", "rope", "transformers/rope")
    ]
    assert "[by hand]" in lines[1]
    assert "of NoPE" in lines[1]
    assert lines[-1].startswith("complete: ")
    file = own_runs / "speed" / "cpu-demo" / "speed.json"
    record = json.loads(file.read_text())
    assert record["sessions"][0]["hardware"]["device"] == "cpu"
    assert record["sessions"][0]["versions"]["torch"]

    assert command([*words, "--peers", "none"]) == 2
    assert "was begun with other systems" in capsys.readouterr().err
    record["cells"] = record["cells"][:2]
    file.write_text(json.dumps(record))
    assert command([*words, "--peers", "transformers/rope"]) == 0
    again = json.loads(file.read_text())
    assert len(again["sessions"]) == 2
    assert {(r["system"], r["mode"]) for r in again["cells"]} == {
        (system, mode)
        for system in ("nope", "rope", "transformers/rope")
        for mode in ("train", "small")
    }

    words[words.index("rope")] = "rope,alibi"
    assert command([*words, "--peers", "transformers/rope"]) == 0
    more = json.loads(file.read_text())
    assert more["cells"][: len(again["cells"])] == again["cells"]
    assert {r["system"] for r in more["cells"] if r["session"] == 2} == {"nope", "alibi"}
    assert set(more["settings"]["systems"]) == {"nope", "rope", "alibi", "transformers/rope"}
