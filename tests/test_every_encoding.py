"""Each kind of encoding that a run can tell: train, resume to the same bits, evaluate, sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_tools import cheaper, in_a_run, one_per_kind
from tiny_training import assert_same_weights, tiny

import pe
from pe.runs import Run
from pe.training.metrics import Metrics

pytestmark = pytest.mark.usefixtures("alone")
SPECS = [*one_per_kind(pe.list_encodings(), in_a_run), "longrope+resonance", "fox+rope"]


class Stopped(RuntimeError):
    """Stands for a crash."""


@pytest.mark.parametrize("name", SPECS)
def test_a_run_from_its_first_step_to_its_sample(
    name: str, shared: Path, own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny(
        shared / "corpus", pe=name, pe_options=cheaper(name), steps=6, warmup_steps=1,
        checkpoint_every=2, validate_every=0,
    )  # fmt: skip
    whole, broken = (Run(own_runs / s / recipe.run_name(), recipe=recipe) for s in ("a", "b"))
    pe.train(whole, quiet=True)
    add, calls = Metrics.add, [0]

    def crash(self: Metrics, *values: Any) -> None:
        calls[0] += 1
        if calls[0] == 4:
            raise Stopped
        add(self, *values)

    with monkeypatch.context() as patch:
        patch.setattr(Metrics, "add", crash)
        with pytest.raises(Stopped):
            pe.train(broken, quiet=True)
    pe.train(broken, quiet=True)
    assert broken.read()["training"]["resumes"] == 1
    assert_same_weights(whole, broken)

    limit = pe.encoding(name, head_dim=16, num_heads=2, original_length=16).max_positions
    for length, cell in pe.evaluate(whole, quiet=True)["perplexity"].items():
        if limit is not None and int(length) > limit:
            assert cell["value"] is None
            assert cell["reason"] == f"no value: longest position {limit - 1}"
        else:
            assert cell["value"] > 1
    prompt = "the cat "
    said = pe.sample(whole, prompt, tokens=6)
    assert said.startswith(prompt)
    assert len(said) > len(prompt)
