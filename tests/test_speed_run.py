"""The speed run: NoPE comes round, time is up, a record is damaged, helpers, the command."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import speed_records
import torch

from pe import runs
from pe.speed import cell as cells
from pe.speed import measure as measuring
from pe.speed import warm as warming
from pe.speed.measure import measure
from pe.speed.plan import Cell, Settings, settings
from pe.speed.record import TIME_UP, Speed, SpeedRun, speed_run
from pe.speed.warm import compiled, warm, work

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"recipe": "demo", "tokens": 32, "peers": (), "compiled": False}
pytestmark = pytest.mark.usefixtures("tiny_speed")


def fake(monkeypatch: pytest.MonkeyPatch, **by_system: Any) -> list[Cell]:
    """Replace the measurement: a rate by system (1000), or an error to raise. Returns the log."""
    log: list[Cell] = []

    def measured(cell: Cell, chosen: Settings, device: torch.device) -> dict[str, Any]:
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


def test_an_unexpected_error_ends_the_run_and_is_passed_over_by_the_next(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake(monkeypatch, rope=RuntimeError("illegal memory access\n  at kernel"))
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=("rope", "alibi"))
    run = speed_run("broken")
    with pytest.raises(RuntimeError, match="illegal"):
        measure(run, chosen)
    failed = run.read()["cells"][-1]
    assert (failed["system"], failed["reason"]) == (
        "rope", "failed: RuntimeError: illegal memory access",
    )  # fmt: skip
    assert run.read()["status"] == "stopped"
    log.clear()
    measure(run, chosen)
    assert [c.system for c in log] == ["nope", "alibi"]


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
    chosen = Settings.from_dict(run.read()["settings"])
    assert measure(run, chosen) == run.read()  # complete: it can be shown anywhere
    values = copy.deepcopy(run.read())
    values["cells"] = values["cells"][:3]
    run.write(values)
    with pytest.raises(runs.RunError, match="measured on NVIDIA H100 80GB HBM3 and this is"):
        measure(run, chosen)
    other = Settings.from_dict(chosen.to_dict() | {"tokens": 1, "repeats": 2})
    with pytest.raises(runs.RunError, match="other tokens, repeats"):
        measure(run, other)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda r: r.pop("sessions"), "'sessions' is a required"),
        (lambda r: r["cells"][0].update(mode="trian"), r"\$\.cells\[0\]\.mode"),
        (lambda r: r["cells"][0].update(ratio=1.0), r"\$\.cells\[0\]"),
        (lambda r: r["cells"][0].update(tokens_per_second="fast"), "tokens_per_second"),
        (lambda r: r["settings"].update(lengths=["1k"]), r"\$\.settings\.lengths\[0\]"),
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


def note(run: SpeedRun, ahead: list[Cell], seconds: float) -> None:
    """What helpers leave behind."""
    run.directory.mkdir(parents=True, exist_ok=True)
    with (run.directory / warming.COMPILED).open("a") as out:
        for cell in ahead:
            line = {"cell": cell, "seconds": seconds, "error": None, "processes": 2}
            print(json.dumps(line), file=out)


def test_helpers_compile_ahead_and_their_first_steps_are_recorded(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake(monkeypatch)
    asked: list[Any] = []

    def warm(ahead: list[Cell], chosen: Settings, processes: int, *_: Any) -> list[str]:
        asked.append(([c.system for c in ahead], processes, len(log)))
        note(speed_run("helped"), [c for c in ahead if c.system != "t5"], 99.0)
        return ["t5: broken"]

    def measured(cell: Cell, chosen: Settings, device: torch.device) -> dict[str, Any]:
        return there(cell, chosen, device) | {"first_step_seconds": 2.0}

    there = measuring.measure_cell
    monkeypatch.setattr(measuring, "warm", warm)
    monkeypatch.setattr(measuring, "measure_cell", measured)
    told: list[str] = []
    names = ("rope", "alibi", "t5", "fire", "fox", "cope")
    given = SMALL | {"lengths": (16,), "modes": ("train",), "compiled": True}
    chosen = settings(**given, encodings=names)
    record = measure(speed_run("helped"), chosen, processes=1, tell=told.append)
    assert [(ahead, number) for ahead, number, _ in asked] == [
        (["nope", "rope", "alibi", "t5", "fire", "fox"], 1), (["cope"], 1),
    ]  # fmt: skip
    assert [done for _, _, done in asked] == [0, 7], "before what they compile is measured"
    assert told == ["compiling ahead: t5: broken"] * 2
    first = {(r["system"], r["round"]): r["first_step_seconds"] for r in record["cells"]}
    assert first["rope", 0] == 99.0
    assert first["t5", 0] == 2.0
    assert record["sessions"][0]["helpers"] == 2, "another card's helpers were more"

    asked.clear()
    measure(speed_run("eager"), settings(**(given | {"compiled": False})), processes=1)
    assert not asked, "nothing to compile"


def test_a_helper_reports_each_cell_and_ends_when_time_is_up(
    tmp_path: Path, chooser: dict[str, Any]
) -> None:
    chosen, file = settings(**SMALL, lengths=(16,)), tmp_path / warming.COMPILED
    good, bad = Cell("rope", "train", 16, 2), Cell("roep", "train", 16, 2)
    work(json.dumps({"settings": chosen.to_dict(), "cells": [good, bad], "processes": 2}), file)
    _, second = (json.loads(line) for line in file.read_text().splitlines())
    assert second["error"].startswith("ValueError: unknown encoding 'roep' (did you mean 'rope'?)")
    file.write_text(file.read_text() + '{"cell": ["fire", "tra')  # another is writing
    assert list(compiled(tmp_path)) == [good]
    assert compiled(tmp_path)[good].seconds > 0
    assert compiled(tmp_path)[good].processes == 2

    began = time.monotonic()
    assert warm([good], chosen, 3, 0.0, tmp_path) == ["a helper was stopped, since time was up"]
    assert time.monotonic() - began < 10.0


def test_helpers_are_processes_that_find_the_package(tmp_path: Path) -> None:
    # The sizes are those of the recipe, which a patch of this process does not reach.
    chosen = settings(**SMALL, lengths=(16,))
    cells_of = [Cell("nope", "prefill", 16, 1), Cell("nonesuch", "prefill", 16, 1)]
    (line,) = warm(cells_of, chosen, 1, 120.0, tmp_path / "new")
    assert line.startswith("prefill 16 nonesuch: ValueError: unknown encoding")
    assert list(compiled(tmp_path / "new")) == cells_of[:1]


def test_what_a_record_lacks_is_compiled_while_nothing_is_measured(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, alibi=RuntimeError("broken"))
    chosen = settings(**SMALL, lengths=(16,), modes=("train",), encodings=("alibi", "t5"))
    run = speed_run("later")
    with pytest.raises(RuntimeError, match="broken"):
        measure(run, chosen)
    asked: list[str] = []

    def warmed(ahead: list[Cell], *given: Any) -> list[str]:
        asked.extend(c.system for c in ahead)
        note(run, ahead, 77.0)
        return []

    monkeypatch.setattr(measuring, "warm", warmed)
    words = ["--compile-only", "--helpers", "2", "--minutes", "3", "--resume", str(run.file)]
    assert command(words) == command(words) == 0
    assert asked == ["t5"], "the second time there is nothing left to compile"
    there = measuring.measure_cell
    monkeypatch.setattr(
        measuring, "measure_cell", lambda *given: there(*given) | {"first_step_seconds": 2.0}
    )
    record = measure(run, chosen, start=run.read())
    last = record["cells"][-1]
    assert (last["system"], last["first_step_seconds"]) == ("t5", 77.0)
    assert record["status"] == "complete"
    assert not (run.directory / warming.COMPILED).exists()


def command(words: list[str]) -> int:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import speed
    finally:
        sys.path.remove(str(BENCHMARKS))
    return int(speed.main(words))


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

    assert command(words) == 2  # never over a record
    assert "--resume it, or give another --name" in capsys.readouterr().err
    record["cells"] = record["cells"][:2]
    file.write_text(json.dumps(record))
    assert command(["--resume", str(file), "--tokens", "64"]) == 2
    assert "leave out tokens" in capsys.readouterr().err
    assert command(["--resume", str(file)]) == 0
    again = json.loads(file.read_text())
    assert len(again["sessions"]) == 2
    assert {(r["system"], r["mode"]) for r in again["cells"]} == {
        (system, mode)
        for system in ("nope", "rope", "transformers/rope")
        for mode in ("train", "small")
    }


def test_the_command_joins_parts_and_takes_no_setting_with_them(
    own_runs: Path, chooser: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words = "--tokens 32 --lengths 16 --encodings rope --repeats 1 --peers".split()
    assert command([*words, "", "--modes", "train", "--name", "one"]) == 0
    assert command([*words, "", "--modes", "small", "--name", "two"]) == 0
    assert command(["--join", "one,two", "--name", "whole", "--tokens", "32"]) == 2
    assert "leave out tokens" in capsys.readouterr().err
    assert command(["--join", "one,three", "--name", "whole"]) == 2
    assert "there is no such record" in capsys.readouterr().err
    assert command(["--join", "one,two", "--name", "whole"]) == 0
    whole = SpeedRun(own_runs / "speed" / "whole").read()
    assert whole["status"] == "complete"
    assert [row["mode"] for row in whole["cells"]] == ["train"] * 2 + ["small"] * 2
