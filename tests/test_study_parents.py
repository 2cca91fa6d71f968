"""A study goes on where only records are left: parents are trained again, records stay."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from study_tools import (
    BRANCHING,
    CHAIN,
    WSD,
    by_label,
    carry_out,
    lose_weights,
    run_in_this_process,
    trained_steps,
    write,
)
from tiny_training import write_corpus

import pe
from pe.notebooks import study_page
from pe.runs import Run, RunError, find
from pe.study import load_plan, run_study, show
from pe.study.parents import with_retrained_parents
from pe.study.planned import StudyFolder, complete
from pe.study.show import Row, rows, text, time_left
from pe.study.worker import _retrain

LATE: dict[str, Any] = CHAIN | {
    "pope": {"pe": "pope"},
    "late": {"pe": "nope", "start": {"run": "rope", "at": "3/4"}, "set": {"steps": "1/4"}},
    "third": {"pe": "nope", "start": {"run": "dropped", "at": "end"}, "set": {"steps": 2}},
}


def contents(root: Path) -> dict[str, bytes]:
    files = [path for path in root.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def test_a_study_without_weights_goes_on_and_leaves_its_records_alone(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_in_this_process(monkeypatch)
    plan = by_label(load_plan(write(tmp_path, LATE)))
    carry_out(list(plan.values()))
    late, third = plan["late"].run(), plan["third"].run()
    wanted = {
        run.name: (run.checkpoint / "model.safetensors").read_bytes() for run in (late, third)
    }
    lose_weights(own_runs)
    shutil.rmtree(late.directory)
    before = contents(own_runs)
    listed = by_label(with_retrained_parents(list(plan.values())))
    assert list(listed) == ["rope", "dropped", "pope", "rope, retrained", "late", "third"]
    assert "4 of 5 runs done; 1 to retrain for lost weights" in text(list(plan.values()))

    seen: list[dict[str, str]] = []
    run_study(list(plan.values()), workers=1, on_progress=lambda s: seen.append(dict(s)))
    again = Run(own_runs / "small" / ".parents" / plan["rope"].name)
    assert set(seen[-1].values()) == {"done"}
    assert [key for key in seen[-1] if ".parents" in key] == [f"small/.parents/{again.name}"]
    assert {k: v for k, v in contents(own_runs).items() if k in before} == before
    assert (late.checkpoint / "model.safetensors").read_bytes() == wanted[late.name]
    assert [run.name for run in find(own_runs)] == sorted(p.name for p in plan.values())
    record, second = late.read(), again.read()
    assert (record["parent"]["study"], record["parent"]["run"]) == ("small", again.name)
    assert record["parent"]["retrained"] == {
        "finished": second["finished"],
        "commit": second["code"]["commit"],
        "hardware": second["hardware"]["name"],
        "validation_loss": plan["rope"].run().read()["training"]["validation_loss"],
    }
    assert "conversion" in record  # the weights that it began with were judged, too
    assert sorted(p.name for p in again.directory.iterdir() if p.is_file()) == [
        ".lock", "metrics.jsonl", "run.json",
    ]  # fmt: skip
    assert trained_steps(again) == list(range(1, 17))

    # The parent's parent, too: only it has its weights by now, in the scratch place.
    shutil.rmtree(third.directory)
    left = [p.label for p in with_retrained_parents(list(plan.values())) if not p.done()]
    assert left == ["dropped, retrained", "third"]
    shutil.rmtree(again.directory)
    listed = by_label(with_retrained_parents(list(plan.values())))
    assert list(listed)[-3:] == ["rope, retrained", "dropped, retrained", "third"]
    assert listed["dropped, retrained"].parent == listed["rope, retrained"].key
    for label in ("rope, retrained", "dropped, retrained"):
        _retrain(listed[label].run())
    carry_out([plan["third"]])
    assert (third.checkpoint / "model.safetensors").read_bytes() == wanted[third.name]
    assert third.read()["parent"]["retrained"]
    run_study(list(plan.values()), address="tcp://127.0.0.1:9")  # nothing to do: not even asked
    assert with_retrained_parents(list(plan.values())) == list(plan.values())


def test_a_parent_is_not_trained_again_for_runs_that_are_trained(
    tmp_path: Path, own_runs: Path
) -> None:
    plan = load_plan(write(tmp_path, CHAIN))
    assert with_retrained_parents(plan) == plan  # nothing has been run, so nothing is lost
    carry_out(plan)
    child = plan[1].run()
    shutil.rmtree(plan[0].run().directory / "checkpoints")
    (child.directory / "evaluation.json").unlink()
    assert not plan[1].done()
    assert with_retrained_parents(plan) == plan
    child.fail("stopped", status="interrupted")
    assert [p.label for p in with_retrained_parents(plan)] == ["rope", "rope, retrained", "dropped"]
    shown = study_page.plan(StudyFolder(plan, workers=2)).data
    assert "1 to retrain for lost weights" in shown
    assert rows(plan)[1].key == f"small/.parents/{plan[0].name}"


def test_what_was_trained_again_must_hold_all_weights_that_are_asked_for(
    tmp_path: Path, own_runs: Path
) -> None:
    plan = load_plan(write(tmp_path, BRANCHING, **WSD))
    pe.evaluate(pe.train(plan[0].run(), quiet=True), quiet=True)
    lose_weights(own_runs)
    again = with_retrained_parents(plan)[1]
    assert (again.label, again.recipe.keep_states) == ("rope, retrained", (3, 6))
    assert again.recipe.run_name() == plan[0].name
    _retrain(again.run())
    assert again.done()
    kept = again.run().directory / "checkpoints" / "kept"
    (kept / "step-000003" / "optimizer.bin").unlink()
    assert not complete(again.run())
    assert not with_retrained_parents(plan)[1].done()
    _retrain(again.run())
    assert with_retrained_parents(plan)[1].done()
    carry_out(plan[1:])


def test_steps_that_a_complete_run_has_not_kept_are_retrained_for_runs_and_otherwise_refused(
    tmp_path: Path, own_runs: Path
) -> None:
    first = load_plan(write(tmp_path, {"rope": CHAIN["rope"]}))
    carry_out(first)
    listed = with_retrained_parents(load_plan(write(tmp_path, CHAIN)))
    assert [p.label for p in listed] == ["rope", "rope, retrained", "dropped"]
    assert [p.recipe.keep_steps for p in listed[:2]] == [(), (8,)]
    pe.train(listed[0].run(), quiet=True)
    alone = load_plan(write(tmp_path, {"rope": {"pe": "rope", "set": {"keep_steps": [8]}}}))
    for begin in (show.text, run_study):
        with pytest.raises(RunError, match="keep_steps: .* has passed step 8 and did not keep it"):
            begin(alone)


def test_another_text_is_no_second_training(tmp_path: Path, own_runs: Path) -> None:
    plan = load_plan(write(tmp_path, CHAIN))
    pe.evaluate(pe.train(plan[0].run(), quiet=True), quiet=True)
    lose_weights(own_runs)
    again = with_retrained_parents(plan)[1]
    write_corpus(tmp_path / "corpus", train=1300)
    with pytest.raises(RunError, match="was trained on other data .* cannot be retrained without"):
        _retrain(again.run())
    assert not again.run().exists()


def row(name: str, seconds: float | None, parent: str | None = None) -> Row:
    return Row(name, 0, name, "", "planned", 0, 1, 1, None, None, seconds, parent)


def test_the_time_left_counts_workers_and_what_waits_for_what() -> None:
    chain = [row("a", 100.0), row("b", 60.0, "a"), row("c", 50.0), row("d", 30.0, "gone")]
    assert time_left(chain) == "4 min 00 s of training left on one device"
    # a 0-100, b 100-160; beside it c 0-50 and d 50-80
    assert (
        time_left(chain, 2)
        == "4 min 00 s of training left on one device, 2 min 40 s with 2 workers"
    )
    assert time_left(chain, 9).endswith(", 2 min 40 s with 9 workers")
    assert time_left([row("a", None), row("b", 60.0, "a")], 2) == (
        "1 min 00 s of training left on one device, 1 min 00 s with 2 workers, "
        "1 runs of unknown speed not counted"
    )
    assert time_left([row("a", None)]).startswith("time left not known")


def test_runs_of_other_sizes_say_about_how_long_a_study_takes_and_how_much_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = load_plan("paper")
    tiny = pe.recipe("tiny").to_dict()
    monkeypatch.setattr(show, "_speeds", lambda: [(tiny, 4e5), (tiny, 1e6)])
    alone = rows(plan)[0]
    assert alone.estimated
    # 6 N + 6 L d T: 230 million for 34 M parameters, 2,102 million for 325 M
    assert alone.tokens_per_second == pytest.approx(1e6 * 229.7 / 2101.6, rel=1e-3)
    assert "; about " in text(plan)
    assert show.memory_needed(plan) == "memory: about 34.0 GiB of a GPU; this machine has none"
    monkeypatch.setattr("pe.devices.choose", lambda: SimpleNamespace(type="cuda"))
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    monkeypatch.setattr("pe.devices.gpu_memory", lambda: 7.0)
    monkeypatch.setenv("PE_PROCESSES", "8")
    assert rows(plan)[0].tokens_per_second == pytest.approx(8 * alone.tokens_per_second)
    assert "left on 8 devices that train each run together" in text(plan)
    assert "too much; with micro_batch_size: 1 in the set of the study" in show.memory_needed(plan)


def test_processes_that_a_batch_does_not_divide_among_are_refused_before_the_first_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PE_PROCESSES", "3")
    with pytest.raises(ValueError, match="runs.rope.*: batch_size 8 does not divide among 3"):
        load_plan("paper-rates", mini=True, check=True)
