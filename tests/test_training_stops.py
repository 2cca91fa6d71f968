"""What must stop training, and what it must leave behind."""

from __future__ import annotations

import errno
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import spoiled, tiny, train_tiny, with_step

import pe
from pe.runs import Run, RunError
from pe.training import checkpoint, trackers
from pe.training.metrics import NonFiniteLoss
from pe.training.start import start_of
from pe.training.train import train

pytestmark = pytest.mark.usefixtures("alone")


def last_weights_are_finite(run: Run) -> None:
    from safetensors.torch import load_file

    for path in (run.directory / "checkpoints").rglob("model.safetensors"):
        for name, value in load_file(path).items():
            assert torch.isfinite(value).all(), (path, name)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("log_every", [1, 10])
def test_a_loss_that_is_no_number_stops_training(
    shared: Path, tmp_path: Path, value: float, log_every: int
) -> None:
    chosen = tiny(shared / "corpus", log_every=log_every)
    run = Run(tmp_path / "run", chosen)
    with pytest.raises(NonFiniteLoss, match="at step 13; last good checkpoint: ") as error:
        train(run, quiet=True, trainer=spoiled(13, value))
    saved = checkpoint.checkpoints(run.directory / "checkpoints")
    assert saved[-1].name == "step-000010"
    assert str(saved[-1]) in str(error.value)
    record = run.read()
    assert record["status"] == "failed"
    assert record["reason"] == f"NonFiniteLoss: {error.value}"
    assert "try a lower learning_rate" in record["reason"]
    assert not run.checkpoint.exists()
    assert run.metric_lines()[-1]["step"] <= 12
    assert "NaN" not in (run.directory / "metrics.jsonl").read_text()


def test_before_the_first_checkpoint_the_message_says_so(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteLoss, match="at step 2; there is no checkpoint yet"):
        train_tiny(tmp_path, shared, spoiled(2, math.nan))


def test_a_learning_rate_that_blows_up_leaves_no_broken_checkpoint(
    shared: Path, tmp_path: Path
) -> None:
    chosen = tiny(
        shared / "corpus", learning_rate=1e38, warmup_steps=0, checkpoint_every=1, steps=6
    )
    run = Run(tmp_path / "run", chosen)
    with pytest.raises(NonFiniteLoss):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"
    last_weights_are_finite(run)


def test_weights_that_overflow_after_a_good_loss_are_not_saved(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, calls = torch.optim.AdamW.step, [0]

    def overflow(self: torch.optim.AdamW, *rest: Any) -> Any:
        calls[0] += 1
        done = step(self, *rest)
        if calls[0] == 10:
            self.param_groups[0]["params"][0].data[0] = math.inf
        return done

    monkeypatch.setattr(torch.optim.AdamW, "step", overflow)
    run = Run(tmp_path / "run", tiny(shared / "corpus"))
    with pytest.raises(NonFiniteLoss, match="weights are not finite after step 10; last good"):
        train(run, quiet=True)
    assert [p.name for p in checkpoint.checkpoints(run.directory / "checkpoints")] == [
        "step-000005"
    ]
    last_weights_are_finite(run)


def test_any_other_error_is_recorded_and_raised(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", tiny(tmp_path / "nosuch"))
    with pytest.raises(ValueError, match="nosuch"):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"
    assert run.read()["reason"].startswith("ValueError: ")
    assert run.busy() is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluation_lengths": [16, 4096]}, "0 evaluation windows of 4,096 tokens are possible"),
        (
            {"retrieval_samples": 1},
            "evaluation_lengths: 16 tokens are too few for a retrieval text, which takes [0-9]+; "
            "leave that length out",
        ),
    ],
)
def test_what_evaluation_will_refuse_is_refused_before_the_first_step(
    shared: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    run = Run(tmp_path / "run", tiny(shared / "corpus", **changes))
    with pytest.raises(ValueError, match=message):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"
    assert not run.metric_lines()


def test_windows_that_do_not_divide_are_refused_before_any_work(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 3)
    run = Run(tmp_path / "run", tiny(shared / "corpus"))
    with pytest.raises(ValueError, match="batch_size 4 does not divide among 3 processes"):
        train(run, quiet=True)
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 2)
    odd = tiny(shared / "corpus", batch_size=12, micro_batch_size=4)
    run = Run(tmp_path / "other", odd)
    with pytest.raises(ValueError, match="micro_batch_size 4 does not divide the 6 windows"):
        train(run, quiet=True)


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "study" / "run", tiny(shared / "corpus", steps=12, warmup_steps=0))
    save = checkpoint.Accelerator.save_state

    def full(self: Any, folder: str) -> Any:
        if "step-000010" in folder:
            raise OSError(errno.ENOSPC, "No space left on device", folder)
        return save(self, folder)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Accelerator, "save_state", full)
        with pytest.raises(
            RunError, match=r"step-000010 cannot be written \(OSError.* No space"
        ) as e:
            train(run, quiet=True)
    assert "MiB are free there); make room" in str(e.value)
    assert "\n" not in str(e.value)
    saved = [path.name for path in (run.directory / "checkpoints").iterdir()]
    assert saved == ["step-000005"], "half a checkpoint would leave no room to record the reason"
    assert run.record.reason == f"RunError: {e.value}"
    assert "Traceback" in run.traceback.read_text()
    assert "No space left on device" in run.traceback.read_text()
    record = train(run, quiet=True).record
    assert (record.status, [s.step for s in record.sessions]) == ("complete", [0, 5])
    assert not run.traceback.exists()


