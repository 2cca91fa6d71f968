"""A run that was killed ends as one that was not: same weights to the bit, same losses."""

from __future__ import annotations

import functools
import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    TrainingProcess,
    assert_same_weights,
    lines,
    tiny,
    wait_for_signal_at,
    write_corpus,
)

from pe.runs import Run, RunError
from pe.training import checkpoint
from pe.training.recipe import Recipe
from pe.training.signals import Interrupted
from pe.training.trainer import _Training, train

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def recipe(shared: Path) -> Recipe:
    return tiny(shared / "corpus")


def uninterrupted(shared: Path, recipe: Recipe) -> Run:
    run = Run(shared / "plain" / recipe.run_name(), recipe)
    return train(run, quiet=True)


def stop_after(monkeypatch: pytest.MonkeyPatch, steps: int, error: BaseException) -> None:
    """Training in this process dies when it has done this many steps."""
    step, done = _Training._step, 0

    def counted(self: Any, batch: Any) -> Any:
        nonlocal done
        if done == steps:
            raise error
        done += 1
        return step(self, batch)

    monkeypatch.setattr(_Training, "_step", counted)


class Crash(RuntimeError):
    """Stands for whatever ends a process."""


@pytest.mark.parametrize("micro_batch_size", [0, 1])
def test_killed_twice_at_random_steps_ends_as_if_never_killed(
    shared: Path, tmp_path: Path, recipe: Recipe, micro_batch_size: int
) -> None:
    recipe = tiny(shared / "corpus", micro_batch_size=micro_batch_size)
    run, plain = Run(tmp_path / recipe.run_name(), recipe), uninterrupted(shared, recipe)
    # Steps after the first checkpoint (5), the second in the second epoch (from step 15 on).
    kills = random.SystemRandom().randint(6, 13), random.SystemRandom().randint(15, 21)
    print("killed at", kills)
    for step in kills:
        hook = functools.partial(wait_for_signal_at, step)
        process = TrainingProcess(run, shared / "cache", hook)
        process.signal_at(step, signal.SIGKILL)
        assert process.end() == -signal.SIGKILL
        assert run.read()["status"] == "running"
        assert not run.checkpoint.exists()
    process = TrainingProcess(run, shared / "cache")
    assert process.end() == 0, process.output()
    assert_same_weights(run, plain)
    assert lines(run) == lines(plain)
    record = run.read()
    assert record["status"] == "complete"
    assert record["training"]["resumes"] == 2
    assert record["training"]["tokens"] == plain.read()["training"]["tokens"] == 24 * 64
    assert record["training"]["final_loss"] == plain.read()["training"]["final_loss"]


def test_the_recipe_of_these_tests_crosses_an_epoch(shared: Path, recipe: Recipe) -> None:
    record = uninterrupted(shared, recipe).read()
    windows = (record["data"]["train_tokens"] - 1) // recipe.context_length
    assert 14 <= windows / recipe.batch_size < 16
    assert windows % recipe.batch_size, "an epoch should end inside a batch"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_why_and_loses_nothing(
    shared: Path, tmp_path: Path, recipe: Recipe, number: signal.Signals
) -> None:
    recipe = tiny(shared / "corpus", checkpoint_every=100)  # none but for the signal
    run = Run(tmp_path / recipe.run_name(), recipe)
    process = TrainingProcess(run, shared / "cache", functools.partial(wait_for_signal_at, 12))
    process.signal_at(12, number)
    assert process.end() > 0
    record = run.read()
    step = run.metric_lines()[-1]["step"]
    assert record["status"] == "interrupted"
    assert record["signal"] == number.name
    assert record["reason"].startswith(f"stopped after step {step} of 24")
    assert record["finished"] is not None
    saved = checkpoint.checkpoints(run.directory / "checkpoints")[-1]
    assert saved.name == f"step-{step:06d}"
    assert saved.name in record["reason"]
    train(run, quiet=True)
    again = run.read()
    assert (again["status"], again["reason"]) == ("complete", None)
    assert again["created"] == record["created"]
    assert again["training"]["resumes"] == 1
    assert_same_weights(run, uninterrupted(shared, recipe))


