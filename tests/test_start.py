"""A run that starts from another run's weights: what it takes over, and where it goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_training import (
    assert_same_weights,
    killed_after,
    lines,
    tiny,
    weights,
    with_step,
    write_corpus,
)
from transformers import AutoModelForCausalLM

from pe.data import Batches, prepare
from pe.evaluation.evaluate import evaluate
from pe.model import PEForCausalLM
from pe.recipes.recipe import Recipe
from pe.runs import Run, RunError, load
from pe.training.check import check_run
from pe.training.start import kept_steps, start_of
from pe.training.train import train

PARENT_STEPS, AT = 12, 8


@pytest.fixture(autouse=True)
def environment(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_CACHE", str(shared / "cache"))
    monkeypatch.setenv("PE_RUNS", str(shared / "runs"))
    torch.set_num_threads(1)


def run_of(shared: Path, study: str, **changes: Any) -> Run:
    recipe = tiny(shared / "corpus", **changes)
    return Run(shared / "runs" / study / recipe.run_name(), recipe)


@pytest.fixture(scope="module")
def trained(shared: Path) -> Run:
    """Rope for 12 steps; the weights after 4 and 8 are kept, and after 10 and 12 for a resume."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PE_CACHE", str(shared / "cache"))
        parent = run_of(shared, "study", steps=PARENT_STEPS, keep_steps=[4, AT])
        return train(parent, quiet=True)


def child(shared: Path, trained: Run, study: str = "study", **changes: Any) -> Run:
    """Dropped after step 8, and trained for 6 more."""
    values: dict[str, Any] = {
        "pe": "nope", "start_from": trained.name, "start_step": AT, "steps": 6, "warmup_steps": 2,
        "learning_rate": 2e-3, "min_learning_rate": 2e-4,
    }  # fmt: skip
    return run_of(shared, study, **(values | changes))


# What is kept


def test_a_run_of_zero_steps_judges_its_parents_weights_under_its_own_encoding(
    shared: Path, trained: Run
) -> None:
    judged = child(shared, trained, steps=0, warmup_steps=0, pe="ntk", pe_options={"factor": 2.0})
    record = train(judged, quiet=True).read()
    training = record["training"]
    assert (training["steps"], training["tokens"], training["final_loss"]) == (0, 0, None)
    assert training["validation_loss"] > 0
    kept = load_file(trained.directory / "checkpoints/kept/step-000008/model.safetensors")
    assert all(torch.equal(kept[name], value) for name, value in weights(judged).items())
    assert PEForCausalLM.from_pretrained(judged.checkpoint).config.pe == "ntk"
    cells = evaluate(judged, quiet=True)["perplexity"].values()
    assert all(cell["value"] > 1 for cell in cells)
    assert load(study="study").query("steps == 0")["final_loss"].isna().all()


def test_kept_weights_stay_beside_the_last_checkpoints_and_change_nothing(
    shared: Path, trained: Run
) -> None:
    folder = trained.directory / "checkpoints"
    assert sorted(p.name for p in folder.iterdir()) == ["kept", "step-000010", "step-000012"]
    assert kept_steps(folder) == [4, AT]
    files = {"config.json", "generation_config.json", "model.safetensors", "state.json"}
    assert {p.name for p in (folder / "kept" / "step-000008").iterdir()} == files
    plain = train(run_of(shared, "plain", steps=PARENT_STEPS), quiet=True)
    assert plain.name == trained.name  # no other experiment
    assert_same_weights(plain, trained)
    assert lines(plain) == lines(trained)


def test_kept_weights_are_those_of_their_step(shared: Path, trained: Run) -> None:
    other = run_of(shared, "other", steps=PARENT_STEPS, checkpoint_every=AT)
    train(other, quiet=True)
    folders = (
        other.directory / "checkpoints" / "step-000008",
        trained.directory / "checkpoints" / "kept" / "step-000008",
    )
    ids = torch.arange(30)[None]
    with torch.no_grad():
        a, b = (AutoModelForCausalLM.from_pretrained(f).eval()(ids).logits for f in folders)
    assert torch.equal(a, b)