def test_a_failure_that_cannot_be_recorded_is_still_the_failure_that_is_raised(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def broken(trainer: Any, batch: Any, usual: Any) -> Any:
        monkeypatch.setattr("pe.runs.folder.write_atomically", full)
        raise ZeroDivisionError("the cause")

    with pytest.raises(ZeroDivisionError, match="the cause") as error:
        train_tiny(tmp_path, shared, with_step(broken))
    assert "could not be recorded: " in error.value.__notes__[0]


def test_a_folder_that_cannot_be_written_is_named_with_what_to_do(
    shared: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    run = Run(tmp_path / "file" / "study" / "run", tiny(shared / "corpus"))
    with pytest.raises(
        RunError, match=r"study/run cannot be written .*, or set PE_RUNS to another"
    ):
        train(run, quiet=True)


def test_damaged_weights_are_named_with_what_to_do(shared: Path, tmp_path: Path) -> None:
    run = train_tiny(tmp_path, shared, keep_steps=[5])
    after = tiny(shared / "corpus", pe="nope", start_from=run.name)
    for weights, work in (
        (run.checkpoint, lambda: pe.evaluate(run, quiet=True)),
        (run.checkpoint, lambda: train(Run(tmp_path / "after", after), quiet=True)),
    ):
        (weights / "model.safetensors").write_bytes(b"torn")
        with pytest.raises(
            RunError, match=f"{weights} cannot be read .*; train that run once more"
        ):
            work()
    state = run.directory / "checkpoints" / "kept" / "step-000005" / "state.json"
    state.write_text("{")
    early = tiny(shared / "corpus", pe="nope", start_from=run.name, start_step=5)
    with pytest.raises(RunError, match=f"{state} is damaged .*; delete {state.parent}"):
        start_of(early, tmp_path)


@pytest.mark.filterwarnings("ignore:.log_with=")  # it is not installed where the tests run
def test_a_tracker_that_cannot_be_opened_is_one_line(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*arguments: Any, **options: Any) -> None:
        raise ConnectionError("no network\nat all")

    monkeypatch.setenv("PE_TRACKERS", "tensorboard")
    monkeypatch.setattr(trackers, "get_available_trackers", lambda: ["tensorboard"])
    monkeypatch.setattr(checkpoint.Accelerator, "init_trackers", offline)
    run = Run(tmp_path / "study" / "run", tiny(shared / "corpus"))
    says = r"PE_TRACKERS=tensorboard cannot be opened \(ConnectionError: no network at all\)"
    with pytest.raises(RunError, match=says):
        train(run, quiet=True)
    assert run.record.status == "failed"
    assert "no network\nat all" in run.traceback.read_text()
