"""A run that was killed ends as one that was not: same weights to the bit, same losses."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import (
    Crash,
    TrainingProcess,
    assert_same_weights,
    dying_after,
    killed_after,
    lines,
    tiny,
    wait_for_signal_at,
    write_corpus,
)

from pe.recipes.recipe import Recipe
from pe.runs import Run, RunError
from pe.training import checkpoint
from pe.training.loop import Trainer
from pe.training.processes import Interrupted
from pe.training.start import checkpoints, read_state
from pe.training.stop import StopSignal
from pe.training.train import train

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture
def recipe(shared: Path) -> Recipe:
    return tiny(shared / "corpus")


def uninterrupted(shared: Path, recipe: Recipe) -> Run:
    """The run that nobody stops, trained once per configuration and not changed by any test.

    How often it is saved belongs to no configuration, so every caller has to agree about it.
    """
    assert recipe.checkpoint_every == 5
    run = Run(shared / "plain" / recipe.run_name(), recipe)
    return train(run, quiet=True)


@pytest.mark.parametrize(("micro_batch_size", "seed"), [(0, 1), (1, 2)])
def test_killed_twice_at_random_steps_ends_as_if_never_killed(
    shared: Path, tmp_path: Path, micro_batch_size: int, seed: int
) -> None:
    recipe = tiny(shared / "corpus", micro_batch_size=micro_batch_size)
    run, plain = Run(tmp_path / recipe.run_name(), recipe), uninterrupted(shared, recipe)
    # Steps after the first checkpoint (5), the second in the second epoch (from step 15 on).
    draw = random.Random(seed)
    for step in (draw.randint(6, 13), draw.randint(15, 21)):
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
    unsaved = tiny(shared / "corpus", checkpoint_every=100)  # none but for the signal
    run = Run(tmp_path / unsaved.run_name(), unsaved)
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
    def pressed(*arguments: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("pe.data.prepare", pressed)
    run = Run(tmp_path / "run", recipe)
    with pytest.raises(KeyboardInterrupt):
        train(run, quiet=True)
    assert run.read()["status"] == "interrupted"
    assert run.record.signal == "SIGINT"


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


def test_a_kill_before_the_next_checkpoint_is_counted(tmp_path: Path, recipe: Recipe) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    for steps in (7, 1, 1):
        killed_after(run, steps)
    train(run, quiet=True)
    assert run.read()["training"]["resumes"] == 3


def test_a_kill_between_the_last_validation_and_the_end_records_it_once(
    shared: Path, tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, tracked = Run(tmp_path / recipe.run_name(), recipe), []
    uninterrupted(shared, recipe)  # before its values are tracked, too

    def log(self: Any, values: dict[str, Any], step: int) -> None:
        tracked.extend((step, name) for name in values if name == "validation_loss")

    monkeypatch.setattr("accelerate.Accelerator.log", log)

    class Killed(Trainer):
        def _validate(self) -> float:
            loss = super()._validate()
            if self.state.step == self.recipe.steps:
                raise Crash
            return loss

    for _ in range(2):
        with pytest.raises(Crash):
            train(run, quiet=True, trainer=Killed)
    train(run, quiet=True)
    assert lines(run) == lines(uninterrupted(shared, recipe))
    assert run.read()["training"]["validation_loss"] == lines(run)[-1][2]
    by_tokens = [(64 * step, "validation_loss") for step in (8, 16, 24)]
    assert tracked == by_tokens, "nor do trackers twice"
    assert_same_weights(run, uninterrupted(shared, recipe))


def test_a_killed_run_draws_the_same_dropout_and_keeps_the_same_best_weights(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    losses = {8: 3.0, 16: 2.0, 24: 2.5}
    monkeypatch.setattr(Trainer, "_mean_loss", lambda self, *_: losses[self.state.step])
    recipe = tiny(shared / "corpus", dropout=0.2, keep_best=True)
    plain = train(Run(tmp_path / "plain" / recipe.run_name(), recipe), quiet=True)
    run = Run(tmp_path / "killed" / recipe.run_name(), recipe)
    killed_after(run, 13)
    assert read_state(run.best).step == 8
    killed_after(run, 7)  # from the checkpoint of step 10 to step 17
    assert read_state(run.best).step == 16
    with pytest.raises(Crash):  # at step 15, the best of step 16 is not there yet
        train(run, quiet=True, trainer=dying_after(0))
    assert not run.best.exists()
    train(run, quiet=True)
    assert_same_weights(run, plain)
    for one in (plain, run):
        assert one.read()["training"]["best"] == {"step": 16, "validation_loss": 2.0}
    best = [AutoModelForCausalLM.from_pretrained(one.best).state_dict() for one in (plain, run)]
    last = AutoModelForCausalLM.from_pretrained(run.checkpoint).state_dict()
    assert all(torch.equal(value, best[1][name]) for name, value in best[0].items())
    assert not all(torch.equal(value, last[name]) for name, value in best[0].items())
    assert AutoTokenizer.from_pretrained(run.best).padding_side == "left"


def test_a_kill_while_the_best_weights_are_replaced_leaves_whole_ones_or_none(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {8: 3.0, 16: 2.0, 24: 2.5}
    monkeypatch.setattr(Trainer, "_mean_loss", lambda self, *_: losses[self.state.step])
    recipe = tiny(shared / "corpus", keep_best=True)
    run = Run(tmp_path / recipe.run_name(), recipe)
    usual = shutil.rmtree

    def killed(path: Path, ignore_errors: bool = False) -> None:
        folder = Path(path)
        if folder.parent == run.directory and (folder / "state.json").exists():
            (folder / "state.json").unlink()
            raise KeyboardInterrupt
        usual(path, ignore_errors=ignore_errors)

    for _ in range(2):  # while it is replaced, and while one that will be repeated is removed
        with monkeypatch.context() as patch:
            patch.setattr("pe.training.checkpoint.shutil.rmtree", killed)
            with pytest.raises(KeyboardInterrupt):
                train(run, quiet=True)
        killed_after(run, 2)  # from the checkpoint of step 15 to step 17
        assert read_state(run.best).step == 16
    train(run, quiet=True)
    assert run.read()["training"]["best"] == {"step": 16, "validation_loss": 2.0}
    assert read_state(run.best).step == 16


def test_best_weights_that_a_run_has_passed_cannot_be_asked_for(
    shared: Path, tmp_path: Path
) -> None:
    def run(**changes: Any) -> Run:
        return Run(tmp_path / "study" / "run", tiny(shared / "corpus", **changes))

    killed_after(run(), 4)  # before the first checkpoint nothing is passed
    killed_after(run(keep_best=True), 9)
    killed_after(run(), 9)
    for _ in range(2):  # first it is stopped, then complete
        with pytest.raises(
            RunError, match=r"^keep_best: .*study/run has passed step \d+ .*study-2"
        ):
            train(run(keep_best=True), quiet=True)
        train(run(), quiet=True)
    assert run().read()["training"]["resumes"] == 2


def test_a_torn_last_line_of_metrics_does_not_stop_a_resume(
    shared: Path, tmp_path: Path, recipe: Recipe
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    killed_after(run, 7)
    with open(run.directory / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "lo')
    train(run, quiet=True)
    assert lines(run) == lines(uninterrupted(shared, recipe))


@pytest.fixture(scope="module")
def killed_at_17(shared: Path) -> Run:
    """Checkpoints of steps 10 and 15, for tests to copy and to damage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_CACHE", str(shared / "cache"))
        chosen = tiny(shared / "corpus")
        run = Run(shared / "killed" / chosen.run_name(), chosen)
        killed_after(run, 17)
    return run


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
    shared: Path, tmp_path: Path, recipe: Recipe, killed_at_17: Run,
    capsys: pytest.CaptureFixture[str], how: str,
) -> None:  # fmt: skip
    run = Run(tmp_path / recipe.run_name(), recipe)
    shutil.copytree(killed_at_17.directory, run.directory)
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
    tmp_path: Path, recipe: Recipe, killed_at_17: Run
) -> None:
    run = Run(tmp_path / recipe.run_name(), recipe)
    shutil.copytree(killed_at_17.directory, run.directory)
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


