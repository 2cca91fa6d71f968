"""Benchmarks/lease: what fits into a transfer, and what still begins before the end."""

from __future__ import annotations

import dataclasses
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pe.recipes.named import recipe
from pe.study import planned as planned_runs
from pe.study.pace import Deadline, Pace
from pe.study.plan import load_plan
from pe.study.planned import Planned
from pe.study.zero_shot import ZeroShot

FOLDER = Path(__file__).parents[1] / "benchmarks" / "lease"


@pytest.fixture
def lease(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a module of the folder by its name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("runner", "tokens", "warm")
    yield importlib.import_module
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def tokens(lease: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that cuts tokens, in an empty repository, with small transfers."""
    module = lease("tokens")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "TRANSFER", 30_000)
    monkeypatch.setattr(module, "MARGIN", 1_000)
    subprocess.run(["git", "init", "-q"], check=True)
    return module


def planned(pe: str = "rope", **fields: Any) -> Planned:
    return Planned(pe, recipe("tiny", pe=pe, **fields), "study")


def test_a_run_is_judged_by_those_of_its_kind_so_that_short_ones_still_begin(
    own_runs: Path,
) -> None:
    pace = Pace()
    long, short = planned(steps=3400), planned("yarn", steps=400)
    assert pace.expected(long) == 0.0, "nothing is known yet"
    pace.learn(long, seconds=420.0, training=340.0)
    assert pace.expected(long) == pytest.approx(420)
    assert pace.expected(short) == pytest.approx(120)  # the slowest run alone would say 420
    far = planned("alibi", steps=400, evaluation_lengths=(1024, 16384, 32768))
    pace.learn(far, seconds=400.0, training=40.0)
    assert pace.expected(short) == pytest.approx(120), "an expensive evaluation is not everybody's"
    longer = planned(steps=100, context_length=4096, batch_size=16)
    assert pace.expected(longer) == pytest.approx(360 + 10), "of another kind: by tokens, and safe"
    part = ZeroShot(run="study/rope", factors=[2.0], methods=["pi", "yarn"])
    task = dataclasses.replace(short, zero_shot=part)
    assert pace.expected(task) == pytest.approx(2 * 360)
    pace.learn(task, seconds=50.0, training=0.0)
    assert pace.expected(task) == pytest.approx(50)


def test_a_word_names_a_study_or_its_runs_of_one_label_and_none_comes_twice(lease: Any) -> None:
    plans = lease("runner").plans
    both = plans(["every/rope", "every"])
    assert {p.label for p in both["every/rope"]} == {"rope"}
    assert [p.recipe.seed for p in both["every/rope"]] == [0, 1, 2]
    assert len(both["every/rope"]) + len(both["every"]) == len(load_plan("every"))
    words = lease("runner").split(["every/rope:1=2x4", "extending:2=0", "every"])
    assert words == {"every/rope:1": (2, 4), "extending:2": (0, 1), "every": (1, 1)}
    found = plans(list(words))
    assert [p.recipe.seed for p in found["every/rope:1"]] == [1]
    assert {p.recipe.seed for p in found["extending:2"]} == {2}


def test_runs_wait_for_a_task_and_a_task_for_the_weights_it_extends(
    lease: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = lease("runner")
    left = runner.plans(["every/rope", "extending"])
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    queue = runner.Queue(left, Deadline(1e9))
    assert queue.take("extending").label == "rope", "all else waits for its weights"
    done: set[str] = set()
    for module in (runner, planned_runs):
        monkeypatch.setattr(module, "complete", lambda run: run.name in done)
    monkeypatch.setattr(runner.Run, "exists", lambda run: True)
    monkeypatch.setattr(
        runner.Run, "read", lambda run: {"status": "complete" if run.name in done else "running"}
    )
    monkeypatch.setattr(
        ZeroShot, "missing", lambda part, run: [] if f"cells of {run.name}" in done else ["yarn@2"]
    )
    first = next(p for p in load_plan("every") if p.label == "rope")
    done.add(first.name)  # and its evaluation, which only the task waits for
    assert queue.take("extending").label == "as-it-was"
    queue.running.clear()
    begun = [queue.take("extending") for _ in range(40)]
    labels = [p.label for p in begun if p is not None and p.study == "extending"]
    assert labels[0] == "zero-shot"
    assert not [name for name in labels if name.startswith("longrope")]
    assert {p.recipe.seed for p in begun if p is not None and p.study == "extending"} == {0}
    done.add(f"cells of {first.name}")
    assert queue.take("extending").label == "longrope-0"


def test_places_of_several_gpus_train_together_and_keep_to_their_runs(
    lease: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = lease("runner")
    assert runner.Places.of("4x2") == (4, 2)
    for text in ("4x0", "x2", "four"):
        with pytest.raises(ValueError, match=f"expected PLACES or PLACESxGPUS.*got '{text}'"):
            runner.Places.of(text)
    tasks: dict[str, dict[str, str]] = {}
    order: list[str] = []

    def execute(task: dict[str, Any], environment: dict[str, str]) -> None:
        run = runner.Run(Path(task["directory"]))
        label = labels[run.name]
        order.append(label)
        tasks[label] = environment

    plan = [p for p in load_plan("paper") if p.label.startswith(("rope-yarn", "rope-kept-at-14"))]
    plan = [next(p for p in load_plan("paper") if p.label == "rope"), *plan]
    labels = {p.name: p.label for p in plan}
    monkeypatch.setattr(runner, "execute", execute)
    for module in (runner, planned_runs):
        monkeypatch.setattr(module, "complete", lambda run: labels[run.name] in order)
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    monkeypatch.setattr(runner.Run, "exists", lambda run: labels[run.name] in order)
    training = {"validation_loss": 1.0, "wall_seconds": 0.0}
    monkeypatch.setattr(
        runner.Run, "read", lambda run: {"status": "complete", "training": training}
    )
    monkeypatch.setattr(runner.Run, "evaluation", lambda run: {"perplexity": {}})
    words = ["paper/rope=1x8", "paper/rope-yarn-*=2", "paper/rope-kept-at-14*=2x4"]
    runner.main([*words, "--gpus", "8"])
    assert order[0] == "rope", "all else starts from it"
    assert set(order) == set(labels.values())
    everything = {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7", "PE_PROCESSES": "8"}
    assert tasks["rope"] == everything
    halves = {tasks[label]["CUDA_VISIBLE_DEVICES"] for label in labels.values() if "14" in label}
    assert halves <= {"2,3,4,5", "6,7,0,1"}
    assert tasks["rope-kept-at-14"]["PE_PROCESSES"] == "4"
    assert tasks["rope-yarn-4x"]["PE_PROCESSES"] == "1"
    with pytest.raises(ValueError, match="a place of 8 GPUs was asked for, and --gpus is 2"):
        runner.main(["paper/rope=1x8", "--gpus", "2"])


def test_a_run_that_leaves_a_damaged_record_does_not_stop_the_others(
    lease: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = lease("runner")

    def execute(task: dict[str, Any], environment: dict[str, str]) -> None:
        folder = Path(task["directory"])
        folder.mkdir(parents=True)
        (folder / "run.json").write_text('{"status": "comp')

    monkeypatch.setattr(runner, "execute", execute)
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    runner.main(["every/rope=1"])
    printed = capsys.readouterr().out
    assert printed.count("FAILED") == printed.count("begin") == 3
    assert printed.rstrip().endswith("the end")


def test_runs_that_no_place_would_take_are_refused_and_not_waited_for(lease: Any) -> None:
    runner = lease("runner")
    for words in (["every/rope=0"], ["paper/rope=1x8", "every/rope=0"], ["every/rope=0x2"]):
        with pytest.raises(ValueError, match="every/rope has no place, and no other place takes"):
            runner.main(words)


def test_parts_are_cut_to_what_a_transfer_has_room_for_beside_the_tree(tokens: Any) -> None:
    folder, parts = Path(".gpu/lease"), Path(".gpu/lease.parts")
    folder.mkdir(parents=True)
    (folder / "code").write_bytes(b"c" * 2_000)
    Path("tracked").write_bytes(b"t" * 5_000)
    content = bytes(range(256)) * 150
    tokens.cut(parts, content, '{"about": 1}', 25_000)  # as of a smaller tree
    left = tokens.room(folder, parts)
    assert left == 30_000 - 1_000 - 7_000
    tokens.pack("", "corpus", "16384", str(parts), str(folder))
    pieces = tokens._pieces(parts)
    assert b"".join(path.read_bytes() for path in pieces) == content
    for number in range(len(pieces)):
        size = sum(path.stat().st_size for path in (parts / str(number)).iterdir())
        assert 7_000 + size < 30_000
    assert (parts / "0" / "about.json").read_text() == '{"about": 1}'
    Path("grown").write_bytes(b"g" * 15_000)
    with pytest.raises(SystemExit, match="only 7,000 bytes of a transfer are left"):
        tokens.room(folder, parts)


def test_what_a_call_that_was_cut_off_has_left_is_in_no_part(tokens: Any) -> None:
    folder, parts = Path("lease"), Path("lease.parts")
    folder.mkdir()
    tokens.cut(parts, bytes(range(256)) * 200, "{}", 40_000)
    tokens.cut(parts.with_suffix(".new"), b"left over" * 1_000, "{}", 1_500)
    tokens.recut(parts, folder)
    assert b"".join(path.read_bytes() for path in tokens._pieces(parts)) == bytes(range(256)) * 200


@pytest.mark.parametrize("words", [[], ["unpack"], ["place", "parts"], ["place", "a", "b", "c"]])
def test_words_that_name_no_step_or_do_not_fit_it_show_the_usage(
    lease: Any, words: list[str]
) -> None:
    tokens = lease("tokens")
    with pytest.raises(SystemExit, match="usage"):
        tokens.run_step({"place": lambda parts, corpus: None}, words, "usage")
