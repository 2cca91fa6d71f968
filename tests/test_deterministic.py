"""Deterministic algorithms: on while a run trains and never after, and in the run's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pe
from pe.attention.sdpa import _takes_two_widths
from pe.devices import deterministic
from pe.runs import Run
from pe.training import loop

SMALL: dict[str, Any] = {
    "steps": 3, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 32, "batch_size": 2, "context_length": 32,
    "vocab_size": 512, "warmup_steps": 0, "validate_every": 0,
}  # fmt: skip


def state() -> tuple[int, bool]:
    return (
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def broken() -> None:
    with deterministic():
        assert state() == (2, False)
        with deterministic(False):
            assert state() == (2, False), "no less deterministic than around it"
        raise KeyError


@pytest.mark.parametrize("mode", ["default", "warn"])
def test_what_was_set_before_is_set_again_after_an_error_too(mode: str) -> None:
    start = state()
    try:
        torch.set_deterministic_debug_mode(mode)
        before = state()
        with pytest.raises(KeyError):
            broken()
        assert state() == before
    finally:
        torch.set_deterministic_debug_mode(start[0])


def test_a_run_trains_with_them_if_its_recipe_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"{i} and {i + 1} is {2 * i + 1}." for i in range(3000)))
    seen: list[bool] = []
    there = loop.learning_rate

    def rate(*given: Any, **named: Any) -> float:
        seen.append(torch.are_deterministic_algorithms_enabled())
        return there(*given, **named)

    monkeypatch.setattr(loop, "learning_rate", rate)
    losses = []
    for asked in (True, False):
        recipe = pe.recipe("demo", corpus=str(text), deterministic=asked, **SMALL)
        run = Run(tmp_path / "runs" / "same" / recipe.run_name(), recipe)
        pe.train(run, quiet=True)
        losses.append(run.read()["training"]["final_loss"])
        assert seen
        assert set(seen) == {asked}
        seen.clear()
    assert losses[0] == losses[1], "on a CPU all of it was deterministic anyway"


def test_it_is_part_of_what_a_run_is_and_older_names_stay() -> None:
    usual, same = (pe.recipe("demo", deterministic=asked) for asked in (False, True))
    assert usual.config_hash() == pe.recipe("demo").config_hash()
    assert usual.config_hash() != same.config_hash()


def test_queries_wider_than_values_are_not_given_to_cudnn(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hopper:
        major = 9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Hopper)
    q = torch.empty(1, 1, 4, 128, dtype=torch.bfloat16)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    assert _takes_two_widths(q)
    with deterministic():
        assert not _takes_two_widths(q)
