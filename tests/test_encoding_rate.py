"""Rates of an encoding's own parameters, and the scale of the token embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import Crash, assert_same_weights, tiny, train_tiny, weights, with_step

from pe.encodings.core.parts import declared_rate
from pe.recipes.named import recipe as named_recipe
from pe.runs import Run
from pe.study.plan import load_plan
from pe.training.build import build_model
from pe.training.train import train

pytestmark = pytest.mark.usefixtures("alone")


def own(name: str) -> bool:
    return ".encodings." in name or name.startswith("encodings.")


def test_own_parameters_move_as_much_farther_as_the_recipe_says(
    shared: Path, tmp_path: Path
) -> None:
    def after_one_step(**changes: float) -> dict[str, torch.Tensor]:
        return weights(train_tiny(tmp_path, shared, pe="t5", steps=1, warmup_steps=0, **changes))

    start = dict(build_model(tiny(shared / "corpus", pe="t5"), 264).named_parameters())
    plain, faster = after_one_step(), after_one_step(encoding_rate=10.0)
    assert any(map(own, plain))
    for name in plain:
        if not own(name):
            assert torch.equal(plain[name], faster[name]), name
            continue
        moved, farther = plain[name] - start[name], faster[name] - start[name]
        assert moved.abs().max() > 0
        assert torch.allclose(farther, 10 * moved, atol=1e-6), name


def test_the_multiple_holds_in_every_step_and_after_a_resume(shared: Path, tmp_path: Path) -> None:
    chosen = tiny(shared / "corpus", pe="t5", encoding_rate=10.0)
    whole = train(Run(tmp_path / "whole" / chosen.run_name(), chosen), quiet=True)
    ratios = []

    def stopped(trainer: Any, batch: Any, usual: Any) -> Any:
        rates = {group["lr"] for group in trainer.optimizer.param_groups}
        ratios.append(max(rates) / min(rates))
        if len(ratios) == 8:
            raise Crash
        return usual(batch)

    run = Run(tmp_path / "in_two" / chosen.run_name(), chosen)
    with pytest.raises(Crash):
        train(run, quiet=True, trainer=with_step(stopped))
    train(run, quiet=True, trainer=with_step(stopped))
    assert run.read()["training"]["resumes"] == 1
    assert len(ratios) > 24
    assert all(ratio == pytest.approx(10.0) for ratio in ratios)
    assert_same_weights(whole, run)


def test_a_rate_for_parameters_that_are_not_there_is_refused(shared: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="encoding_rate: rope has no parameters"):
        train_tiny(tmp_path, shared, pe="rope", encoding_rate=2.0)


def test_token_embeddings_are_the_same_draws_scaled() -> None:
    models = [
        build_model(named_recipe("demo", pe="sinusoidal", **changes), 264)
        for changes in ({}, {"embedding_std": 0.0442})
    ]
    plain, scaled = (dict(model.named_parameters()) for model in models)
    name = "model.embed_tokens.weight"
    assert scaled[name].std().item() == pytest.approx(0.0442, rel=0.02)
    assert torch.allclose(scaled[name], plain[name] * (0.0442 / 0.02), rtol=1e-5)
    for other in plain.keys() - {name}:
        assert torch.equal(plain[other], scaled[other]), other


def test_a_declared_multiple_becomes_a_number_in_new_recipes_and_old_ones_keep_theirs() -> None:
    declared = named_recipe("tiny", pe="t5", encoding_rate="declared")
    assert declared.encoding_rate == 10.0
    assert declared.config_hash() == named_recipe("tiny", pe="t5", encoding_rate=10).config_hash()
    assert named_recipe("tiny", pe="t5").encoding_rate == 1.0, (
        "what was not said was 1, and stays so"
    )
    assert named_recipe("tiny", pe="rope", encoding_rate="declared").encoding_rate == 1.0
    assert named_recipe("tiny", pe="rope+t5", encoding_rate="declared").encoding_rate == 10.0
    with pytest.raises(ValueError, match=r"the parts of 'cope\+t5' declare cope 1, t5 10"):
        named_recipe("tiny", pe="cope+t5", encoding_rate="declared")
    for planned in load_plan("every"):
        if (
            rate := declared_rate(planned.recipe.pe)
        ) != 1:  # what declares none may be tried at any
            assert planned.recipe.encoding_rate == rate, planned.label
