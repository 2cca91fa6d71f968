"""Records: validated both ways, written atomically, never skipped when damaged."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import book_records
import pytest
from pydantic import ValidationError

from pe import runs
from pe.recipes.named import recipe
from pe.recipes.recipe import Recipe
from pe.runs import Run, RunBusy, RunError
from pe.runs.models import MODELS, fields
from pe.runs.models.evaluation import NeedleCell


def evaluation() -> dict[str, Any]:
    def cell(value: float) -> dict[str, Any]:
        return {"value": value, "nll": 3.5, "window_nll": [3.4, 3.6], "reason": None}

    none = {"value": None, "nll": None, "window_nll": None, "reason": "no value: longest ..."}
    cells = {"256": cell(40.0), "512": cell(41.5), "640": cell(42.0), "1024": none}
    return {
        "schema": 1, "created": "2026-01-02T03:04:05+00:00", "lengths": [256, 512, 640, 1024],
        "target_tokens": 128, "windows": 2, "seconds": 1.5, "perplexity": cells,
        "window_perplexity": copy.deepcopy(cells),
        "loss_by_position": {"length": 640, "edges": [0, 320, 640], "nll": [4.0, 3.5]},
    }  # fmt: skip


@pytest.fixture
def record() -> dict[str, Any]:
    return book_records.record("demo", "pope", 3)


@pytest.fixture
def run(tmp_path: Path, record: dict[str, Any]) -> Run:
    run = Run(tmp_path / "demo" / record["run"])
    run.write(record)
    run.write_evaluation(evaluation())
    (run.directory / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n')
    return run


def places(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every key of a record, at every depth, but in free-form objects."""
    if isinstance(value, dict) and path[-1:] not in (("recipe",), ("versions",)):
        for key, inner in value.items():
            if not (path[-1:] == ("perplexity",) or path[-1:] == ("window_perplexity",)):
                yield (*path, key)
            yield from places(inner, (*path, key))