# Where a run begins


def test_a_run_begins_with_the_weights_of_that_step_and_the_text_after_it(
    shared: Path, trained: Run
) -> None:
    first: list[dict[str, torch.Tensor]] = []
    seen: list[torch.Tensor] = []
    rates: list[float] = []

    def watched(trainer: Any, batch: Any, usual: Any) -> Any:
        first.append({n: p.detach().clone() for n, p in trainer.model.named_parameters()})
        seen.append(torch.from_numpy(batch.input_ids.copy()))
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        assert len(first) > 1 or not trainer.optimizer.state  # a fresh one
        return usual(batch)

    run = child(shared, trained, "watched", start_from=f"study/{trained.name}")
    train(run, quiet=True, trainer=with_step(watched))
    kept = PEForCausalLM.from_pretrained(trained.directory / "checkpoints/kept/step-000008")
    own = dict(kept.named_parameters())
    assert first[0].keys() == own.keys()
    assert all(torch.equal(first[0][name], own[name]) for name in own)
    recipe = run.recipe
    data = prepare(recipe.corpus, recipe.vocab_size)
    batches = Batches(data.train, recipe.context_length, recipe.batch_size, recipe.seed)
    assert all(
        torch.equal(found, torch.from_numpy(batches.at(AT + i).input_ids))
        for i, found in enumerate(seen)
    )
    assert len(seen) == 6
    assert rates[:3] == pytest.approx([1e-3, 2e-3, 2e-3])  # its own warmup and cosine
    assert rates[-1] < rates[2]


def test_the_record_names_the_parent(shared: Path, trained: Run) -> None:
    run = train(child(shared, trained), quiet=True)
    record = run.read()
    assert record["parent"] == {
        "study": "study", "run": trained.name, "config_hash": trained.recipe.config_hash(),
        "step": AT, "tokens": AT * 64, "stream_step": AT,
    }  # fmt: skip
    assert record["training"]["tokens"] == 6 * 64
    assert "parent" not in trained.read()
    config = json.loads((run.checkpoint / "config.json").read_text())
    assert config["pe"] == "nope"


def test_a_grandchild_goes_on_behind_both(shared: Path, trained: Run) -> None:
    first = train(child(shared, trained), quiet=True)
    second = train(child(shared, first, start_step=0, steps=3, warmup_steps=0), quiet=True)
    parent = second.read()["parent"]
    assert parent["run"] == first.name
    assert (parent["step"], parent["tokens"], parent["stream_step"]) == (6, 14 * 64, 14)


def test_other_sizes_of_a_step_enter_the_stream_after_as_many_tokens(
    shared: Path, trained: Run
) -> None:
    def begins(**changes: Any) -> int:
        found = start_of(child(shared, trained, **changes).recipe, trained.directory.parent)
        assert found is not None
        return found.stream_step

    assert begins() == 8
    assert begins(batch_size=2) == 16
    assert begins(context_length=32) == 4
    assert begins(batch_size=3) == 11  # 512 tokens are 10.7 steps
    assert start_of(trained.recipe, trained.directory.parent) is None


def test_the_last_step_is_the_trained_model(shared: Path, trained: Run) -> None:
    for step in (0, PARENT_STEPS):
        found = start_of(child(shared, trained, start_step=step).recipe, trained.directory.parent)
        assert found is not None
        assert (found.step, found.weights) == (PARENT_STEPS, trained.checkpoint)


def test_options_and_learned_parameters_pass_from_parent_to_child(shared: Path) -> None:
    parent = run_of(
        shared, "study", pe="pope", pe_options={"theta": 500.0}, steps=3, warmup_steps=0
    )
    train(parent, quiet=True)
    fields = {"pe": "pope", "start_step": 0, "learning_rate": 1e-12, "min_learning_rate": 0.0}
    run = train(child(shared, parent, **fields, weight_decay=0.0), quiet=True)
    config = json.loads((run.checkpoint / "config.json").read_text())
    assert config["pe_options"] == {"theta": 500.0}
    before, after = weights(parent), weights(run)
    assert any("delta" in name for name in before)
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, atol=1e-9, rtol=1e-6)


