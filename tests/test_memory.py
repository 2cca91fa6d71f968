"""What a recipe takes of a GPU is said before training: close to what was recorded, and with a way
out where it is too much."""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import pe
from pe import cli, devices
from pe.notebooks import page
from pe.recipes.named import RECIPES
from pe.runs import Run
from pe.speed.record import Speed, find
from pe.training import memory
from pe.training.attention import matrix_bytes
from pe.training.build import build_config

ROOT = Path(__file__).parents[1]


def peak(record: str, encoding: str) -> float:
    """GiB of a training step with windows of 1,024 tokens."""
    (speed,) = (s for s in map(_speed, find(ROOT / "runs")) if s.record["run"] == record)
    return speed.result(encoding, "train", 1024)["peak_memory_gib"]  # type: ignore[no-any-return]


@pytest.mark.parametrize(("record", "recipe"), [("h200-2", "tiny"), ("h200-paper", "paper")])
def test_estimates_are_close_to_recorded_peaks(record: str, recipe: str) -> None:
    chosen = pe.recipe(recipe, micro_batch_size=0)  # as it was measured
    assert memory.estimate(chosen).total == pytest.approx(peak(record, "rope"), rel=0.02)


@pytest.mark.parametrize("encoding", ["self_extend", "dape", "path"])
def test_estimates_of_matrices_and_kernels_are_near_recorded_peaks(encoding: str) -> None:
    """Self-Extend keeps a matrix per layer, and the kernels of the others none; what these need
    besides is not estimated."""
    chosen = pe.recipe("tiny", pe=encoding, micro_batch_size=0)
    assert memory.estimate(chosen).total == pytest.approx(peak("h200-2", encoding), rel=0.15)


def test_the_estimate_with_float32_rows_is_near_the_recorded_peak() -> None:
    """When it was recorded, relative content's rows and their gradients were twice as wide."""
    chosen = pe.recipe("tiny", pe="relative_content", micro_batch_size=0)
    rows = matrix_bytes(chosen, chosen.batch_size)
    wider = sum(kept for kept, _ in rows) + max(needed - kept for kept, needed in rows)
    estimated = memory.estimate(chosen).total + wider / 2**30
    assert estimated == pytest.approx(peak("h200-2", "relative_content"), rel=0.15)


def test_rows_that_a_kernel_reads_are_counted() -> None:
    chosen = pe.recipe("tiny", pe="relative_content", pe_options={"reach": 512})
    rows = 64 * chosen.num_attention_heads * 1024 * 512 * 2
    assert matrix_bytes(chosen, 64) == [(rows, 2 * rows)] * chosen.num_hidden_layers
    assert matrix_bytes(pe.recipe("tiny", pe="fox"), 64)[0] == (0.0, 0.0)


def _speed(run: Any) -> Speed:
    return Speed(run.read())


def test_estimates_are_close_to_peaks_of_several_sizes_options_and_gpus() -> None:
    """Of the records of benchmarks/scaling.py: float32, checkpointing, FSDP, two GPUs."""
    paths = (ROOT / "benchmarks" / "results").glob("*-scaling.json")
    recipes: dict[str, dict[str, Any]] = {
        "34M": {"name": "tiny"}, "125M": {"name": "medium", "num_hidden_layers": 14},
        "360M": {"name": "paper"}, "1.2B": {"name": "1200m"},
    }  # fmt: skip
    options: dict[str, dict[str, Any]] = {
        "": {}, "FSDP": {"fsdp": True}, "checkpointing": {"activation_checkpointing": True},
        "float32": {"precision": "float32", "compile": "off"},
    }  # fmt: skip
    rows = [row for path in paths for row in json.loads(path.read_text())["rows"]]
    measured = [row for row in rows if row["reason"] is None]
    for row in measured:
        chosen = dict(recipes[row["name"]], batch_size=row["batch"][0])
        for option in row["options"].split(", "):
            chosen |= options[option]
        estimated = memory.estimate(pe.recipe(**chosen), row["processes"]).total
        assert estimated == pytest.approx(row["peak_memory_gib"], rel=0.05), row
    assert {"FSDP", "FSDP, float32", "FSDP, checkpointing"} <= {row["options"] for row in measured}


