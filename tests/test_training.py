"""Training: what is the same for all encodings, what must not change results, what must stop it."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_training
import torch
from tiny_training import assert_same_weights, lines, tiny, weights, write_corpus

import pe
from pe.data import Batches, prepare
from pe.data.batches import Batch
from pe.encodings import Encoding, encoding
from pe.model import PEForCausalLM
from pe.runs import Run
from pe.training import checkpoint, trackers
from pe.training.build import build_model, build_optimizer
from pe.training.metrics import NonFiniteLoss
from pe.training.recipe import Recipe
from pe.training.recipes import recipe as named_recipe
from pe.training.trainer import _Training, train

ENCODINGS = pe.list_encodings()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("training")
    write_corpus(base / "corpus")
    return base


@pytest.fixture(autouse=True)
def environment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_CACHE", str(shared / "cache"))
    monkeypatch.delenv("PE_TRACKERS", raising=False)
    torch.set_num_threads(1)


def train_tiny(folder: Path, shared: Path, **changes: Any) -> Run:
    chosen = tiny(shared / "corpus", **changes)
    return train(Run(folder / chosen.run_name(), chosen), quiet=True)


# The same start and the same text for every encoding


def test_all_encodings_start_from_the_same_weights() -> None:
    models = {name: build_model(named_recipe("demo", pe=name), 264) for name in ENCODINGS}
    reference = dict(models["nope"].named_parameters())
    for name, model in models.items():
        own = {
            f"{prefix}.{inner}"
            for prefix, module in model.named_modules()
            if isinstance(module, Encoding)
            for inner, _ in module.named_parameters()
        }
        parameters = dict(model.named_parameters())
        assert parameters.keys() - own == reference.keys(), name
        for key, value in reference.items():
            assert torch.equal(parameters[key], value), (name, key)


def test_weights_depend_on_the_seed_and_the_name_alone() -> None:
    def drawn(**changes: Any) -> dict[str, torch.Tensor]:
        return dict(build_model(named_recipe("demo", **changes), 264).named_parameters())

    torch.manual_seed(1)
    first = drawn()
    torch.manual_seed(2)
    again, other, deeper = drawn(), drawn(seed=1), drawn(num_hidden_layers=5)
    matrices = [name for name, value in first.items() if value.dim() == 2]
    for name in matrices:
        assert torch.equal(first[name], again[name])
        assert not torch.equal(first[name], other[name])
        if not name.endswith(("o_proj.weight", "down_proj.weight")):  # scaled by the depth
            assert torch.equal(first[name], deeper[name])
    assert len({first[name].flatten()[0].item() for name in matrices}) == len(matrices)
    stds = {name: first[name].std().item() for name in matrices}
    for name, std in stds.items():
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        wanted = 0.02 / math.sqrt(2 * 4) if residual else 0.02
        assert std == pytest.approx(wanted, rel=0.05), name


def test_all_encodings_are_trained_on_the_same_tokens_in_the_same_order(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    forward = pe.PEForCausalLM.forward

    def recorded(self: Any, input_ids: Any = None, **rest: Any) -> Any:
        if self.training:
            seen.setdefault(self.config.pe, []).append(input_ids.clone())
        return forward(self, input_ids=input_ids, **rest)

    monkeypatch.setattr(pe.PEForCausalLM, "forward", recorded)
    changes = {"steps": 18, "num_hidden_layers": 1, "validate_every": 5}
    for name in ENCODINGS:
        train_tiny(tmp_path, shared, pe=name, **changes)
    chosen = tiny(shared / "corpus", **changes)
    data = prepare(chosen.corpus, chosen.vocab_size)
    batches = Batches(data.train, chosen.context_length, chosen.batch_size, chosen.seed)
    wanted = [torch.from_numpy(batches.at(step).input_ids) for step in range(18)]
    assert seen.keys() == set(ENCODINGS)
    for name, found in seen.items():
        assert len(found) == 18, name
        assert all(map(torch.equal, found, wanted)), name


# Results that must not depend on how the work is cut up


def with_holes(at: Callable[..., Batch]) -> Callable[..., Batch]:
    """Batches whose rows have very different numbers of targets, one of them none."""

    def holed(self: Batches, step: int) -> Batch:
        batch = at(self, step)
        targets = batch.targets.copy()
        for row, kept in enumerate((16, 1, 0, 7)):
            targets[row, kept:] = -100
        return batch._replace(targets=targets)

    return holed


def test_micro_batches_with_uneven_targets_add_up_to_the_big_batch(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Batches, "at", with_holes(Batches.at))
    gradients: dict[int, list[dict[str, torch.Tensor]]] = {}
    micro = 0
    step = torch.optim.AdamW.step

    def recorded(self: torch.optim.AdamW, *rest: Any) -> Any:
        grads = [p.grad.clone() for group in self.param_groups for p in group["params"]]
        gradients.setdefault(micro, []).append(dict(enumerate(grads)))  # type: ignore[arg-type]
        return step(self, *rest)

    def in_double(*arguments: Any) -> Any:
        return build(*arguments).double()

    from pe.training import trainer

    build = trainer.model_for
    monkeypatch.setattr(trainer, "model_for", in_double)
    monkeypatch.setattr(torch.optim.AdamW, "step", recorded)
    losses = {}
    for micro in (4, 2, 1):
        run = train_tiny(tmp_path, shared, micro_batch_size=micro, steps=4, grad_clip=1e9)
        losses[micro] = lines(run)
    for micro in (2, 1):
        assert [(s, k) for s, k, _ in losses[micro]] == [(s, k) for s, k, _ in losses[4]]
        assert [x for *_, x in losses[micro]] == pytest.approx([x for *_, x in losses[4]], abs=2e-6)
        for ours, big in zip(gradients[micro], gradients[4], strict=True):
            for name in big:
                torch.testing.assert_close(ours[name], big[name], rtol=1e-4, atol=1e-7)


def test_the_loss_is_the_mean_over_targets_that_count(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tiny(shared / "corpus", steps=1, warmup_steps=0)
    data = prepare(chosen.corpus, chosen.vocab_size)
    model = build_model(chosen, data.vocab_size)
    monkeypatch.setattr(Batches, "at", with_holes(Batches.at))
    batch = Batches(data.train, 16, 4, 0).at(0)
    total, count = 0.0, 0
    with torch.no_grad():
        for row in range(4):
            logits = model(torch.from_numpy(batch.input_ids[row : row + 1])).logits[0]
            for place, target in enumerate(batch.targets[row]):
                if target != -100:
                    total -= float(torch.log_softmax(logits[place], -1)[target])
                    count += 1
    assert count == 24
    run = train_tiny(tmp_path, shared, steps=1, warmup_steps=0)
    assert run.metric_lines()[0]["loss"] == pytest.approx(total / count, abs=1e-5)


def test_how_often_a_run_is_logged_saved_and_validated_changes_no_weight(
    shared: Path, tmp_path: Path
) -> None:
    often = train_tiny(tmp_path / "a", shared, log_every=1, checkpoint_every=1, validate_every=1)
    seldom = train_tiny(tmp_path / "b", shared, log_every=6, checkpoint_every=24, validate_every=0)
    assert often.name == seldom.name
    assert_same_weights(often, seldom)
    each = [x["loss"] for x in often.metric_lines() if "loss" in x]
    means = [x["loss"] for x in seldom.metric_lines() if "loss" in x]
    assert len(each) == 24
    assert means == pytest.approx(np.reshape(each, (4, 6)).mean(axis=1).tolist(), abs=1e-5)
    assert [s for s, key, _ in lines(seldom) if key == "validation_loss"] == [24]
    assert (
        often.read()["training"]["validation_loss"]
        == (seldom.read()["training"]["validation_loss"])
    )


def test_the_validation_loss_is_the_mean_over_the_split(shared: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    run = train_tiny(tmp_path, shared, steps=5)
    model = AutoModelForCausalLM.from_pretrained(run.checkpoint).eval()
    data = prepare(run.recipe.corpus, run.recipe.vocab_size)
    batches = Batches(data.validation, 16, 4, seed=0)
    count = min(8, batches.windows // 4)
    rows = [batches.at(i) for i in range(count)]
    assert count > 2
    tokens = torch.from_numpy(np.concatenate([b.input_ids for b in rows]))
    targets = torch.from_numpy(np.concatenate([b.targets for b in rows]))
    with torch.no_grad():
        logits = model(tokens).logits
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    assert run.read()["training"]["validation_loss"] == pytest.approx(float(wanted), abs=1e-5)


@pytest.mark.parametrize("switch", ["reset_positions", "mask_documents"])
def test_document_switches_reach_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch: str
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name, count in (("train", 60), ("validation", 20), ("test", 20)):
        texts = [tiny_training.text(20 + 3 * i % 17, i) for i in range(count)]
        rows = "".join(json.dumps({"text": f"{name} {i} {t}"}) + "\n" for i, t in enumerate(texts))
        (folder / f"{name}.jsonl").write_text(rows)
    seen: list[dict[str, torch.Tensor]] = []
    forward = pe.PEForCausalLM.forward

    def recorded(self: Any, **given: Any) -> Any:
        seen.append(given)
        return forward(self, **given)

    monkeypatch.setattr(pe.PEForCausalLM, "forward", recorded)
    chosen = tiny(folder, steps=1, warmup_steps=0, evaluation_lengths=[], **{switch: True})
    train(Run(tmp_path / "run", chosen), quiet=True)
    data = prepare(chosen.corpus, chosen.vocab_size)
    batch = Batches(data.train, 16, 4, 0).at(0)
    given = {k: v for k, v in seen[0].items() if torch.is_tensor(v)}
    wanted = {"input_ids": batch.input_ids, "shift_labels": batch.targets}
    if switch == "reset_positions":
        wanted["position_ids"] = batch.positions
        assert (batch.positions[:, -1] < 15).any(), "no document begins inside a row"
    else:
        wanted["document_ids"] = batch.documents
    assert given.keys() == wanted.keys()
    for key, value in wanted.items():
        assert np.array_equal(given[key].numpy(), value), key


def test_weight_decay_leaves_norms_and_encodings_alone() -> None:
    for name in ENCODINGS:
        model = build_model(named_recipe("demo", pe=name), 264)
        optimizer = build_optimizer(model, named_recipe("demo", pe=name))
        decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
        assert len(decays) == len(list(model.parameters()))
        for key, value in model.named_parameters():
            plain = "norm" in key or "encodings" in key
            assert decays[id(value)] == (0.0 if plain else 0.1), (name, key)


# What must stop training


def last_weights_are_finite(run: Run) -> None:
    from safetensors.torch import load_file

    for path in (run.directory / "checkpoints").rglob("model.safetensors"):
        for name, value in load_file(path).items():
            assert torch.isfinite(value).all(), (path, name)


def spoil(monkeypatch: pytest.MonkeyPatch, at: int, value: float) -> None:
    step, calls = _Training._step, [0]

    def spoiled(self: Any, batch: Any) -> Any:
        calls[0] += 1
        loss, norm = step(self, batch)
        return (loss * value, norm) if calls[0] == at else (loss, norm)

    monkeypatch.setattr(_Training, "_step", spoiled)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("log_every", [1, 10])
def test_a_loss_that_is_no_number_stops_training(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: float, log_every: int
) -> None:
    chosen = tiny(shared / "corpus", log_every=log_every)
    run = Run(tmp_path / "run", chosen)
    spoil(monkeypatch, 13, value)
    with pytest.raises(NonFiniteLoss, match="at step 13; last good checkpoint: ") as error:
        train(run, quiet=True)
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


def test_before_the_first_checkpoint_the_message_says_so(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil(monkeypatch, 2, math.nan)
    with pytest.raises(NonFiniteLoss, match="at step 2; there is no checkpoint yet"):
        train_tiny(tmp_path, shared)


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


# It learns, and says how it goes


@pytest.mark.parametrize("name", ENCODINGS)
def test_sixty_steps_on_a_repeating_text_are_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, count in (("train", 150), ("validation", 50), ("test", 50)):
        (folder / f"{split}.txt").write_text(f"{split}: " + "abcdefghijklmnop" * count)
    chosen = tiny(folder, pe=name, steps=60, warmup_steps=6, batch_size=8, context_length=24)
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
    assert not list(run.directory.glob("*.tmp"))


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
    step = _Training._step

    def ten_seconds(self: Any, batch: Any) -> Any:
        clock[0] += 10.0
        return step(self, batch)

    monkeypatch.setattr("pe.training.trainer.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(_Training, "_step", ten_seconds)
    train_tiny(tmp_path, shared, log_every=4)
    reports = [text for text, _ in shown if text.startswith("step ")]
    assert shown[0][0].startswith("preparing ")
    assert reports[0].startswith("step 4/24  loss 5.")
    assert reports[0].endswith("6 tokens/s  3:20 left")  # 20 steps of ten seconds
    left = {text.split()[1]: text.split()[-2] for text in reports}
    assert left["12/24"] == "2:00"
    assert left["20/24"] == "0:40"
    assert left["24/24"] == "0:00"
    assert shown[-1][0].startswith("step 24/24")
    assert shown[-1][1], "the last line is always shown"


def test_the_clock_is_read_after_the_device_has_done_its_work(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a GPU steps are only launched by Python; the work shows when one waits for it.
    clock = [0.0]

    def work_of_four_steps(self: Any) -> None:
        clock[0] += 8.0

    monkeypatch.setattr("pe.training.trainer.time.perf_counter", lambda: clock[0])
    monkeypatch.setattr(_Training, "_wait_for_device", work_of_four_steps)
    run = train_tiny(tmp_path, shared, log_every=4, steps=8, checkpoint_every=8)
    seconds = [line["seconds"] for line in run.metric_lines() if "seconds" in line]
    assert seconds == [8.0, 8.0]
    assert run.read()["training"]["wall_seconds"] == 16.0


# Trackers


def test_tensorboard_gets_the_metrics(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an extra and not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("PE_TRACKERS", " tensorboard, ")
    run = train_tiny(tmp_path, shared, steps=6, validate_every=3)
    events = EventAccumulator(str(run.directory / "trackers" / "pe")).Reload()
    losses = {event.step: event.value for event in events.Scalars("loss")}
    assert losses == pytest.approx({s: x for s, key, x in lines(run) if key == "loss"}, rel=1e-5)
    assert [event.step for event in events.Scalars("validation_loss")] == [3, 6]


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
    spoil(monkeypatch, 3, math.nan)
    with pytest.raises(NonFiniteLoss):
        train_tiny(tmp_path, shared)
    assert len(finished) == 1


def test_a_recipe_cannot_be_changed_by_accident(shared: Path) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        tiny(shared / "corpus").steps = 3  # type: ignore[misc]
    assert os.environ["PE_CACHE"]


def test_training_and_validation_ask_for_one_graph_and_not_for_one_of_any_divisor(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A run that validates first waited 45 s for a step compiled for any divisor.
    seen: set[float] = set()
    forward = PEForCausalLM.forward

    def watched(self: PEForCausalLM, *args: Any, **inputs: Any) -> Any:
        seen.add(inputs["num_items_in_batch"])
        return forward(self, *args, **inputs)

    monkeypatch.setattr(PEForCausalLM, "forward", watched)
    recipe = tiny(shared / "corpus", steps=8, validate_every=4)
    pe.train(Run(tmp_path / recipe.run_name(), recipe=recipe), quiet=True)
    assert seen == {1}