def parent(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path[:-1]:
        value = value[key]
    return value


COMMITTED = Path(__file__).parents[1] / "runs"


def test_every_committed_record_loads_and_loses_nothing() -> None:
    count = 0
    for name, model in MODELS.items():
        for path in COMMITTED.glob(f"*/*/{name}*.json"):
            if path.stem == name or name == "longrope":
                on_disk = json.loads(path.read_text())
                suffix = path.stem.removeprefix(name)
                assert Run(path.parent).part(name, suffix) == on_disk, path
                record = model.model_validate(on_disk)
                assert record.model_dump(by_alias=True, exclude_unset=True) == on_disk, path
                count += 1
    assert count > 190


def test_the_recipe_of_every_committed_record_is_accepted_and_keeps_its_hash() -> None:
    found = runs.find(COMMITTED)
    assert len(found) >= 92
    for run in found:
        chosen = Recipe.from_dict(run.record.recipe)
        assert chosen.config_hash() == run.record.config_hash, run
        assert chosen.run_name() == run.name or run.study == "demo-extend", run


def test_every_field_of_a_record_has_a_meaning_and_a_type() -> None:
    for name in MODELS:
        for path, kind, meaning in fields(name):
            assert meaning.endswith((".", "?")) or "`" in meaning, (name, path)
            assert kind, (name, path)
    paths = [path for path, _, _ in fields("evaluation")]
    assert "tempered.fit.value" in paths
    assert "perplexity.<tokens>.value" in paths
    assert "retrieval.tasks.<name>.<tokens>.controls.removed.exact" in paths
    assert ("status", "`running` or `complete` or `failed` or `interrupted`") in [
        f[:2] for f in fields("run")
    ]


def test_a_field_missing_or_of_a_wrong_type_is_refused_both_ways(
    run: Run, record: dict[str, Any]
) -> None:
    path = run.directory / "run.json"
    good = path.read_text()
    tried = list(places(record))
    assert len(tried) > 45
    for field in tried:
        lacking, wrong = copy.deepcopy(record), copy.deepcopy(record)
        del parent(lacking, field)[field[-1]]
        parent(wrong, field)[field[-1]] = ["not", "this"]
        for bad in (lacking, wrong):
            with pytest.raises(RunError, match=re.escape(".".join(field))) as error:
                run.write(bad)
            assert str(path) in str(error.value)
            assert path.read_text() == good
            path.write_text(json.dumps(bad))
            with pytest.raises(RunError, match=re.escape(".".join(field))):
                run.read()
            path.write_text(good)


def test_an_evaluation_is_checked_like_a_record(run: Run) -> None:
    path = run.directory / "evaluation.json"
    for field in places(evaluation()):
        bad = evaluation()
        del parent(bad, field)[field[-1]]
        with pytest.raises(RunError, match=field[-1]):
            run.write_evaluation(bad)
        path.write_text(json.dumps(bad))
        with pytest.raises(RunError, match=str(path)):
            run.evaluation()


def test_a_mistake_names_the_file_the_field_and_the_value(run: Run, record: dict[str, Any]) -> None:
    for change, message in (
        ({"los": 1.0}, r"run\.json: unknown field 'los'"),
        ({"status": "finnished"}, "unknown status 'finnished'"),
        ({"seed": "x", "pe": 3}, r"run\.json: pe: expected text, got 3 \(and 1 more\)"),
        ({"hardware": record["hardware"] | {"cores": "two"}},
         "hardware.cores: expected a whole number, got 'two'"),
        ({"config_hash": "xyz"}, "config_hash: .*'xyz'"),
        ({"seed": True}, "seed: expected a whole number, got True"),
    ):  # fmt: skip
        with pytest.raises(RunError, match=message):
            run.write(record | change)


@pytest.mark.parametrize("name", ["run.json", "evaluation.json"])
def test_a_record_of_a_later_format_asks_for_a_later_pe(run: Run, name: str) -> None:
    path = run.directory / name
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 2, "new": True}))
    read = run.read if name == "run.json" else run.evaluation
    with pytest.raises(RunError, match=r"is in format 2, and this version of pe .* update pe"):
        read()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_neither_written_nor_read(
    run: Run, record: dict[str, Any], value: float
) -> None:
    path = run.directory / "run.json"
    before = path.read_text()
    record["training"]["final_loss"] = value
    with pytest.raises(RunError, match=r"run\.json: training\.final_loss: expected a number"):
        run.write(record)
    record["training"]["final_loss"], record["recipe"]["steps"] = 3.0, value
    with pytest.raises(RunError, match=r"run\.json: not written, a value is NaN or infinite"):
        run.write(record)
    assert path.read_text() == before
    path.write_text(json.dumps(record))
    with pytest.raises(RunError, match=r"run\.json: damaged record \((NaN|Infinity) is not a"):
        run.read()


@pytest.mark.parametrize("name", ["run.json", "evaluation.json"])
def test_a_crash_between_write_and_rename_leaves_the_old(
    run: Run, record: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    before = {p.name: p.read_text() for p in run.directory.iterdir()}

    def crash(*arguments: object) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(RunError, match="power cut"):
        run.write(record | {"seed": 4}) if name == "run.json" else run.write_evaluation(
            evaluation() | {"seconds": 9.0}
        )
    assert {p.name: p.read_text() for p in run.directory.iterdir()} == before


DAMAGES = {
    "run.json": ["", "{", "[]", "null", '{"schema": 1}', "\udcff"],
    "evaluation.json": ["", "{", "[]", '{"schema": 1}', "\udcff"],
    "metrics.jsonl": ["{\n", "[1]\n", '{"loss": 2.0}\n', '{"step": 1, "loss": NaN}\n', "\udcff\n",
                      '{"step": 1}\n\n{"step": 2}\n', '{"step": 1}\n{"st'],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in DAMAGES.items() for text in texts]
)
def test_load_names_every_damaged_file(run: Run, tmp_path: Path, name: str, text: str) -> None:
    other = book_records.record("other", "rope", 0)
    whole = Run(tmp_path / "other" / "whole")
    whole.write(other | {"run": "whole"})
    (whole.directory / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n')
    broken = Run(tmp_path / "other" / "broken")
    broken.write(other | {"run": "broken"})
    (broken.directory / "run.json").write_text("{")
    path = run.directory / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunError) as error:
        runs.load(tmp_path)
    assert str(path) in str(error.value)
    assert str(broken.directory / "run.json") in str(error.value)
    assert "whole" not in str(error.value)