class Live(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most there were."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()
        for parameter in parameters:
            self.add(parameter)

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.known:
            self.known.add(key)
            self.now += size
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.drop, key, size)

    def drop(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        torch.utils._pytree.tree_map_only(torch.Tensor, self.add, out)
        return out


def _counted(recipe: pe.Recipe) -> float:
    """GiB that one pass of an eager step takes at most, AdamW's moments with it."""
    with FakeTensorMode():  # shapes and types, and no numbers
        model = pe.PEForCausalLM(build_config(recipe, recipe.vocab_size)).train()
        if recipe.activation_checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": False})
        ids = torch.zeros(recipe.batch_size, recipe.context_length, dtype=torch.long)
        with Live(model.parameters()) as live:
            moments = 2 * live.now
            with devices.autocast(recipe.precision, torch.device("cpu")):
                loss = model(input_ids=ids, shift_labels=ids, num_items_in_batch=1).loss
            loss.backward()
    return (live.most + moments) / 2**30


def _only_on_a_cpu(recipe: pe.Recipe) -> float:
    """GiB that the CPU keeps beyond what a GPU does.

    Its attention lays heads before tokens, so the heads are copied together; and its norms have no
    kernel of their own, so in float32 they keep the normalised input, too.
    """
    full = recipe.precision == "float32"
    copies, norms = recipe.num_hidden_layers, 2 * recipe.num_hidden_layers + 1
    if recipe.activation_checkpointing:
        copies, norms = 0, 1  # the step is fullest when there are no blocks but their inputs
    numbers = recipe.batch_size * recipe.context_length * recipe.hidden_size
    return numbers * ((4 if full else 2) * copies + (4 * norms if full else 0)) / 2**30


@pytest.mark.parametrize(
    ("encoding", "changes", "tolerance"),
    [
        ("rope", {"precision": "float32"}, 0.02),
        ("rope", {"precision": "bfloat16", "num_key_value_heads": 2}, 0.02),
        ("rope", {"precision": "float32", "activation_checkpointing": True}, 0.02),
        ("nope", {"precision": "float32", "vocab_size": 512, "num_hidden_layers": 1}, 0.15),
        ("pope", {"precision": "bfloat16", "vocab_size": 512, "num_hidden_layers": 1}, 0.2),
    ],
)
def test_estimates_are_what_an_eager_step_keeps(
    encoding: str, changes: dict[str, Any], tolerance: float
) -> None:
    layers = {"num_hidden_layers": 2, "batch_size": 16, "compile": "off"}
    chosen = pe.recipe("tiny", pe=encoding, **(layers | changes))
    counted = _counted(chosen) - _only_on_a_cpu(chosen)
    assert memory.estimate(chosen).total == pytest.approx(counted, rel=tolerance)


@pytest.mark.parametrize(
    ("encoding", "matrices"),
    [("self_extend", 1), ("path", 0), ("stickbreaking", 0), ("dape", 0), ("rope", 0)],
)
def test_matrices_are_those_that_a_layer_saves_for_its_gradient(
    encoding: str, matrices: int
) -> None:
    recipe = pe.recipe("tiny", pe=encoding)
    windows, entries = 2, 2 * 8 * 1024**2
    kept, needed = matrix_bytes(recipe, windows)[0]
    assert kept == pytest.approx(4 * matrices * entries, rel=1e-6)
    assert needed == 2 * kept
    eager = dataclasses.replace(recipe, compile="off")  # computes the bias in blocks
    assert matrix_bytes(eager, windows)[0][0] <= kept * (1 + 1e-9)


@pytest.mark.parametrize("encoding", ["dape+rope", "self_extend", "path+rope"])
def test_estimates_of_eager_steps_count_matrices(encoding: str) -> None:
    chosen = pe.recipe(
        "tiny", pe=encoding, precision="float32", compile="off", num_hidden_layers=2,
        batch_size=8, context_length=256, vocab_size=512,
    )  # fmt: skip
    counted = _counted(chosen) - _only_on_a_cpu(chosen)
    assert memory.estimate(chosen).total == pytest.approx(counted, rel=0.12)


def test_only_what_no_kernel_computes_takes_a_matrix() -> None:
    def total(encoding: str, **changes: Any) -> float:
        return memory.estimate(pe.recipe("tiny", pe=encoding, **changes)).total

    assert total("alibi") == total("cope") == total("fox+window:512") == total("rope")
    matrix = 64 * 8 * 1024**2 * 4 / 2**30  # of all windows and heads of a layer
    assert total("self_extend") == pytest.approx(total("rope") + 8 * matrix)
    assert total("alibi", mask_documents=True) > total("rope") + 7.9 * matrix
    twice = total("3*self_extend, rope", micro_batch_size=32), total("rope", micro_batch_size=32)
    assert twice[0] - twice[1] == pytest.approx(6 * matrix / 2)
    longer = {"context_length": 4096}  # so large a matrix is computed by rows and not kept
    assert total("self_extend", **longer) < total("rope", **longer) + 2 * matrix


def test_matrices_that_do_not_fit_are_named_before_training(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["memory", "tiny", "--gib", "80", "--set", "pe=dape+rope"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if line.startswith("as it is")).endswith("no")
    assert "with micro_batch_size: 16 in" in memory.sentence(
        pe.recipe("tiny", pe="dape+rope"), 1, 80.0
    )
    assert cli.main(["memory", "tiny", "--gib", "80", "--set", "pe=dapee"]) == 2
    assert "did you mean 'dape'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["tiny", "paper", "59m", "164m", "470m", "1200m"])
def test_parameters_are_those_of_the_model_and_budgets_what_names_say(name: str) -> None:
    chosen = RECIPES[name]
    count = memory.parameters(chosen)
    with torch.device("meta"):
        model = pe.PEForCausalLM(build_config(chosen, chosen.vocab_size))
    assert count == sum(parameter.numel() for parameter in model.parameters())
    study = pe.recipe(name, steps=16000, batch_size=64)
    assert study.steps * study.batch_size * study.context_length == 1_048_576_000
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
    assert cli.main(["memory", "1200m", "--processes", "8", "--gib", "40"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1200m: 1,198 M parameters, 8 GPUs"
    (first,) = (line for line in lines if line.startswith("as it is"))
    assert first.endswith("no")
    assert any(line.startswith("fsdp: true ") and line.endswith("yes") for line in lines)
    assert cli.main(["memory", "1200m", "--gib", "8"]) == 1
    assert cli.main(["memory", "1200m"]) == 2, "which GPU?"
    assert "--gib 80" in capsys.readouterr().err
    assert cli.main(["memory", "1200m", "--gib", "inf"]) == 2
    assert cli.main(["memory", "1200m", "--gib", "0"]) == 2
    assert "--gib: expected the memory of a GPU, more than 0, got 0" in capsys.readouterr().err
    assert cli.main(["memory", "paper", "--processes", "3", "--gib", "80"]) == 2
    said = capsys.readouterr().err
    assert "batch_size 64 does not divide among 3 processes" in said
    assert "--processes" in said


def test_a_training_far_beyond_the_memory_is_refused_before_it_begins(tmp_path: Path) -> None:
    for size in ({"batch_size": 10**9}, {"hidden_size": 10**8}):
        run = Run(tmp_path / "run", pe.recipe("demo", **size))
        with pytest.raises(ValueError, match="training needs about .* GiB of .*: too much"):
            pe.train(run)
        assert not run.directory.exists()


def test_each_of_several_processes_needs_its_share_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "run", pe.recipe("paper"))
    alone, eighth = (memory.estimate(run.recipe, count).total for count in (1, 8))
    monkeypatch.setattr(devices, "memory", lambda: eighth)
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ValueError, match=f"training needs about {alone:.1f} GiB"):
        pe.train(run)
    monkeypatch.setenv("WORLD_SIZE", "8")

    def stop(run: Run, quiet: bool) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # it fits, and the training would begin
        pe.train(run, trainer=stop)


def test_a_divided_model_is_accepted_in_the_processes_of_torchrun(
    own_runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="fsdp: spreads a model over processes, and there is one"):
        pe.configure(overrides={"fsdp": True})
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert pe.configure(overrides={"fsdp": True}).recipe.fsdp