def test_training_on_at_a_longer_length_extends_from_the_parents(
    shared: Path, trained: Run
) -> None:
    longer = child(
        shared, trained, pe="yarn", pe_options={"factor": 4.0}, context_length=64, batch_size=1
    )
    train(longer, quiet=True)
    config = json.loads((longer.checkpoint / "config.json").read_text())
    assert config["max_position_embeddings"] == 64
    assert config["pe_options"] == {"factor": 4.0, "original_length": 16}


def test_drope_norms_start_at_one_and_learn(shared: Path, trained: Run) -> None:
    run = train(child(shared, trained, joint_norm="qk", softmax_scale=0.2), quiet=True)
    norms = {name: w for name, w in weights(run).items() if "joint" in name}
    assert len(norms) == 4
    assert all((w - 1).abs().max() > 1e-6 for w in norms.values())


# Resuming


@pytest.mark.parametrize("steps", [1, 5])
def test_a_converted_run_that_was_killed_ends_as_if_it_was_not(
    shared: Path, trained: Run, tmp_path: Path, steps: int
) -> None:
    start = str(trained.directory)
    plain = child(shared, trained, "whole", start_from=start, checkpoint_every=2, keep_steps=[3])
    train(plain, quiet=True)
    run = child(shared, trained, "killed", start_from=start, checkpoint_every=2, keep_steps=[3])
    run = Run(tmp_path / run.name, run.recipe)
    killed_after(run, steps)
    train(run, quiet=True)
    assert_same_weights(run, plain)
    assert lines(run) == lines(plain)
    assert run.read()["parent"] == plain.read()["parent"]
    kept = [r.directory / "checkpoints/kept/step-000003/model.safetensors" for r in (run, plain)]
    assert kept[0].read_bytes() == kept[1].read_bytes()