def test_a_damaged_recipe_or_hit_is_named_with_its_file(
    run: Run, record: dict[str, Any], tmp_path: Path
) -> None:
    path = run.directory / "run.json"
    for field, value in (("context_length", []), ("context_length", None), ("beta1", "x")):
        broken = record | {"recipe": record["recipe"] | {field: value}}
        path.write_text(json.dumps(broken))
        with pytest.raises(RunError, match=rf"run\.json: recipe: .*{field}: expected a .* got"):
            _ = Run(run.directory).recipe
        if field == "context_length":
            with pytest.raises(RunError, match=r"run\.json: recipe: context_length: expected"):
                runs.load(tmp_path)
    for prompts in ("01x", ""):
        with pytest.raises(ValidationError, match="prompts"):
            NeedleCell(prompts=prompts, reason=None)
    assert NeedleCell(prompts="0110", reason=None).prompts == "0110"


@pytest.mark.parametrize("left", ["metrics.jsonl", "evaluation.json"])
def test_a_lost_run_json_is_not_a_run_that_never_was(run: Run, tmp_path: Path, left: str) -> None:
    for name in {"run.json", "metrics.jsonl", "evaluation.json"} - {left}:
        (run.directory / name).unlink()
    with pytest.raises(RunError, match=r"run\.json: there is no such record"):
        runs.load(tmp_path)


def test_a_killed_runs_torn_line_is_no_damage_while_it_is_running(
    run: Run, record: dict[str, Any], tmp_path: Path
) -> None:
    (run.directory / "metrics.jsonl").write_text('{"step": 1, "loss": 5.0}\n{"step": 2, "l')
    run.write(record | {"status": "running", "training": None, "finished": None})
    assert runs.load(tmp_path)["status"].tolist() == ["running"]


def test_lost_metrics_of_a_run_that_trained_are_damage(run: Run, tmp_path: Path) -> None:
    (run.directory / "metrics.jsonl").unlink()
    with pytest.raises(RunError, match=r"metrics\.jsonl: there is no such record; restore"):
        runs.load(tmp_path)


def test_load_gives_one_row_a_run(run: Run, record: dict[str, Any], tmp_path: Path) -> None:
    young = Run(tmp_path / "local" / "young")
    young.write(
        book_records.record(
            "local", "rope", 0, run="young", status="running", training=None, model=None, data=None
        )
    )
    table = runs.load(tmp_path)
    assert table["run"].tolist() == [record["run"], "young"]
    row = table.iloc[0].to_dict()
    wanted = {
        "study": "demo", "pe": "pope", "seed": 3, "status": "complete", "recipe": "demo",
        "config_hash": record["config_hash"], "steps": 100, "tokens": 204800,
        "parameters": 123456, "tokens_per_second": 9812.3, "wall_seconds": 125.0,
        "final_loss": 3.55, "validation_loss": 3.5, "context_length": 256,
        "commit": record["code"]["commit"], "directory": str(run.directory),
        "ppl@256": 40.0, "ppl@1x": 40.0, "ppl@512": 41.5, "ppl@2x": 41.5, "ppl@640": 42.0,
    }  # fmt: skip
    assert {key: row[key] for key in wanted} == pytest.approx(wanted)
    assert "ppl@2.5x" not in row
    assert row["start_from"] is None
    assert row["start_step"] is None
    assert table[["ppl@1024", "ppl@4x", "mfu", "peak_memory_gib"]].isna().all(axis=None)
    assert table.iloc[1][["steps", "final_loss", "ppl@1x", "parameters"]].isna().all()
    assert runs.load(tmp_path, study="local")["run"].tolist() == ["young"]
    with pytest.raises(RunError, match=r"unknown study 'locl' \(did you mean 'local'\?\)"):
        runs.load(tmp_path, study="locl")
    (tmp_path / "empty").mkdir()
    assert set(runs.load(tmp_path, study="empty")) == set(runs.table.COLUMNS)
    for below in (tmp_path / "local", tmp_path / "local" / "young"):
        with pytest.raises(RunError, match="folder of one study .*; give study='local'"):
            runs.load(below)


