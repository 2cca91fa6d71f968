"""In which order runs are begun, which studies one command takes, one run at a time per GPU."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from study_tools import CHAIN, carry_out, run_in_this_process, write

from pe._errors import StudyFailed
from pe.study import load_plan, run_study
from pe.study.devices import MUTEX, mutex_of, wait_for_device
from pe.study.pace import Pace
from pe.study.parents import with_retrained_parents
from pe.study.plan import load_part, load_plans


def begun(
    monkeypatch: pytest.MonkeyPatch, path: str, workers: int, fails: str = ""
) -> list[tuple[str, int]]:
    """(label, seed) of the runs of a study in the order in which workers begin them."""
    plan = load_plan(path)
    labels = {str(p.run().directory): (p.label, p.recipe.seed) for p in plan}
    order: list[tuple[str, int]] = []
    lock = threading.Lock()

    def execute(task: dict[str, Any], environment: dict[str, str]) -> str:
        with lock:
            order.append(labels[task["directory"]])
        time.sleep(0.05)
        if labels[task["directory"]][0] == fails:
            raise RuntimeError("no")
        return str(task["directory"])

    run_in_this_process(monkeypatch, execute, workers)
    try:
        run_study(plan, retries=0)
    except StudyFailed:
        assert fails
    return order


def two_seeds(folder: Path) -> str:
    runs = {
        "pope": {"pe": "pope"}, **CHAIN,
        "late": {"pe": "nope", "start": {"run": "rope", "at": "3/4"}, "set": {"steps": "1/4"}},
    }  # fmt: skip
    path = Path(write(folder, runs))
    content = yaml.safe_load(path.read_text()) | {"seeds": [0, 1]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def test_a_seeds_runs_are_all_begun_before_the_next_seed_begins(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = ["pope", "rope", "dropped", "late"]
    order = begun(monkeypatch, two_seeds(tmp_path), 1)
    assert order == [(label, seed) for seed in (0, 1) for label in labels]


def test_two_workers_keep_busy_and_keep_the_order(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = begun(monkeypatch, two_seeds(tmp_path), 2)
    assert set(order[:2]) == {("pope", 0), ("rope", 0)}
    assert len(order) == 8
    # While `rope` trains nothing of seed 0 can be begun, so one run of seed 1 may come before.
    assert [seed for _, seed in order[:5]].count(0) == 4


def test_devices_share_out_what_can_be_begun(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed import get_worker

    plan = load_plan(write(tmp_path, {pe: {"pe": pe} for pe in ("rope", "pope", "nope", "yarn")}))
    places: dict[str, str] = {}
    all_there = threading.Barrier(4)  # passed only if all four run at the same time

    def execute(task: dict[str, Any], environment: dict[str, str]) -> str:
        places[task["recipe"]["pe"]] = str(get_worker().address)
        all_there.wait(timeout=30)
        return str(task["directory"])

    run_in_this_process(monkeypatch, execute, 2, threads=2, gpus="01")
    run_study(plan, retries=0)
    assert places["rope"] != places["pope"]
    assert {places["nope"], places["yarn"]} == {places["rope"], places["pope"]}


def test_what_starts_from_a_failed_run_is_never_begun(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = begun(monkeypatch, two_seeds(tmp_path), 1, fails="rope")
    assert order == [("pope", 0), ("rope", 0), ("pope", 1), ("rope", 1)]


def test_studies_of_one_command_stand_in_its_order_and_each_run_once(own_runs: Path) -> None:
    plan = load_plans(["scaffold-seeds:0,1", "extend", "scaffold-seeds"])
    places = [(p.study, p.recipe.seed) for p in plan]
    assert places == sorted(places[:20]) + [("extend", 0)] * 10 + [("scaffold-seeds", 2)] * 10
    assert load_plans(["scaffold"]) == load_plan("scaffold")
    extended = [p for p in with_retrained_parents(plan) if p.study == "extend"]
    (rope,) = [p.key for p in plan[:10] if p.label == "rope"]
    assert {p.parent for p in extended} == {rope}  # it is carried out by the same command
    assert {p.parent for p in load_plan("extend")} == {None}
    with pytest.raises(ValueError, match="extend:0,1: the seeds of extend are 0"):
        load_plans(["extend:0,1"])
    with pytest.raises(ValueError, match="unknown study 'extned' .*'extend'"):
        load_plans(["scaffold", "extned"])


def test_a_word_names_a_study_its_runs_of_a_label_or_a_pattern_and_some_seeds(
    tmp_path: Path,
) -> None:
    def found(word: str) -> list[tuple[str, int]]:
        return [(planned.label, planned.recipe.seed) for planned in load_part(word)]

    assert found("every/rope") == [("rope", 0), ("rope", 1), ("rope", 2)]
    assert found("every/rope:0,2") == [("rope", 0), ("rope", 2)]
    assert found("scaffold-seeds/rope-dropped-*:1") == [
        ("rope-dropped-at-10", 1), ("rope-dropped-at-15", 1)
    ]  # fmt: skip
    path = two_seeds(tmp_path)
    assert found(f"{path}/late:1") == [("late", 1)]
    assert load_part(f"{path}:0") == [p for p in load_plan(path) if p.recipe.seed == 0]
    for word, message in (
        ("every/rop", r"every/rop: unknown run of every 'rop' \(did you mean 'rope'\?\)"),
        ("every/rope:7", "every/rope:7: the seeds of every/rope are 0, 1, 2"),
        ("nowhere/rope", "unknown study 'nowhere'"),
    ):
        with pytest.raises(ValueError, match=message):
            load_part(word)


def test_what_would_end_too_late_is_not_begun_and_has_not_failed(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = load_plan(write(tmp_path, {"nope": {"pe": "nope"}, **CHAIN, "pope": {"pe": "pope"}}))
    seconds = {"rope": 1e6}
    monkeypatch.setattr(Pace, "expected", lambda pace, one: seconds.get(one.label, 0.0))
    order: list[str] = []

    def execute(task: dict[str, Any], environment: dict[str, str]) -> str:
        order.append(task["recipe"]["pe"])
        return str(task["directory"])

    run_in_this_process(monkeypatch, execute)
    states: dict[str, str] = {}
    run_study(plan, until=1e5, on_progress=states.update)
    assert order == ["nope", "pope"]
    assert [states[p.key] for p in plan] == ["done", "waiting", "waiting", "done"]
    with pytest.raises(ValueError, match="until: expected seconds, 0 or more, got nan"):
        run_study(plan, until=math.nan)


def test_the_time_of_a_run_is_known_from_records_of_this_kind_of_machine(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = {"rope": {"pe": "rope"}, "nope": {"pe": "nope", "set": {"steps": "1/2"}}}
    plan = load_plan(write(tmp_path, runs))
    pace = Pace()
    pace.learn_record(plan[0])
    assert pace.expected(plan[1]) == 0.0, "nothing is recorded"
    carry_out(plan[:1])
    run = plan[0].run()
    run.update(training=run.read()["training"] | {"wall_seconds": 160.0})
    run.write_evaluation(run.evaluation() | {"seconds": 7.0})
    pace.learn_record(plan[0])
    assert pace.expected(plan[1]) == pytest.approx(80 + 7), "half as many steps"
    run.update(hardware=run.read()["hardware"] | {"name": "a faster one"})
    elsewhere = Pace()
    elsewhere.learn_record(plan[0])
    assert elsewhere.expected(plan[1]) == 0.0


def test_two_studies_with_the_same_recipe_each_have_their_run(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = write(tmp_path, CHAIN)
    other = shutil.copy(one, tmp_path / "other.yaml")
    plan = load_plans([one, str(other)])
    assert len({p.name for p in plan}) == 2, "the recipes are the same"
    carried_out: list[str] = []

    def execute(task: dict[str, Any], environment: dict[str, str]) -> str:
        carried_out.append(task["directory"])
        return str(task["directory"])

    run_in_this_process(monkeypatch, execute)
    run_study(plan, retries=0)
    assert carried_out == [str(p.run().directory) for p in plan]


@pytest.mark.parametrize(("used", "wanted"), [("0", "0"), ("0", "0,1"), ("1,2", "0,1")])
def test_a_gpu_has_one_run_at_a_time_also_one_that_takes_several(
    used: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert mutex_of("0") != mutex_of("1")
    assert mutex_of("1,0").split(os.pathsep) == [mutex_of("0"), mutex_of("1")]
    assert "/" not in Path(mutex_of("MIG-GPU/1/0")).name
    monkeypatch.delenv(MUTEX, raising=False)
    wait_for_device()  # alone: nothing to wait for
    code = (
        "import sys, time; from pe.study.devices import wait_for_device; print('ready', flush=1);"
        "wait_for_device(); wait_for_device(); print('works', flush=True); sys.stdin.read()"
    )

    def start(gpus: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=os.environ | {MUTEX: mutex_of(gpus)}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    with start(used) as first:
        assert first.stdout
        assert [first.stdout.readline() for _ in range(2)] == ["ready\n", "works\n"]
        with start(wanted) as second:
            assert second.stdout
            lines = second.stdout
            assert lines.readline() == "ready\n"
            heard: list[str] = []
            listener = threading.Thread(target=lambda: heard.append(lines.readline()))
            listener.start()
            time.sleep(0.3)
            assert heard == []
            first.kill()  # also a turn that ends badly is over
            listener.join(timeout=30)
            assert heard == ["works\n"]
            second.communicate(timeout=30)
