"""What the speed run measures: cells, their order, settings that mean nothing, and peers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import pe
from pe.speed import rig

cells, plan = rig("cell"), rig("plan")
measure_cell, numbers = cells.measure_cell, cells.numbers
Cell, all_encodings, order, settings = plan.Cell, plan.all_encodings, plan.order, plan.settings
CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"recipe": "demo", "tokens": 32, "peers": (), "compiled": False}
pytestmark = pytest.mark.usefixtures("tiny_speed")


def test_a_cell_is_a_median_with_its_least_and_most() -> None:
    assert numbers([0.5, 0.25, 1.0], tokens=100) == {
        "tokens_per_second": 200.0, "least": 100.0, "most": 400.0, "repeats": 3,
    }  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "prefill", "small"])
def test_a_cell_measures_for_real(mode: str, chooser: dict[str, Any]) -> None:
    chosen = settings(**SMALL, lengths=(16,), repeats=3)
    row = measure_cell(Cell("alibi", mode, 16, 2), chosen, CPU)
    assert row["tokens_per_second"] > 0
    assert row["least"] <= row["tokens_per_second"] <= row["most"]
    assert (row["repeats"], row["reason"], row["path"]) == (3, None, "by hand")
    assert row["parameters"] > 1e4
    assert row["mfu"] is None  # nobody knows this processor's peak
    assert row["peak_memory_gib"] is None
    assert row["compiled"] is False
    assert chooser["seen"] == [("cpu", torch.float32, 16, 2 * 2, 16)]


def test_a_step_that_takes_longer_than_patience_is_timed_once(
    chooser: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cells, "PATIENCE_SECONDS", 0.0)
    asked: list[int] = []
    real = cells._timed
    monkeypatch.setattr(cells, "_timed", lambda *given: asked.append(given[1]) or real(*given))
    row = measure_cell(Cell("nope", "train", 16, 2), settings(**SMALL, lengths=(16,)), CPU)
    assert asked == [1, 1], "the first step, and the one that counts"
    assert (row["repeats"], row["least"]) == (1, row["most"])


def test_training_steps_train_and_prefill_does_not(
    chooser: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    real = cells.build

    def watched(*arguments: Any) -> Any:
        system = real(*arguments)
        seen.append((system, {n: p.clone() for n, p in system.model.named_parameters()}))
        return system

    monkeypatch.setattr(cells, "build", watched)
    chosen = settings(**SMALL, lengths=(16,))
    for mode in ("train", "prefill"):
        measure_cell(Cell("t5", mode, 16, 2), chosen, CPU)
    (trained, before), (read, same) = seen
    assert all(not torch.equal(p, before[n]) for n, p in trained.model.named_parameters())
    assert all(torch.equal(p, same[n]) for n, p in read.model.named_parameters())
    assert not read.model.training
    assert read.last(torch.zeros(2, 16, dtype=torch.long)).shape[:2] == (2, 1)


def test_every_encoding_can_be_measured(chooser: dict[str, Any]) -> None:
    chosen = settings(**SMALL, lengths=(16,), repeats=1)
    for name in all_encodings():
        row = measure_cell(Cell(name, "prefill", 16, 1), chosen, CPU)
        assert row["reason"] is None, name


def test_only_a_lack_of_memory_and_our_own_refusals_are_reasons(
    chooser: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings(**SMALL, lengths=(16,))
    batches: list[int] = []

    def build(error: BaseException, until: int) -> Any:
        def built(name: str, recipe: Any, *_: Any) -> Any:
            batches.append(recipe.batch_size)
            if recipe.batch_size > until:
                raise error
            return real(name, recipe, *_)

        return built

    real = cells.build
    short = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has")
    monkeypatch.setattr(cells, "build", build(short, 0))
    row = measure_cell(Cell("fire", "train", 16, 8), chosen, CPU)
    assert row["reason"] == "out of memory at batch 8 (20.00 GiB more asked for)"
    assert (row["tokens_per_second"], row["path"], batches) == (None, None, [8])

    # A peer is given less until it fits; what it was measured with is recorded.
    batches.clear()
    monkeypatch.setattr(cells, "build", build(short, 2))
    row = measure_cell(Cell("transformers/rope", "train", 16, 8), chosen, CPU)
    assert (batches, row["batch"], row["reason"]) == ([8, 4, 2], 2, None)
    assert row["tokens_per_second"] > 0

    monkeypatch.setattr(cells, "build", build(ValueError("not ours"), 0))
    with pytest.raises(ValueError, match="not ours"):
        measure_cell(Cell("fire", "train", 16, 8), chosen, CPU)

    monkeypatch.setattr(cells, "build", lambda *_: pe.encoding("no-such", head_dim=8, num_heads=1))
    row = measure_cell(Cell("fire", "train", 16, 8), chosen, CPU)
    assert row["reason"].startswith("unknown encoding 'no-such'")


def test_the_most_telling_cells_come_first_and_none_comes_twice() -> None:
    peers = ("x-transformers/rope", "transformers/rope")
    chosen = settings(
        "tiny", 65536, (1024, 4096, 16384, 32768), encodings=("yarn", "sinusoidal", "cope", "rope"),
        peers=peers,
    )  # fmt: skip
    found = order(chosen)
    ours = ["nope", "rope", "cope"]
    assert [c.system for c in found[:6]] == [*ours, *ours]
    assert [(c.mode, c.length) for c in found[:6]] == [("train", 1024)] * 3 + [("train", 16384)] * 3
    theirs = ["transformers/rope", "x-transformers/rope"]
    late = ["sinusoidal", "yarn"]
    assert [c.system for c in found[6:12]] == [*theirs, *late, *theirs]
    lengths = [1024, 1024, 1024, 1024, 16384, 16384]
    assert [(c.mode, c.length) for c in found[6:12]] == [("train", n) for n in lengths]
    assert [(c.mode, c.length) for c in found[12:22:5]] == [("train", 4096), ("train", 32768)]
    assert len(found) == len(set(found)) == 7 * (4 + 4 + 1)
    assert {c.batch * c.length for c in found if c.mode != "small"} == {65536}
    assert {(c.batch, c.length) for c in found if c.mode == "small"} == {(1, 128)}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lengths": (1000,)}, "32 tokens do not divide into windows of 1000"),
        ({"modes": ("trian",)}, "did you mean 'train'"),
        ({"encodings": ("alibbi",)}, "did you mean 'alibi'"),
        ({"peers": ("x-transformers/rop",)}, "did you mean 'x-transformers/rope'"),
        ({"recipe": "tiyn"}, "did you mean 'tiny'"),
        ({"repeats": -1}, "repeats"),
    ],
)
def test_settings_that_mean_nothing_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        settings(**({"lengths": (16,)} | SMALL | given))


def test_a_peer_is_measured_where_it_is_installed_and_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = SMALL | {"peers": None, "lengths": (16,), "encodings": ("rope",)}
    monkeypatch.delitem(sys.modules, "x_transformers", raising=False)
    if importlib.util.find_spec("x_transformers") is None:
        assert settings(**given).systems == ["nope", "rope", "transformers/rope"]
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "x_transformers.py").write_text("import nothing_of_that_name\n")
    with pytest.raises(ValueError, match="x-transformers is installed and cannot be imported"):
        settings(**given)
    (tmp_path / "x_transformers.py").write_text("")
    importlib.invalidate_caches()
    assert len([s for s in settings(**given).systems if s.startswith("x-transformers/")]) == 8
