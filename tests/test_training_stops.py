"""What must stop training, and what it must leave behind."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import spoiled, tiny, train_tiny

from pe.runs import Run
from pe.training import checkpoint
from pe.training.loop import train
from pe.training.metrics import NonFiniteLoss

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
            "evaluation_lengths: 16 tokens have no room for a retrieval text, which takes [0-9]+; "
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
    run = Run(tmp_path / "other", tiny(shared / "corpus", micro_batch_size=4))
    with pytest.raises(ValueError, match="micro_batch_size 4 does not divide the 2 windows"):
        train(run, quiet=True)
