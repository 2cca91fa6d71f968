"""Training says how it goes: on the screen, in the record, to trackers."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from model_tools import cheaper, in_a_run, one_per_kind
from tiny_training import lines, spoiled, tiny, train_tiny, weights, with_step

import pe
from pe.data import prepare
from pe.encodings import encoding
from pe.notebooks import page
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training import trackers
from pe.training.loop import Trainer
from pe.training.metrics import NonFiniteLoss
from pe.training.train import train

pytestmark = pytest.mark.usefixtures("alone")


@pytest.fixture(scope="module")
def repeating(shared: Path) -> Path:
    """A corpus of sixteen letters over and over, prepared once for all encodings."""
    folder = shared / "repeating"
    folder.mkdir()
    for split, count in (("train", 150), ("validation", 50), ("test", 50)):
        (folder / f"{split}.txt").write_text(f"{split}: " + "abcdefghijklmnop" * count)
    return folder


@pytest.mark.parametrize("name", one_per_kind(pe.list_encodings(), in_a_run))
def test_forty_steps_on_a_repeating_text_are_learned(
    tmp_path: Path, repeating: Path, name: str
) -> None:
    """One encoding of each kind: laws check the gradients of all of them."""
    chosen = tiny(
        repeating, pe=name, pe_options=cheaper(name), steps=40, learning_rate=2e-2, batch_size=8,
        context_length=24, num_hidden_layers=1, checkpoint_every=100, validate_every=0,
    )  # fmt: skip
    run = train(Run(tmp_path / "run", chosen), quiet=True)
    found = [x["loss"] for x in run.metric_lines() if "loss" in x]
    assert found[0] == pytest.approx(math.log(264), rel=0.05)  # small weights guess evenly
    assert found[-1] < 0.25 * math.log(264)
    if encoding(name, head_dim=16, num_heads=2, original_length=24).relative:
        # An absolute one may learn by heart which letter stands where; other texts begin elsewhere.
        assert run.read()["training"]["validation_loss"] < 0.25 * math.log(264)


def test_a_finished_record_tells_what_was_done(shared: Path, tmp_path: Path) -> None:
    run = train_tiny(tmp_path, shared, pe="pope")
    record = run.read()
    training, data = record["training"], record["data"]
    assert (record["status"], record["reason"]) == ("complete", None)
    assert record["created"] <= record["finished"]
    assert (record["pe"], record["seed"], record["study"]) == ("pope", 0, tmp_path.name)
    assert record["run"] == run.name == run.recipe.run_name()
    assert record["config_hash"] == run.recipe.config_hash()
    assert Recipe.from_dict(record["recipe"]) == run.recipe
    assert training["steps"] == 24
    assert training["tokens"] == 24 * 4 * 16
    assert training["passes"] == pytest.approx(24 * 4 * 16 / data["train_tokens"], abs=1e-4)
    assert training["mfu"] is None  # no peak is known for this processor
    assert 0.05 < training["peak_memory_gib"] < 64
    rows = run.metrics().dropna(subset="loss")
    assert training["wall_seconds"] == pytest.approx(rows["seconds"].sum(), abs=0.01)
    assert training["tokens_per_second"] > 0
    assert rows["tokens"].sum() == training["tokens"]
    assert training["final_loss"] == pytest.approx(rows["loss"][-3:].mean(), abs=1e-5)
    stored = sum(v.numel() for v in weights(run).values())
    assert record["model"]["parameters"] == stored
    assert record["model"]["encoding_parameters"] > 0
    assert record["model"]["attention"] == "flash"
    fresh = prepare(run.recipe.corpus, run.recipe.vocab_size)
    assert data == fresh.summary()
    assert data["notes"] == []
    assert not list(run.directory.glob("*.tmp"))


def test_what_was_left_out_of_the_text_is_shown_and_recorded_for_each_run(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "texts"
    shutil.copytree(shared / "corpus", corpus)
    (corpus / "chapter.md").write_text("# This file is not read")
    left_out = "1 documents left out: files ending in .md"
    for seed in (0, 1):  # the second run reads the cache
        run = Run(tmp_path / f"run{seed}", tiny(corpus, seed=seed, steps=1, warmup_steps=0))
        train(run)
        assert run.read()["data"]["notes"] == [left_out]
        assert f"{corpus}: {left_out}" in capsys.readouterr().err
        assert f"{corpus}: {left_out}" in page.trained(run).data


def test_the_tokenizer_is_saved_with_the_model(shared: Path, tmp_path: Path) -> None:
    run = train_tiny(tmp_path, shared, steps=4)
    text = pe.sample(run, prompt="the cat", tokens=8)
    assert text.startswith("the cat")
    assert text == pe.sample(run, prompt="the cat", tokens=8)
    assert isinstance(pe.sample(run, tokens=4), str)


def test_progress_tells_step_loss_speed_and_time_left(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        "pe.training.progress.Progress.show",
        lambda self, text, last=False: shown.append((text, last)),
    )
    clock = [0.0]

    def ten_seconds(trainer: Any, batch: Any, usual: Any) -> Any:
        clock[0] += 10.0
        return usual(batch)

    monkeypatch.setattr("pe.training.loop.time.perf_counter", lambda: clock[0])
    train_tiny(tmp_path, shared, with_step(ten_seconds), log_every=4)
    reports = [text for text, _ in shown if text.startswith("step ")]
    assert shown[0][0].startswith("preparing ")
    assert reports[0].startswith("step 4/24  loss 5.")
    assert reports[0].endswith("6 tokens/s  3 min 20 s left")  # 20 steps of ten seconds
    left = {text.split()[1]: text.removesuffix(" left").rpartition("  ")[2] for text in reports}
    assert left["12/24"] == "2 min 00 s"
    assert left["20/24"] == "40 s"
    assert left["24/24"] == "0 s"
    assert shown[-1][0].startswith("step 24/24")
    assert shown[-1][1], "the last line is always shown"


def test_the_clock_is_read_after_the_device_has_done_its_work(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU steps are only launched by Python; the work shows when one waits for it.
    clock = [0.0]

    class Launching(Trainer):
        def synchronize(self) -> None:  # the work of four steps
            clock[0] += 8.0

    monkeypatch.setattr("pe.training.loop.time.perf_counter", lambda: clock[0])
    run = train_tiny(tmp_path, shared, Launching, log_every=4, steps=8, checkpoint_every=8)
    seconds = [line["seconds"] for line in run.metric_lines() if "seconds" in line]
    assert seconds == [8.0, 8.0]
    assert run.read()["training"]["wall_seconds"] == 16.0


def test_validation_and_kept_weights_between_lines_are_no_time_of_training(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    usual, mean = Trainer.step, Trainer._mean_loss

    def step(self: Trainer, batch: Any) -> Any:
        clock[0] += 2.0
        return usual(self, batch)

    def validate(self: Trainer, *arguments: Any) -> float:
        clock[0] += 100.0
        return mean(self, *arguments)

    monkeypatch.setattr("pe.training.loop.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(Trainer, "step", step)
    monkeypatch.setattr(Trainer, "_mean_loss", validate)
    run = train_tiny(
        tmp_path, shared, steps=8, log_every=4, validate_every=3, keep_steps=[5],
        checkpoint_every=8,
    )  # fmt: skip
    logged = [line for line in run.metric_lines() if "seconds" in line]
    assert [(line["step"], line["seconds"]) for line in logged] == [(4, 8.0), (8, 8.0)]
    assert {line["tokens_per_second"] for line in logged} == {4 * 64 / 8}
    assert run.read()["training"]["wall_seconds"] == 16.0


def test_tensorboard_gets_the_metrics(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("PE_TRACKERS", " tensorboard, ")
    run = train_tiny(tmp_path, shared, steps=6, validate_every=3)
    events = EventAccumulator(str(run.directory / "trackers" / "pe")).Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    by_tokens = {64 * step: loss for step, key, loss in lines(run) if key == "loss"}
    assert losses == pytest.approx(by_tokens, rel=1e-5)
    for name in ("validation_loss", "validation_perplexity"):
        assert [event.step for event in events.Scalars(name)] == [64 * 3, 64 * 6]


def test_a_tracker_that_is_unknown_or_not_installed_is_an_error(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PE_TRACKERS", "tensorbord")
    with pytest.raises(ValueError, match=r"PE_TRACKERS 'tensorbord' \(did you mean 'tensorboard'"):
        train_tiny(tmp_path, shared)
    monkeypatch.setenv("PE_TRACKERS", "wandb")
    monkeypatch.setattr(trackers, "get_available_trackers", list)
    with pytest.raises(ValueError, match="asks for wandb, which is not installed"):
        trackers.wanted()
    monkeypatch.setenv("PE_TRACKERS", " ,")
    assert trackers.wanted() == []


def test_trackers_are_closed_when_training_stops_early(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[Any] = []
    monkeypatch.setattr(trackers, "finish", finished.append)
    with pytest.raises(NonFiniteLoss):
        train_tiny(tmp_path, shared, spoiled(3, math.nan))
    assert len(finished) == 1