def test_beyond_a_million_steps_the_newest_checkpoint_stays(tmp_path: Path) -> None:
    for step in (999_900, 1_000_000, 1_000_100):
        folder = tmp_path / f"step-{step:06d}"
        folder.mkdir()
        (folder / "state.json").write_text("{}")
    checkpoint._prune(tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-1000000", "step-1000100"]


def test_steps_that_a_run_has_passed_are_kept_from_its_checkpoints_or_refused(
    shared: Path, tmp_path: Path
) -> None:
    def run(**changes: Any) -> Run:
        fields = {"steps": 8, "checkpoint_every": 2, "validate_every": 0} | changes
        return Run(tmp_path / "study" / "run", tiny(shared / "corpus", **fields))

    def kept() -> list[str]:
        return [path.name for path in checkpoints(tmp_path / "study" / "run/checkpoints/kept")]

    killed_after(run(keep_steps=[1]), 5)
    for field in ("keep_steps", "keep_states"):
        with pytest.raises(
            RunError,
            match=f"^{field}: .*study/run has passed step 3 and did not keep it; train a new run "
            f"in another study, such as 'study-2', or set {field} to later steps$",
        ):
            train(run(**{field: [3, 4, 6]}), quiet=True)
    assert kept() == ["step-000001"]
    train(run(keep_steps=[1], keep_states=[4, 6]), quiet=True)  # of step 4 there is a checkpoint
    assert kept() == ["step-000001", "step-000004", "step-000006"]
    assert (tmp_path / "study/run/checkpoints/kept/step-000004/optimizer.bin").exists()
    with pytest.raises(RunError, match="keep_states: .* passed steps 1, 5 and did not keep them"):
        train(run(keep_steps=[1], keep_states=[1, 4, 5]), quiet=True)
    assert train(run(keep_steps=[1, 4, 8]), quiet=True).read()["status"] == "complete"


def test_a_complete_run_is_not_trained_again(shared: Path, recipe: Recipe) -> None:
    def never(run: Run, quiet: bool) -> Trainer:
        raise AssertionError

    run = uninterrupted(shared, recipe)
    assert train(Run(run.directory, recipe), trainer=never).read()["status"] == "complete"


def test_a_folder_of_another_configuration_is_refused(shared: Path, recipe: Recipe) -> None:
    run = uninterrupted(shared, recipe)
    other = tiny(shared / "corpus", learning_rate=2e-2)
    with pytest.raises(RunError, match=f"{recipe.config_hash()}, not {other.config_hash()}"):
        train(Run(run.directory, other))


def test_changed_text_is_refused_at_a_resume(tmp_path: Path) -> None:
    recipe = tiny(write_corpus(tmp_path / "corpus"))
    run = Run(tmp_path / "runs" / recipe.run_name(), recipe)
    killed_after(run, 6)
    with open(tmp_path / "corpus" / "train.txt", "a") as file:
        file.write("one more word")
    with pytest.raises(RunError, match="its checkpoint was trained on other data"):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"
    assert "delete the folder or choose another study" in run.read()["reason"]


def test_a_second_signal_acts_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
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
