from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from tiny_training import tiny, write_corpus

from pe.recipes.named import recipe
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training.schedule import learning_rate
from pe.training.train import train

COSINE = recipe(
    "demo", steps=110, warmup_steps=10, learning_rate=1e-2, min_learning_rate=1e-3
)  # fmt: skip
WSD = recipe(
    "demo", steps=110, warmup_steps=10, learning_rate=1e-2, min_learning_rate=1e-3,
    schedule="wsd", decay_steps=19,
)  # fmt: skip


def rates(which: Recipe) -> list[float]:
    return [learning_rate(which, step) for step in range(which.steps)]


@pytest.mark.parametrize("which", [COSINE, WSD], ids=["cosine", "wsd"])
def test_warmup_is_a_straight_line_to_the_peak(which: Recipe) -> None:
    found = rates(which)
    assert found[:10] == pytest.approx([1e-3 * (t + 1) for t in range(10)])
    assert found[9] == 1e-2
    assert found[10] == max(found) == pytest.approx(1e-2)
    assert all(a >= b for a, b in itertools.pairwise(found[10:]))
    assert all(rate > 0 for rate in found), "a step with rate 0 is a wasted one"


def test_cosine_at_the_quarters() -> None:
    assert learning_rate(COSINE, 35) == pytest.approx(1e-3 + 9e-3 * (1 + math.sqrt(0.5)) / 2)
    assert learning_rate(COSINE, 60) == pytest.approx(5.5e-3)
    assert learning_rate(COSINE, 85) == pytest.approx(1e-3 + 9e-3 * (1 - math.sqrt(0.5)) / 2)
    assert learning_rate(COSINE, 109) == pytest.approx(1e-3, rel=0.01)
    assert learning_rate(COSINE, 110) == pytest.approx(1e-3)


def test_wsd_is_flat_and_then_falls_in_equal_steps() -> None:
    found = rates(WSD)
    assert set(found[10:91]) == {1e-2}
    falls = [a - b for a, b in itertools.pairwise([*found[90:], learning_rate(WSD, 110)])]
    assert falls == pytest.approx([9e-3 / 20] * 20)
    assert learning_rate(WSD, 110) == pytest.approx(1e-3)


def test_a_wsd_run_shares_its_stable_part_with_longer_ones() -> None:
    # So one run gives several budgets: branch off before the decay.
    longer = recipe(
        "demo", steps=220, warmup_steps=10, learning_rate=1e-2, min_learning_rate=1e-3,
        schedule="wsd", decay_steps=19,
    )  # fmt: skip
    assert rates(longer)[:91] == rates(WSD)[:91]


def test_without_warmup_the_first_step_has_the_peak() -> None:
    for schedule in ("cosine", "wsd"):
        sharp = recipe("demo", warmup_steps=0, schedule=schedule)
        assert learning_rate(sharp, 0) == sharp.learning_rate


def test_a_run_that_is_all_warmup_and_decay_has_no_gap() -> None:
    edge = recipe("demo", steps=20, warmup_steps=10, schedule="wsd", decay_steps=10)
    assert all(0 < rate <= edge.learning_rate for rate in rates(edge))
    warming = recipe("demo", steps=10, warmup_steps=10)
    assert learning_rate(warming, 9) == warming.learning_rate


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
def test_the_recorded_rate_is_the_schedules_before_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, schedule: str
) -> None:
    monkeypatch.setenv("PE_CACHE", str(tmp_path / "cache"))
    torch.set_num_threads(1)
    corpus = write_corpus(tmp_path / "corpus")
    decay = 4 if schedule == "wsd" else 0
    chosen = tiny(corpus, schedule=schedule, decay_steps=decay, num_hidden_layers=1, steps=12)
    run = Run(tmp_path / "run", chosen)
    used: list[float] = []
    real = torch.optim.AdamW.step

    def step(self: torch.optim.AdamW, *arguments: object) -> object:
        if len(used) == 8:
            used.append(float("nan"))
            raise RuntimeError("pulled the plug")
        used.append(self.param_groups[0]["lr"])
        assert len({group["lr"] for group in self.param_groups}) == 1
        return real(self, *arguments)

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(RuntimeError, match="pulled the plug"):
        train(run, quiet=True)
    train(run, quiet=True)
    wanted = rates(chosen)
    assert used[:8] == wanted[:8]
    assert used[9:] == wanted[5:]  # again from the checkpoint after step 5
    assert run.metrics()["lr"].dropna().tolist() == wanted
