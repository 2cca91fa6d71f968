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
from tiny_training import assert_same_weights, lines, tiny, train_tiny

import pe
from pe.data import Batches, prepare
from pe.data.batches import Batch
from pe.encodings import Encoding
from pe.model import PEForCausalLM
from pe.recipes.named import recipe as named_recipe
from pe.runs import Run
from pe.training.build import build_model, build_optimizer
from pe.training.train import train

pytestmark = pytest.mark.usefixtures("alone")
ENCODINGS = pe.list_encodings()


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


def test_encodings_are_trained_on_the_same_tokens_in_the_same_order(
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
    names = ["nope", "learned", "randomized", "rope+alibi"]
    for name in names:
        train_tiny(tmp_path, shared, pe=name, **changes)
    chosen = tiny(shared / "corpus", **changes)
    data = prepare(chosen.corpus, chosen.vocab_size)
    batches = Batches(data.train, chosen.context_length, chosen.batch_size, chosen.seed)
    wanted = [torch.from_numpy(batches.at(step).input_ids) for step in range(18)]
    assert seen.keys() == set(names)
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

    from pe.training import loop

    build = loop.model_for
    monkeypatch.setattr(loop, "model_for", in_double)
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


def test_validation_and_unseen_windows_of_the_training_text_are_judged_after_the_last_step(
    shared: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    run = train_tiny(tmp_path, shared, steps=5)
    model = AutoModelForCausalLM.from_pretrained(run.checkpoint).eval()
    data = prepare(run.recipe.corpus, run.recipe.vocab_size)

    def loss(batches: Batches, first: int, count: int) -> float:
        rows = [batches.at(i) for i in range(first, first + count)]
        tokens = torch.from_numpy(np.concatenate([b.input_ids for b in rows]))
        targets = torch.from_numpy(np.concatenate([b.targets for b in rows]))
        with torch.no_grad():
            logits = model(tokens).logits
        return float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))

    held_out, train = Batches(data.validation, 16, 4, seed=0), Batches(data.train, 16, 4, seed=0)
    count = min(8, held_out.windows // 4)
    assert count > 2
    training = run.read()["training"]
    assert training["validation_loss"] == pytest.approx(loss(held_out, 0, count), abs=1e-5)
    assert training["unseen_loss"] == pytest.approx(loss(train, 5, 8), abs=1e-5)
    longer = train_tiny(tmp_path, shared, steps=12)  # of 18 that a pass has: less than 8 are left
    assert "unseen_loss" not in longer.read()["training"]


def test_activation_checkpointing_changes_no_weight(shared: Path, tmp_path: Path) -> None:
    recomputing = []

    def step(trainer: Any, batch: Any, usual: Callable[[Any], Any]) -> Any:
        recomputing.append(trainer.model.model.layers[0].gradient_checkpointing)
        return usual(batch)

    changes = {"steps": 6, "dropout": 0.1}
    plain = train_tiny(tmp_path / "a", shared, **changes)
    trainer = tiny_training.with_step(step)
    run = train_tiny(tmp_path / "b", shared, trainer, activation_checkpointing=True, **changes)
    assert recomputing == [True] * 6
    assert run.name == plain.name
    assert_same_weights(run, plain)


def test_a_trained_model_continues_a_batch_of_prompts_as_it_does_each_of_them(
    shared: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run = train_tiny(tmp_path, shared, steps=8)
    model = AutoModelForCausalLM.from_pretrained(run.checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(run.checkpoint)
    assert tokenizer.padding_side == "left"
    settings = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    prompts = ["the cat", "one dog ran to her", "a"]
    batch = tokenizer(prompts, padding=True, return_tensors="pt", return_token_type_ids=False)
    together = model.generate(**batch, **settings)[:, batch["input_ids"].shape[1] :]
    for row, prompt in zip(together, prompts, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        assert row.tolist() == model.generate(ids, **settings)[0, ids.shape[1] :].tolist()


def test_metrics_count_all_tokens_and_give_validation_perplexity(
    shared: Path, tmp_path: Path
) -> None:
    run = train_tiny(tmp_path, shared, steps=10, log_every=2, validate_every=5)
    table = run.metrics()
    assert table["total_tokens"].tolist() == [64 * step for step in table["step"]]
    validated = table.dropna(subset="validation_loss")
    assert validated["step"].tolist() == [5, 10]
    perplexities = validated["validation_perplexity"]
    assert perplexities.tolist() == pytest.approx(np.exp(validated["validation_loss"]), rel=1e-4)


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
    lengths = {"evaluation_lengths": [16, 32]}  # the documents are short
    chosen = tiny(folder, steps=1, warmup_steps=0, **lengths, **{switch: True})
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