def test_ctrl_c_while_the_corpus_is_prepared_is_no_failure(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed(*arguments: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("pe.training.trainer.prepare", pressed)
    run = Run(tmp_path / "run", recipe)
    with pytest.raises(KeyboardInterrupt):
        train(run, quiet=True)
    assert run.read()["status"] == "interrupted"
    assert "SIGINT" in run.read()["reason"]


def die_before_the_rename() -> None:
    """Hook: the third checkpoint is written and never gets its name."""
    rename = os.rename

    def killed(source: Any, target: Any) -> None:
        if str(target).endswith("step-000015"):
            os.kill(os.getpid(), signal.SIGKILL)
        rename(source, target)

    os.rename = killed  # type: ignore[assignment]


def test_a_crash_while_saving_leaves_the_checkpoint_before(
    shared: Path, tmp_path: Path, recipe: Recipe
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    process = TrainingProcess(run, shared / "cache", hook=die_before_the_rename)
    assert process.end() == -signal.SIGKILL
    folder = run.directory / "checkpoints"
    assert [p.name for p in checkpoint.checkpoints(folder)] == ["step-000005", "step-000010"]
    assert (folder / ".step-000015.partial" / "model.safetensors").exists()
    train(run, quiet=True)
    assert_same_weights(run, uninterrupted(shared, recipe))
    assert lines(run) == lines(uninterrupted(shared, recipe))
    assert sorted(p.name for p in folder.iterdir()) == ["step-000020", "step-000024"]


def test_a_kill_before_the_next_checkpoint_is_counted(
    shared: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    for steps in (7, 1, 1):
        with monkeypatch.context() as patched:
            stop_after(patched, steps, Crash())
            with pytest.raises(Crash):
                train(run, quiet=True)
    train(run, quiet=True)
    assert run.read()["training"]["resumes"] == 3


def test_a_kill_between_validation_and_record_leaves_no_line_twice(
    shared: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)

    def killed(*arguments: Any) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr("pe.training.trainer.summary", killed)
        with pytest.raises(Crash):
            train(run, quiet=True)
    train(run, quiet=True)
    assert lines(run) == lines(uninterrupted(shared, recipe))
    assert_same_weights(run, uninterrupted(shared, recipe))


def test_a_torn_last_line_of_metrics_does_not_stop_a_resume(
    shared: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    with monkeypatch.context() as patched:
        stop_after(patched, 7, Crash())
        with pytest.raises(Crash):
            train(run, quiet=True)
    with open(run.directory / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "lo')
    train(run, quiet=True)
    assert lines(run) == lines(uninterrupted(shared, recipe))


def damage(path: Path, how: str) -> None:
    if how == "truncated weights":
        file = path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    elif how == "lost optimizer":
        (path / "optimizer.bin").unlink()
    elif how == "empty optimizer":
        (path / "optimizer.bin").write_bytes(b"")
    elif how == "garbled state":
        (path / "state.json").write_text('{"step": 1')


@pytest.mark.parametrize(
    "how", ["truncated weights", "lost optimizer", "empty optimizer", "garbled state"]
)
def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(
    shared: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], how: str,
) -> None:  # fmt: skip
    run = Run(tmp_path / recipe.run_name(), recipe)
    with monkeypatch.context() as patched:
        stop_after(patched, 17, Crash())
        with pytest.raises(Crash):
            train(run, quiet=True)
    newest = checkpoint.checkpoints(run.directory / "checkpoints")[-1]
    assert newest.name == "step-000015"
    damage(newest, how)
    train(run)
    said = capsys.readouterr().err
    assert f"{newest} cannot be read" in said
    assert "going on from the checkpoint before it" in said
    assert_same_weights(run, uninterrupted(shared, recipe))
    assert lines(run) == lines(uninterrupted(shared, recipe))


def test_when_no_checkpoint_can_be_read_training_does_not_silently_start_again(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    with monkeypatch.context() as patched:
        stop_after(patched, 12, Crash())
        with pytest.raises(Crash):
            train(run, quiet=True)
    found = checkpoint.checkpoints(run.directory / "checkpoints")
    assert len(found) == 2
    for path in found:
        damage(path, "truncated weights")
    before = (run.directory / "metrics.jsonl").read_text()
    with pytest.raises(RunError, match="delete .*checkpoints to train from the beginning") as error:
        train(run, quiet=True)
    assert all(str(path) in str(error.value) for path in found)
    assert (run.directory / "metrics.jsonl").read_text() == before


def test_the_last_two_checkpoints_stay_and_each_is_a_model(shared: Path, recipe: Recipe) -> None:
    from transformers import AutoModelForCausalLM

    run = uninterrupted(shared, recipe)
    found = checkpoint.checkpoints(run.directory / "checkpoints")
    assert [p.name for p in found] == ["step-000020", "step-000024"]
    assert sorted(p.name for p in (run.directory / "checkpoints").iterdir()) == [
        p.name for p in found
    ]
    tokens = torch.arange(40)[None] % 264
    logits = {}
    for path in (*found, run.checkpoint):
        model, report = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        with torch.no_grad():
            logits[path.name] = model.eval()(tokens).logits
    assert torch.equal(logits["step-000024"], logits["checkpoint"])
    assert not torch.equal(logits["step-000020"], logits["checkpoint"])


def test_a_complete_run_is_not_trained_again(
    shared: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = uninterrupted(shared, recipe)
    monkeypatch.setattr("pe.training.trainer._Training", None)
    assert train(Run(run.directory, recipe)).read()["status"] == "complete"


def test_a_folder_of_another_configuration_is_refused(shared: Path, recipe: Recipe) -> None:
    run = uninterrupted(shared, recipe)
    other = tiny(shared / "corpus", learning_rate=2e-2)
    with pytest.raises(RunError, match=f"{recipe.config_hash()}, not {other.config_hash()}"):
        train(Run(run.directory, other))


def test_changed_text_is_refused_at_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(write_corpus(tmp_path / "corpus"))
    run = Run(tmp_path / "runs" / recipe.run_name(), recipe)
    with monkeypatch.context() as patched:
        stop_after(patched, 6, Crash())
        with pytest.raises(Crash):
            train(run, quiet=True)
    with open(tmp_path / "corpus" / "train.txt", "a") as file:
        file.write("one more word")
    with pytest.raises(RunError, match="its checkpoint was trained on data"):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"
    assert "delete the folder or choose another study" in run.read()["reason"]


def test_a_second_signal_acts_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    from pe.training.signals import StopSignal

    # A shell starts its background jobs with SIGINT ignored; Python's own handler is meant here.
    started_with = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.name == "SIGINT"
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, started_with)
    assert issubclass(Interrupted, RuntimeError)
