"""Branches: several budgets from one run, each what a run of that budget would have been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import assert_same_weights, killed_after, lines, tiny, write_corpus
from transformers import AutoModelForCausalLM

from pe.runs import Run, RunError
from pe.training.train import train

LONG: dict[str, Any] = {
    "steps": 24, "warmup_steps": 3, "schedule": "wsd", "decay_steps": 4, "checkpoint_every": 8,
    "validate_every": 0, "keep_states": [8],
}  # fmt: skip
# The same with half the budget: 12 steps, the last 4 of which decay.
SHORT: dict[str, Any] = LONG | {"steps": 12, "keep_states": []}
BRANCH: dict[str, Any] = {
    "steps": 4, "warmup_steps": 0, "schedule": "wsd", "decay_steps": 4, "validate_every": 0,
    "start_step": 8, "start_state": "all",
}  # fmt: skip
KINDS: list[dict[str, Any]] = [
    {"pe": "rope"}, {"pe": "pope"}, {"pe": "randomized"},
    {"pe": "rope", "retrieval_share": 0.25, "micro_batch_size": 2},
]  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PE_CACHE", str(own_cache))
    torch.set_num_threads(1)


def run_of(folder: Path, study: str = "study", **changes: Any) -> Run:
    corpus = folder / "corpus"
    recipe = tiny(corpus if corpus.is_dir() else write_corpus(corpus), **changes)
    return Run(folder / "runs" / study / recipe.run_name(), recipe)


@pytest.fixture(scope="module")
def parent(own_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The long run with a state kept after step 8, for branches of several tests."""
    return train(run_of(tmp_path_factory.mktemp("parent"), **LONG, keep_steps=[4]), quiet=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: "-".join(map(str, k.values())))
def test_a_branch_is_the_shorter_run_to_the_last_bit(tmp_path: Path, kind: dict[str, Any]) -> None:
    if "retrieval_share" in kind:  # a question needs room
        kind = kind | {"context_length": 128, "evaluation_lengths": [128]}
    parent = train(run_of(tmp_path, **LONG, **kind), quiet=True)
    branch = train(run_of(tmp_path, **BRANCH, **kind, start_from=parent.name), quiet=True)
    scratch = train(run_of(tmp_path, "scratch", **SHORT, **kind), quiet=True)
    assert_same_weights(branch, scratch)
    own = [(step + 8, what, loss) for step, what, loss in lines(branch) if step > 0]
    assert own == [line for line in lines(scratch) if line[0] > 8]
    norms, rates = ([m.get(k) for m in branch.metric_lines()[1:]] for k in ("grad_norm", "lr"))
    whole = [m for m in scratch.metric_lines() if m["step"] > 8]
    assert norms == [m.get("grad_norm") for m in whole]
    assert rates == [m.get("lr") for m in whole]
    assert branch.read()["parent"]["step"] == 8


def test_a_branch_that_was_killed_ends_as_if_it_was_not(parent: Run) -> None:
    folder, start = parent.directory.parents[2], str(parent.directory)
    changes = BRANCH | {"start_from": start, "checkpoint_every": 1}
    plain = train(run_of(folder, "whole", **changes), quiet=True)
    run = run_of(folder, "killed", **changes)
    killed_after(run, 2)
    train(run, quiet=True)
    assert_same_weights(run, plain)
    assert lines(run) == lines(plain)


def test_kept_states_load_as_a_model_and_change_nothing(parent: Run) -> None:
    folder = parent.directory.parents[2]
    plain = train(run_of(folder, "plain", **(LONG | {"keep_states": []})), quiet=True)
    assert plain.name == parent.name
    assert_same_weights(plain, parent)
    kept = parent.directory / "checkpoints" / "kept" / "step-000008"
    assert (kept / "optimizer.bin").exists()
    with torch.no_grad():
        AutoModelForCausalLM.from_pretrained(kept)(torch.arange(9)[None])
    # Weights alone can be taken from it as well.
    child = run_of(folder, pe="nope", start_from=parent.name, start_step=8, steps=2, warmup_steps=0)
    assert train(child, quiet=True).read()["parent"]["step"] == 8


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"seed": 1}, ValueError, "seed: rope-.* has 0 and this branch of it 1; a branch may"),
        ({"weight_decay": 0.5}, ValueError, "weight_decay: .* a branch may differ only in steps"),
        ({"start_step": 6}, RunError, "has no weights of step 6; steps it has: 4, 8"),
        ({"start_step": 4}, RunError, "holds weights but no optimizer.*train .* with keep_states"),
    ],
)
def test_what_no_branch_can_go_on_from_is_refused(
    parent: Run, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    folder = parent.directory.parents[2]
    with pytest.raises(error, match=message):
        train(run_of(folder, **(BRANCH | {"start_from": parent.name} | changes)), quiet=True)


def test_a_branch_of_a_branch_and_one_of_nothing_are_refused(parent: Run) -> None:
    folder = parent.directory.parents[2]
    first = BRANCH | {"start_from": parent.name, "keep_states": [2]}
    branch = train(run_of(folder, **first), quiet=True)
    second = BRANCH | {"start_from": branch.name, "start_step": 2, "steps": 2, "decay_steps": 2}
    with pytest.raises(ValueError, match=f"is itself a branch; branch from {parent.name}"):
        train(run_of(folder, **second), quiet=True)
    with pytest.raises(ValueError, match="start_state: 'all' continues another run; give"):
        run_of(folder, start_state="all")
