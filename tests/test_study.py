"""Studies: plans from YAML, and carrying them out without losing or repeating anything."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from study_tools import CHAIN, by_label, run_in_this_process, trained_steps, write
from tiny_training import start_worker_of_a_study

from pe import cli
from pe._errors import StudyFailed
from pe.notebooks.parameters import configure
from pe.recipes.command import notebook_command, notebook_parameters
from pe.runs import RunError
from pe.study import load_plan, queue, run_study, worker
from pe.study.show import rows, text
from pe.study.worker import execute

STUDIES = Path(__file__).parents[1] / "studies"
# ---------------------------------------------------------------- plans


def test_the_scaffold_study_is_ten_runs_with_the_seed_studys_rates() -> None:
    plan = by_label(load_plan("scaffold"))
    assert list(plan)[:4] == ["nope", "rope", "pope", "yarn"]
    assert len(plan) == 10
    late, early = plan["pope-dropped-at-15"], plan["pope-dropped-at-10"]
    assert (early.recipe.start_step, early.recipe.steps, early.recipe.warmup_steps) == (
        5000, 3000, 90,
    )  # fmt: skip
    assert (late.recipe.start_step, late.recipe.steps, late.recipe.warmup_steps) == (7500, 500, 15)
    assert (early.recipe.learning_rate, early.recipe.min_learning_rate) == (1e-4, 1e-5)
    assert (late.recipe.learning_rate, late.recipe.min_learning_rate) == (5e-5, 5e-6)
    for label in ("rope", "pope", "yarn"):
        base = plan[label].recipe
        assert (base.learning_rate, base.min_learning_rate, base.warmup_steps) == (3e-4, 3e-5, 240)
        assert base.keep_steps == (5000, 7500)
        assert plan[f"{label}-dropped-at-10"].parent == plan[label].key
    assert plan["nope"].recipe.keep_steps == ()
    assert {p.recipe.retrieval_share for p in plan.values()} == {0.02}


def test_every_study_of_the_repository_can_be_planned() -> None:
    for path in STUDIES.glob("*.yaml"):
        assert load_plan(path.stem)
        mini = load_plan(path.stem, mini=True)
        assert {p.study for p in mini} == {f"{path.stem}-mini"}
        assert len(mini) == len(load_plan(path.stem)) or len({p.recipe.seed for p in mini}) == 1


def test_seeds_multiply_the_runs_and_parents_have_the_same_seed(tmp_path: Path) -> None:
    runs = {"a": {"pe": "rope"}, "b": {"pe": "nope", "start": {"run": "a", "at": "1/2"}}}
    path = Path(write(tmp_path, runs))
    content = yaml.safe_load(path.read_text()) | {"seeds": [3, 5]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = load_plan(str(path))
    assert [(p.label, p.recipe.seed) for p in plan] == [("a", 3), ("b", 3), ("a", 5), ("b", 5)]
    assert [plan[1].parent, plan[3].parent] == [plan[0].key, plan[2].key]
    assert len({p.name for p in plan}) == 4


def test_a_sweep_is_a_run_for_each_rate_and_multiple(tmp_path: Path) -> None:
    runs = {
        "rope": {"pe": "rope"},
        "t5": {"pe": "t5", "rates": [2.0e-3], "encoding_rates": [1.0, 10.0]},
    }
    path = Path(write(tmp_path, runs))
    content = yaml.safe_load(path.read_text()) | {"rates": [1.0e-3, 4.0e-3]}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    plan = {p.label: p.recipe for p in load_plan(str(path))}
    assert [(label, r.learning_rate, r.encoding_rate) for label, r in plan.items()] == [
        ("rope@0.001", 1e-3, 1), ("rope@0.004", 4e-3, 1),
        ("t5@0.002,x1", 2e-3, 1), ("t5@0.002,x10", 2e-3, 10),
    ]  # fmt: skip
    shares = {round(r.min_learning_rate / r.learning_rate, 9) for r in plan.values()}
    assert len(shares) == 1, "the last rate keeps its share of the first"


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            {"a": {"pe": "rope", "rates": [1.0e-3], "set": {"learning_rate": 1.0e-3}}},
            "runs.a: learning_rate: in set and in a sweep",
        ),
        ({"a": {"pe": "rope", "rates": [0.0]}}, r"runs.a.rates\[0\]: expected"),
        ({}, "runs: expected at least 1, got {}"),
        ({"a": {"pe_options": {}}}, r"small\.yaml: runs\.a\.pe: missing"),
        ({"a": "rope"}, "runs.a: expected a dictionary, got 'rope'"),
        ({"a": {"pe": "rope", "seeds": [0, 0]}}, "runs.a.seeds: 0 is there twice"),
        (
            {"a": {"pe": "rope", "seeds": [0, 1]}},
            r"runs.a.seeds: 1 is not among .* \[0\]; add it there",
        ),
        ({"a": {"pe": "rope", "strat": {}}}, r"unknown key 'strat' \(did you mean 'start'\?\)"),
        ({"a": {"pe": "rope", "set": {"stepz": 3}}}, r"runs.a: unknown recipe field 'stepz'"),
        ({"a": {"pe": "rope", "set": {"steps": "many"}}}, "expected steps, a fraction"),
        ({"a": {"pe": "rope", "set": {"steps": "1/0"}}}, "expected steps, a fraction"),
        ({"a": {"pe": "rope", "set": {"keep_steps": None}}}, "keep_steps: expected a list, got"),
        ({"a": {"pe": "rope", "set": {"seed": 3}}}, "'seed' has no effect here; .* under seeds"),
        ({"a": {"pe": "rope", "set": {"start_from": "b"}}}, "'start_from' has no effect here"),
        (
            {"a": {"pe": "rope"}, "b": {"pe": "nope", "start": {"run": "a", "at": 0}}},
            "runs.b: starts at step 0, which 'a' does not have",
        ),
        (
            {"b": {"pe": "nope", "start": {"run": "a", "at": 3}}, "a": {"pe": "rope"}},
            "starts from 'a'; expected STUDY/RUN or one of: none",
        ),
        ({"a": {"pe": "rope"}, "b": {"pe": "rope"}}, "two runs have the same recipe"),
        (
            {"a": {"pe": "rope"}, "b": {"pe": "nope", "start": {"run": "a", "at": 99}}},
            "starts at step 99, which 'a' does not have",
        ),
        (
            {"a": {"pe": "rope"}}
            | {"b": {"pe": "nope", "start": {"run": "a", "at": 8}, "set": {"qk_norm": True}}},
            "runs.b: qk_norm: rope-.* has False and this recipe True; .* set qk_norm to False",
        ),
    ],
)
def test_a_file_that_is_no_study_is_refused_by_name(
    tmp_path: Path, runs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_plan(write(tmp_path, runs))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("runs: &x [*x]", "runs: expected a dictionary"),
        ("{runs: {a: {pe: rope}}, mini: 3}", "mini: expected a dictionary, got 3"),
        (
            "{runs: {a: {pe: rope}}, mini: {zero_shot: {factors: [2]}}}",
            "mini: zero_shot.run: missing",
        ),
        (
            "{runs: {a: {pe: rope, rates: [1.0e-3, 1.0000001e-3]}}}",
            "runs.a@0.001: two runs have the label 'a@0.001'",
        ),
        (
            "{runs: {a: {pe: rope}}, rates: [1.0e-3], set: {learning_rate: 2.0e-3}}",
            "set.learning_rate: has no effect, because each run has a sweep of it",
        ),
        (
            "{runs: {a: {pe: t5, encoding_rates: [1, 10]}}, set: {encoding_rate: 3.0}}",
            "set.encoding_rate: has no effect, because each run has a sweep of it",
        ),
        (
            "{runs: {a: {pe: rope}, b: {pe: nope, start: {run: mine/a, at: end}}}}",
            "runs.b: starts from 'mine/a', and runs of mine start from this study",
        ),
        (
            "{runs: {b: {pe: nope, start: {run: other/a, at: end}}}}",
            "runs.b: .*other.yaml: runs.a: starts from 'mine/b', and runs of mine start from",
        ),
        (
            "{seeds: [0, 1], runs: {a: {pe: rope, seeds: [0]}}, zero_shot: {run: a, factors: [2]}}",
            "zero_shot: starts from 'a', which has no seed 1; add it there",
        ),
        (
            "{runs: {a: {pe: rope}}, zero_shot: {run: a, factors: [2], methods: [pi], "
            "search: {iterations: 3}}}",
            "zero_shot: search: no effect without longrope",
        ),
        (
            "{runs: {a: {pe: alibi}}, zero_shot: {run: a, factors: [2], methods: [pi]}}",
            "zero_shot: .*'pi' changes the frequencies of .*",
        ),
    ],
)
def test_a_mistake_that_was_a_crash_or_was_not_noticed_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    monkeypatch.setattr("pe.study.reading.FOLDER", tmp_path)
    other = "{recipe: demo, runs: {a: {pe: rope, start: {run: mine/b, at: end}}}}"
    (tmp_path / "other.yaml").write_text(other)
    path = tmp_path / "mine.yaml"
    path.write_text(content.replace("{", "{recipe: demo, ", 1) if content[0] == "{" else content)
    with pytest.raises(ValueError, match=f"mine.yaml: {message}") as error:
        load_plan(str(path), check=True)
    assert "\n" not in str(error.value)


def test_a_study_is_named_like_a_folder_and_mini_is_no_part_of_a_name(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    path = Path(write(tmp_path, {"a": {"pe": "rope"}}))
    with pytest.raises(ValueError, match="study names a folder: .* not 'my study'"):
        load_plan(str(path.rename(tmp_path / "my study.yaml")))
    path = tmp_path / "own-mini.yaml"
    runs = {"a": {"pe": "rope", "start": {"run": "scaffold/rope", "at": "end"}}}
    sizes = {"recipe": "tiny", "set": {"corpus": "stdlib"}}
    path.write_text(yaml.safe_dump(sizes | {"runs": runs}))
    (one,) = load_plan(str(path))
    assert one.recipe.start_from.startswith("scaffold/"), "that study, not its miniature"


def test_steps_to_keep_may_be_one_and_a_share_for_all_runs_and_for_one(tmp_path: Path) -> None:
    runs = {"a": {"pe": "rope"}, "b": {"pe": "nope", "set": {"keep_steps": 3}}}
    plan = by_label(load_plan(write(tmp_path, runs, keep_steps="1/2")))
    assert plan["a"].recipe.keep_steps == (plan["a"].recipe.steps // 2,)
    assert plan["b"].recipe.keep_steps == (3,)


def test_on_and_off_mean_what_yaml_makes_of_them(tmp_path: Path) -> None:
    path = Path(write(tmp_path, {"a": {"pe": "rope"}}, compile="auto"))
    for word, read in (("off", "off"), ("on", "on"), ("'off'", "off"), ("auto", "auto")):
        text = path.read_text().replace("compile: auto", f"compile: {word}")
        other = tmp_path / "other.yaml"
        other.write_text(text)
        (planned,) = load_plan(str(other))
        assert planned.recipe.compile == read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"runs:\n  a: {pe: rope}\n  a: {pe: nope}\n", "line 3: 'a' is there twice; give it once"),
        (b"recipe: demo\nrecipe: tiny\n", "line 2: 'recipe' is there twice"),
        (b"runs: {a: {pe: rope}\n", "line 2: expected YAML: "),
        (b"recipe:\tdemo\n\tx: 1\n", "expected YAML: "),
        (b"title: \xff\n", "expected text in UTF-8"),
    ],
)
def test_a_file_that_is_read_otherwise_than_it_was_meant_is_refused_in_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "small.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"small.yaml: .*{message}") as error:
        load_plan(str(path))
    assert "\n" not in str(error.value)


def test_every_mistake_of_a_study_has_a_line_with_its_place(tmp_path: Path) -> None:
    runs = {"a": {"pe": 3, "branches": "1/2"}, "b": {"pe": "rope", "start": {"run": "a"}}}
    with pytest.raises(ValueError, match="small") as error:
        load_plan(write(tmp_path, runs))
    assert [line.partition("small.yaml: ")[2] for line in str(error.value).splitlines()] == [
        "runs.a.pe: expected text, got 3", "runs.a.branches: expected a list, got '1/2'",
        "runs.b.start.at: missing",
    ]  # fmt: skip
    wrong = {"a": {"pe": "rope", "set": {"batch_size": 0}}, "b": {"pe": "rope", "set": {"x": 1}},
             "c": {"pe": "nope", "start": {"run": "a", "at": "end"}}}  # fmt: skip
    with pytest.raises(ValueError, match="runs.a: batch_size: .*\n.*runs.b: unknown recipe field"):
        load_plan(write(tmp_path, wrong))


def test_a_mistake_that_all_runs_share_is_told_once(tmp_path: Path) -> None:
    """A corpus that is not there was told ten times by `pe study scaffold`."""
    runs = {name: {"pe": name, "set": {"batch_size": 0}} for name in ("rope", "nope", "pope")}
    with pytest.raises(ValueError, match="runs.rope and 2 more: batch_size: ") as error:
        load_plan(write(tmp_path, runs))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("words", [["--dry-run"], ["--workers", "1"]])
def test_everything_is_checked_before_the_first_run_with_a_line_for_each_mistake(
    tmp_path: Path, own_runs: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    runs = {
        "good": {"pe": "rope"},
        "encoding": {"pe": "rpoe"},
        "option": {"pe": "yarn", "pe_options": {"factr": 2.0}},
        "corpus": {"pe": "rope", "set": {"corpus": "stdlb"}},
        "field": {"pe": "rope", "set": {"stepz": 3}},
        "tokenizer": {"pe": "rope", "set": {"tokenizer": "bpr"}},
        "rate": {"pe": "rope", "set": {"encoding_rate": 2.0}},
    }
    said = ("mean 'rope'", "mean 'factor'", "mean 'stdlib'", "mean 'steps'", "mean 'bpe'", "at 1")
    assert cli.main(["study", write(tmp_path, runs), *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    lines = [line.partition("small.yaml: ")[2] for line in printed.err.splitlines()]
    assert [line.partition(": ")[0] for line in lines] == [f"runs.{label}" for label in runs][1:]
    for line, words_of_it in zip(lines, said, strict=True):
        assert words_of_it in line
    assert not own_runs.exists()


def test_a_study_from_python_checks_its_runs_before_the_first(
    tmp_path: Path, own_runs: Path
) -> None:
    plan = load_plan(write(tmp_path, {"rope": {"pe": "rope"}, "wrong": {"pe": "rpoe"}}))
    with pytest.raises(ValueError, match="did you mean 'rope'"):
        run_study(plan, notebooks=False)
    with pytest.raises(ValueError, match="workers: 3 has no effect with an address"):
        run_study(plan[:1], address="tcp://host:8786", workers=3)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"workers": 0}, "workers: expected a whole number of at least 1, got 0"),
        ({"workers": 1.5}, "workers: expected a whole number of at least 1, got 1.5"),
        ({"retries": -1}, "retries: expected a whole number of at least 0, got -1"),
        ({"retries": 1.5}, "retries: expected a whole number of at least 0, got 1.5"),
        ({"until": "x"}, "until: expected seconds, 0 or more, got 'x'"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ValueError, match=message):
            run_study(plan[:1], **arguments)
    with pytest.raises(ValueError, match="study: expected a name or the path .*, got 3"):
        load_plan(3)  # type: ignore[arg-type]
    assert not own_runs.exists()


def test_a_script_whose_workers_import_it_is_told_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask's processes import the script, and each tried to start workers of its own."""
    distributed = pytest.importorskip("distributed")

    def refuse(**_: Any) -> None:
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr(distributed, "LocalCluster", refuse)
    plan = load_plan(write(tmp_path, {"rope": {"pe": "rope"}}))
    with pytest.raises(RunError, match=r"under `if __name__ == '__main__':`"):
        run_study(plan)