# What is refused


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"start_from": "rope-s0-00000000"}, RunError, "no run 'rope-s0-00000000' in study"),
        ({"start_step": 5}, RunError, "has no weights of step 5; steps it has: 4, 8, 12"),
        ({"hidden_size": 64}, ValueError, "hidden_size: rope-.* has 32 and this recipe 64"),
        ({"qk_norm": True}, ValueError, "qk_norm: rope-.* has False and this recipe True"),
    ],
)
def test_what_cannot_be_started_from_is_refused(
    shared: Path, trained: Run, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    run = child(shared, trained, **changes)
    with pytest.raises(error, match=message):
        train(run, quiet=True)
    assert run.read()["status"] == "failed"


def test_other_sizes_than_the_parents_are_refused_before_anything_is_prepared(
    shared: Path, trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = child(shared, trained, intermediate_size=64)
    with pytest.raises(ValueError, match="intermediate_size: rope-.* has 48 and this recipe 64"):
        check_run(run)
    monkeypatch.setattr("pe.training.loop.text_for", None)
    with pytest.raises(ValueError, match="so set intermediate_size to 48"):
        train(run, quiet=True)


def test_what_the_parents_weights_settle_cannot_be_set_anew(shared: Path, trained: Run) -> None:
    with pytest.raises(ValueError, match="embedding_std: rope-.* has 0.02 and this recipe 0.5"):
        check_run(child(shared, trained, embedding_std=0.5))
    first = train(child(shared, trained, joint_norm="qk", softmax_scale=0.5), quiet=True)
    after = {"pe": "nope", "start_from": first.name, "start_step": 0}
    with pytest.raises(ValueError, match="joint_norm: nope-.* has 'qk', which .* keeps; set joint"):
        check_run(child(shared, first, **after, softmax_scale=0.5))
    with pytest.raises(ValueError, match="softmax_scale: nope-.* has 0.5"):
        check_run(child(shared, first, **after, joint_norm="q"))
    check_run(child(shared, first, **after, joint_norm="q", softmax_scale=0.25))


def test_best_weights_need_two_validations(shared: Path, trained: Run) -> None:
    for often in (24, 100):
        with pytest.raises(ValueError, match=f"keep_best: .* validate_every {often} and 24 steps"):
            check_run(run_of(shared, "study", keep_best=True, validate_every=often))
    check_run(run_of(shared, "study", keep_best=True, validate_every=23))
    check_run(child(shared, trained, keep_best=True, validate_every=100))  # before and after
    with pytest.raises(ValueError, match="keep_best: no effect .* 0 steps"):
        check_run(child(shared, trained, keep_best=True, steps=0, warmup_steps=0))


def test_an_encoding_that_cannot_follow_is_refused(shared: Path, trained: Run) -> None:
    first = train(child(shared, trained), quiet=True)
    with pytest.raises(ValueError, match="'yarn' changes the frequencies of 'rope'"):
        train(child(shared, first, pe="yarn", start_step=0), quiet=True)


def test_weights_that_are_elsewhere_are_named(shared: Path, trained: Run, tmp_path: Path) -> None:
    copy = Run(tmp_path / trained.name)
    shutil.copytree(trained.directory, copy.directory)
    shutil.rmtree(copy.checkpoint)
    recipe = child(shared, trained, start_from=str(copy.directory), start_step=0).recipe
    with pytest.raises(RunError, match="checkpoint is not on this machine"):
        start_of(recipe, tmp_path)


def test_other_text_is_refused(trained: Run, tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus", train=1500)
    recipe = tiny(
        tmp_path / "corpus", pe="nope", start_from=str(trained.directory), start_step=AT, steps=6
    )
    with pytest.raises(RunError, match="was trained on other data .* start from a run of"):
        train(Run(tmp_path / "runs" / recipe.run_name(), recipe), quiet=True)


def test_a_run_can_start_while_its_parent_is_still_training(shared: Path, trained: Run) -> None:
    copy = Run(shared / "runs" / "going" / trained.name)
    shutil.copytree(trained.directory, copy.directory)
    shutil.rmtree(copy.checkpoint)
    copy.update(status="running", training=None, finished=None)
    run = train(child(shared, trained, "going"), quiet=True)
    assert run.read()["parent"]["step"] == AT
    with pytest.raises(RunError, match="is running and has no weights of its last step"):
        train(child(shared, trained, "going", start_step=0), quiet=True)


def test_recipes_of_earlier_records_still_read(trained: Run) -> None:
    record = trained.read()
    for name in ("start_from", "start_step", "keep_steps", "joint_norm", "softmax_scale"):
        del record["recipe"][name]
    assert Recipe.from_dict(record["recipe"]).config_hash() == record["config_hash"]
    assert np.isfinite(record["training"]["final_loss"])


def test_the_loss_before_the_first_step_is_recorded_once(shared: Path, trained: Run) -> None:
    run = train(child(shared, trained), quiet=True)
    first, *others = run.metric_lines()
    assert "loss" not in first
    assert (first["step"], first["total_tokens"]) == (0, 0)
    assert all(line["step"] > 0 for line in others)
    assert all(line["step"] > 0 for line in trained.metric_lines())


def test_evaluating_a_converted_run_prepares_its_text_once(
    shared: Path, trained: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train(child(shared, trained), quiet=True)
    prepared: list[str] = []

    def counted(corpus: str, *rest: Any, **more: Any) -> Any:
        prepared.append(corpus)
        return prepare(corpus, *rest, **more)

    monkeypatch.setattr("pe.data.prepare", counted)
    found = evaluate(run, quiet=True)
    assert prepared == [run.recipe.corpus]
    conversion = run.read()["conversion"]
    assert conversion["lengths"] == found["lengths"]
    assert conversion["windows"] == found["windows"]
    assert conversion["converted"].keys() == found["perplexity"].keys()


def test_the_table_of_runs_tells_converted_ones_from_others(
    shared: Path, trained: Run, tmp_path: Path
) -> None:
    run = train(child(shared, trained), quiet=True)
    for one in (run, trained):
        shutil.copytree(one.directory, tmp_path / "study" / one.name)
    table = load(tmp_path).set_index("pe")
    assert table.loc["nope", "start_from"] == f"study/{trained.name}"
    assert table.loc["nope", "start_step"] == AT
    assert table.loc["rope", ["start_from", "start_step"]].isna().all()
