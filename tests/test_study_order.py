"""In which order runs are begun, which studies one command takes, one run at a time per GPU."""

from __future__ import annotations

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
from study_tools import CHAIN, run_in_this_process, write

from pe.study import load_plan, run_study
from pe.study.devices import MUTEX, mutex_of, wait_for_device
from pe.study.parents import with_retrained_parents
from pe.study.plan import load_plans
from pe.study.queue import StudyFailed


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


def test_a_device_has_one_run_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert mutex_of("0") != mutex_of("1")
    assert "/" not in Path(mutex_of("MIG-GPU/1/0")).name
    monkeypatch.delenv(MUTEX, raising=False)
    wait_for_device()  # alone: nothing to wait for
    code = (
        "import sys, time; from pe.study.devices import wait_for_device; print('ready', flush=1);"
        "wait_for_device(); wait_for_device(); print('works', flush=True); sys.stdin.read()"
    )
    environment = os.environ | {MUTEX: str(tmp_path / "mutex")}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip

    with start() as first:
        assert first.stdout
        assert [first.stdout.readline() for _ in range(2)] == ["ready\n", "works\n"]
        with start() as second:
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