def test_an_unknown_study_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown study 'scafold' \(did you mean 'scaffold'\?\)"):
        load_plan("scafold")


@pytest.mark.parametrize("study", sorted(p.stem for p in STUDIES.glob("*.yaml")))
def test_the_notebook_command_of_a_run_means_exactly_that_run(own_runs: Path, study: str) -> None:
    for planned in (p for p in load_plan(study, mini=True) if not p.zero_shot):
        parameters = notebook_parameters(planned.recipe, planned.study)
        *command, values = shlex.split(notebook_command(parameters))
        assert command == ["papermill", "notebooks/train.ipynb", "-y"]
        assert yaml.safe_load(values) == parameters
        run = configure(**parameters)
        assert run.recipe.to_dict() == planned.recipe.to_dict()
        assert run.directory == planned.run().directory


# ---------------------------------------------------------------- carrying them out


def test_a_study_runs_in_order_a_failure_skips_what_starts_from_it_and_nothing_runs_twice(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run_in_this_process(monkeypatch)
    monkeypatch.setenv("PE_COMMAND", "papermill notebooks/study.ipynb -p study small")
    runs = CHAIN | {
        "broken": {"pe": "pope", "set": {"learning_rate": 1e30}},
        "after": {"pe": "nope", "start": {"run": "broken", "at": "1/2"}},
    }
    plan = load_plan(write(tmp_path, runs))
    good, (broken, after) = plan[:2], plan[2:]
    assert [r.state for r in rows(plan)] == ["planned"] * 4
    assert "0 of 4 runs done" in text(plan)
    seen: list[dict[str, str]] = []
    with pytest.raises(StudyFailed, match="2 of 4 runs failed: broken: .*NonFiniteLoss") as error:
        run_study(
            plan, workers=1, retries=0, notebooks=False, on_progress=lambda s: seen.append(dict(s))
        )
    assert f"after: skipped, since {broken.key} failed" in str(error.value)
    assert seen[-1] == {p.key: "done" for p in good} | {
        broken.key: "failed", after.key: "skipped",
    }  # fmt: skip
    assert any(s[good[1].key] == "waiting" for s in seen)
    # One worker: `rope` and `broken` wait for nothing, and only one of them can be running.
    assert max(list(s.values()).count("running") for s in seen) == 1
    assert all(p.done() for p in good)
    assert good[1].run().read()["pe"] == "nope"
    for planned in good:  # not the command of the study, which would repeat all of it
        command = shlex.split(planned.run().read()["command"])
        assert command[:3] == ["papermill", "notebooks/train.ipynb", "-y"]
    stamps = [p.run().directory.joinpath("run.json").stat().st_mtime_ns for p in good]
    run_study(good, address="tcp://127.0.0.1:9", notebooks=False)  # nothing to do: not even asked
    assert [p.run().directory.joinpath("run.json").stat().st_mtime_ns for p in good] == stamps
    assert "2 of 4 runs done" in text(plan)
    capsys.readouterr()
    assert (
        cli.main(["study", str(tmp_path / "small.yaml"), "--retries", "0", "--no-notebooks"]) == 1
    )
    printed = capsys.readouterr()
    lines = printed.err.splitlines()
    assert sum(line.startswith("run ") for line in lines) == 1, "the table is shown once"
    assert "failed broken s0" in text(plan, {broken.key: "failed"})
    assert "small: perplexity after contexts" in printed.out, "what there is comes first"
    assert "2 of 4 runs are not done and not in these tables" in printed.out
    assert "pe study: 2 of 4 runs failed" in printed.err


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_that_failed_is_explained_by_its_record_or_else_by_what_was_printed_last(
    recorded: bool, tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (planned,) = load_plan(write(tmp_path, {"rope": {"pe": "rope"}}))
    run = planned.run()

    def process(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        if recorded:
            run.fail("NonFiniteLoss: step 7")
        options["stdout"].write(b"Traceback\npe.X: as printed\n\n")
        return subprocess.CompletedProcess(command, 1)

    stub = SimpleNamespace(run=process, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(worker, "subprocess", stub)
    task = {
        "directory": str(run.directory), "recipe": planned.recipe.to_dict(),
        "study": planned.study, "notebook": True,
    }  # fmt: skip
    reason = "NonFiniteLoss: step 7" if recorded else "pe.X: as printed"
    with pytest.raises(worker.RunFailed, match=rf"rope.*: {reason} \(exit code 1; log: "):
        worker.execute(task, {"PE_RUNS": str(own_runs)})


def test_a_process_that_leaves_its_run_incomplete_does_not_end_well(
    tmp_path: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its exit code is all that the Dask worker looks at, which then needs no torch."""
    (planned,) = load_plan(write(tmp_path, {"rope": {"pe": "rope"}}))
    monkeypatch.setattr(worker, "carry_out_task", lambda task: None)
    monkeypatch.setattr(worker, "stop_with_parent", lambda parent: None)
    with pytest.raises(worker.RunFailed, match="ended without a complete record"):
        worker.main(planned.task(notebook=False))


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """The file of a Dask scheduler in this process, and a function that starts a worker."""
    from distributed import LocalCluster

    file, started = tmp_path / "scheduler.json", list[Any]()

    def add_worker() -> int:
        started.append(start_worker_of_a_study(str(file)))
        return int(started[-1].pid)

    with LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address=None) as cluster:
        file.write_text(json.dumps({"address": cluster.scheduler_address}))
        try:
            yield str(file), add_worker
        finally:
            for process in started:
                process.kill()
                process.join()


def test_a_killed_worker_loses_nothing_and_nothing_runs_twice(
    tmp_path: Path, own_runs: Path, scheduler: tuple[str, Callable[[], int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(queue, "POLL", 0.1)  # else many more steps are needed to be in the middle
    file, add_worker = scheduler
    only = {"rope": {"pe": "rope"}}  # that runs wait for their parents needs no processes
    plan = load_plan(write(tmp_path, only, steps=240, checkpoint_every=20, validate_every=0))
    first = add_worker()
    parent = plan[0].run()
    killed: list[int] = []

    def kill_in_the_middle(states: dict[str, str]) -> None:
        path = parent.directory / "metrics.jsonl"
        if not killed and path.exists() and len(path.read_text().splitlines()) > 30:
            os.kill(first, signal.SIGKILL)
            killed.append(first)
            add_worker()

    run_study(plan, address=file, notebooks=False, on_progress=kill_in_the_middle)
    assert killed
    assert all(p.done() for p in plan)
    assert parent.read()["training"]["resumes"] >= 1
    assert trained_steps(parent) == list(range(1, 241))

    task = {
        "directory": str(parent.directory), "recipe": plan[0].recipe.to_dict(),
        "study": plan[0].study, "notebook": False,
    }  # fmt: skip
    log = parent.directory.parent / ".logs" / f"{parent.name}.log"
    log.write_text("")
    execute(task, {"PE_RUNS": str(own_runs)})
    assert log.read_text() == "", "no process is started for a run that is done"
