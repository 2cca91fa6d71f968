"""What a recipe takes of a GPU is said before training: close to what was recorded, and with a way
out where it is too much."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import pe
from pe import cli
from pe.notebooks import page
from pe.recipes.named import RECIPES
from pe.runs import Run
from pe.speed.record import Speed, find
from pe.training import memory
from pe.training.build import build_config

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(("record", "recipe"), [("h200-2", "tiny"), ("h200-paper", "paper")])
def test_estimates_are_close_to_recorded_peaks(record: str, recipe: str) -> None:
    (speed,) = (s for s in map(_speed, find(ROOT / "runs")) if s.record["run"] == record)
    chosen = pe.recipe(recipe, micro_batch_size=0)  # as it was measured
    recorded = speed.result("rope", "train", 1024)["peak_memory_gib"]
    assert memory.estimate(chosen).total == pytest.approx(recorded, rel=0.05)


def _speed(run: Any) -> Speed:
    return Speed(run.read())


@pytest.mark.parametrize("name", ["tiny", "paper", "59m", "164m", "470m", "1200m"])
def test_parameters_are_those_of_the_model_and_budgets_what_names_say(name: str) -> None:
    chosen = RECIPES[name]
    count = memory.parameters(chosen)
    with torch.device("meta"):
        model = pe.PEForCausalLM(build_config(chosen, chosen.vocab_size))
    assert count == sum(parameter.numel() for parameter in model.parameters())
    if name.endswith("m"):
        assert count == pytest.approx(1e6 * int(name[:-1]), rel=0.01)
        tokens = chosen.steps * chosen.batch_size * chosen.context_length
        assert tokens / count == pytest.approx(40, rel=0.02)


def test_each_option_takes_less_and_gives_the_same_run() -> None:
    chosen = pe.recipe("1200m")
    whole = memory.estimate(chosen, 8).total
    options = list(memory.options(chosen, 8))
    assert {"fsdp": True} in options
    assert {"activation_checkpointing": True} in options
    for changes in options:
        changed = dataclasses.replace(chosen, **changes)
        assert memory.estimate(changed, 8).total < whole, changes
        rest = {"micro_batch_size": chosen.micro_batch_size}  # part of a run's name, as ever
        assert dataclasses.replace(changed, **rest).config_hash() == chosen.config_hash()
    assert not any("fsdp" in changes for changes in memory.options(chosen))


def test_the_plan_says_what_training_takes_and_what_makes_it_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", pe.recipe("paper"))
    assert "memory" not in page.plan(run).data, "nothing is known of a CPU"
    monkeypatch.setattr("pe.devices.choose", lambda: torch.device("cuda"))
    for gib, says in ((139.8, "GiB of 140 "), (24, "too much; with micro_batch_size: 16 in over")):
        card = SimpleNamespace(total_memory=gib * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index, card=card: card)
        assert says in page.plan(run).data
    assert "use more GPUs" in memory.sentence(pe.recipe("1200m"), 1, 8.0)


def test_the_command_lists_what_fits(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["memory", "1200m", "--processes", "8", "--gib", "32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1200m: 1,198 M parameters, 8 GPUs"
    (first,) = (line for line in lines if line.startswith("as it is"))
    assert first.endswith("no")
    assert any(line.startswith("fsdp: true ") and line.endswith("yes") for line in lines)
    assert cli.main(["memory", "1200m", "--gib", "8"]) == 1
    assert cli.main(["memory", "1200m"]) == 2, "which GPU?"
    assert "--gib 80" in capsys.readouterr().err