def test_load_tells_the_runs_of_a_sweep_apart() -> None:
    """By options and rates."""
    table = runs.load(COMMITTED, study="rates")
    keys = ["pe_options", "learning_rate", "encoding_rate", "batch_size"]
    assert table[keys].notna().all(axis=None)
    for run in runs.find(COMMITTED, study="rates"):
        row = table[table["run"] == run.name].iloc[0]
        recipe = run.record.recipe
        assert row["learning_rate"] == recipe["learning_rate"]
        assert json.loads(row["pe_options"] or "{}") == recipe["pe_options"]


def test_load_has_the_share_of_prompts_that_each_run_answered() -> None:
    table = runs.load(COMMITTED, study="scaffold").set_index("run")
    for run in runs.find(COMMITTED, study="scaffold"):
        evaluation = run.evaluation()
        assert evaluation is not None
        cells = evaluation["retrieval"]["tasks"]["passkey"]
        assert table.loc[run.name, "passkey@2048"] == sum(cells["2048"]["exact"]) / 110
        assert table.loc[run.name, "passkey@2x"] == table.loc[run.name, "passkey@2048"]


def test_runs_are_looked_for_where_the_environment_says(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    assert runs.root() == tmp_path
    assert [r.directory for r in runs.find()] == [run.directory]
    monkeypatch.delenv("PE_RUNS")
    assert runs.root() == Path(__file__).parent.parent / "runs"
    for study in ("..", ".", "*", f"{run.study}/"):
        with pytest.raises(RunError, match="unknown study"):
            runs.find(tmp_path, study)
    for study in ("", 3):
        with pytest.raises(RunError, match=f"study: expected the name of a folder .*{study!r}"):
            runs.find(tmp_path, study)  # type: ignore[arg-type]
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    with pytest.raises(RunError, match=f"for a study write study='{run.study}'"):
        runs.find(run.study)
    monkeypatch.delenv("PE_RUNS")
    with pytest.raises(RunError, match="nosuch: there is no such folder of runs"):
        runs.load(tmp_path / "nosuch")


def test_metrics_is_a_table_with_all_columns(run: Run) -> None:
    (run.directory / "metrics.jsonl").write_text(
        '{"step": 5, "loss": 5.0, "lr": 0.1}\n{"step": 5, "validation_loss": 5.5}\n'
    )
    table = run.metrics()
    assert table["step"].tolist() == [5, 5]
    assert table["loss"].dropna().tolist() == [5.0]
    assert table["validation_loss"].dropna().tolist() == [5.5]
    later = ("mfu", "total_tokens", "validation_perplexity")  # older records lack some
    assert table[list(later)].isna().all(axis=None)
    assert Run(run.directory / "empty").metrics().empty


def test_a_missing_record_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path / "demo" / "nothing")
    with pytest.raises(RunError, match=r"nothing/run\.json: there is no such record"):
        run.read()
    assert not run.exists()
    assert run.evaluation() is None
    assert run.metric_lines() == []
    assert not run.directory.exists(), "looking at a run creates nothing"


def test_a_run_can_fail_before_it_has_a_record(tmp_path: Path) -> None:
    run = Run(tmp_path / "demo" / "early", recipe("demo", pe="nope", seed=2))
    run.fail("a cell failed: ValueError")
    record = run.read()
    assert (record["status"], record["reason"]) == ("failed", "a cell failed: ValueError")
    assert (record["pe"], record["seed"], record["study"]) == ("nope", 2, "demo")
    assert record["finished"] is not None
    assert record["training"] is None
    assert Run(run.directory).recipe == recipe("demo", pe="nope", seed=2)


def test_failing_keeps_what_is_recorded(run: Run, record: dict[str, Any]) -> None:
    run.fail("later trouble")
    failed = run.read()
    assert failed["training"] == record["training"]
    assert failed["created"] == record["created"]
    assert failed["finished"] != record["finished"]


def test_update_changes_only_what_is_given(run: Run, record: dict[str, Any]) -> None:
    assert run.update(seed=9) == record | {"seed": 9} == run.read()
    with pytest.raises(RunError, match="status"):
        run.update(status="done")


def test_a_run_that_goes_on_names_every_commit_that_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "demo" / "resumed", recipe("demo"))

    def session(commit: str, step: int) -> None:
        code = {"commit": commit, "dirty": False, "version": "0.1.0", "source": "git"}
        monkeypatch.setattr("pe.runs.provenance.code", lambda: code)
        run.start()
        run.begin_session(step)

    session("aaa", 0)
    session("bbb", 120)
    assert [(s.step, s.code.commit) for s in run.record.sessions] == [(0, "aaa"), (120, "bbb")]
    session("ccc", 120)  # the steps of bbb were lost
    assert run.record.commits == ["aaa", "ccc"]
    assert runs.load(tmp_path)["commit"].tolist() == ["aaa, ccc"]
    session("ddd", 0)  # no checkpoint was there
    assert run.record.commits == ["ddd"]


def test_an_older_record_that_is_resumed_keeps_the_commit_that_began_it(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    run = Run(tmp_path / "demo" / record["run"], recipe("demo"))
    run.write(record | {"status": "interrupted"})
    run.start()
    assert run.record.created == record["created"]
    run.begin_session(60)
    assert [s.step for s in run.record.sessions] == [0, 60]
    assert run.record.commits[0] == record["code"]["commit"]


def test_the_signal_that_stopped_a_run_is_a_field_of_its_own(run: Run) -> None:
    run.fail("stopped after step 3", "interrupted", "SIGTERM")
    assert (run.record.signal, run.record.reason) == ("SIGTERM", "stopped after step 3")
    run.fail("the disk is full")
    assert run.record.signal is None


HOLD = """
import sys, time
from pe.runs import Run
with Run(sys.argv[1]).lock():
    print("ready", flush=True)
    time.sleep(60)
"""


def test_a_second_process_is_refused_at_once_and_freed_by_a_kill(tmp_path: Path) -> None:
    run = Run(tmp_path / "demo" / "shared")
    assert run.busy() is None
    assert not run.directory.exists()
    command = [sys.executable, "-c", HOLD, str(run.directory)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        holds = f"is being written by process {holder.pid} on "
        with pytest.raises(RunBusy, match=holds) as error, run.lock():
            raise AssertionError("two processes hold one folder")
        assert str(run.directory) in str(error.value)
        assert "choose another study or seed" in str(error.value)
        assert error.value.holder.startswith(f"process {holder.pid} on ")
        assert str(run.busy()) == str(error.value)
        assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
    finally:
        holder.kill()
        holder.communicate()
    assert run.busy() is None
    with run.lock():
        assert f"process {os.getpid()} " in str(run.busy())
    assert run.busy() is None


def test_a_lock_is_freed_by_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with pytest.raises(ZeroDivisionError), run.lock():
        raise ZeroDivisionError
    assert run.busy() is None


def test_training_and_evaluating_respect_the_lock(tmp_path: Path) -> None:
    from pe.training.train import train

    run = Run(tmp_path / "run", recipe("demo"))
    with run.lock(), pytest.raises(RunBusy):
        train(run)
    assert not run.exists(), "a refused process must not write into the other's record"


def test_failed_runs_stay_out_of_tables_unless_asked_for(
    run: Run, record: dict[str, Any], tmp_path: Path
) -> None:
    broken = Run(tmp_path / "demo" / "broken")
    broken.write(record | {"run": "broken", "status": "failed", "reason": "ValueError: no text"})
    assert [r.name for r in runs.find(tmp_path)] == [run.name]
    assert [r.name for r in runs.find(tmp_path, failed=True)] == ["broken", run.name]
    assert runs.load(tmp_path)["run"].tolist() == [run.name]
    assert runs.load(tmp_path, failed=True)["status"].tolist() == ["failed", "complete"]
    (broken.directory / "run.json").write_text("{")
    with pytest.raises(RunError, match="broken/run.json: damaged record"):
        runs.load(tmp_path)
