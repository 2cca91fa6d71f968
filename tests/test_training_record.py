"""What a record says about code, machine, command and speed; and what progress looks like."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_training import tiny

import pe
from pe import devices
from pe.model import PEConfig, PEModel
from pe.notebooks.parameters import configure
from pe.recipes.named import recipe
from pe.runs import Run
from pe.runs import provenance as record
from pe.training import progress
from pe.training.attention import attention_path
from pe.training.build import build_model, parameter_counts
from pe.training.flops import flops_per_token, peak_flops
from pe.training.metrics import Metrics, layers_shown
from pe.training.progress import Progress, duration

PEAKS = {
    "NVIDIA H100 80GB HBM3": 989.0,
    "NVIDIA H100 PCIe": 756.0,
    "NVIDIA H100 NVL": 835.0,
    "NVIDIA H200": 989.0,
    "NVIDIA H200 NVL": 835.0,
    "NVIDIA B200": 2250.0,
    "NVIDIA A100-SXM4-80GB": 312.0,
    "NVIDIA A100 80GB PCIe": 312.0,
    "NVIDIA A100-PCIE-40GB": 312.0,
    "NVIDIA A10": 125.0,
    "NVIDIA A10G": 70.0,
    "NVIDIA L4": 121.0,
    "NVIDIA L40S": 362.0,
    "NVIDIA GeForce RTX 4090": 165.2,
    # Names that contain a listed one and are another chip, or a part of one.
    "NVIDIA GeForce RTX 4090 Laptop GPU": None,
    "NVIDIA GeForce RTX 4090 D": None,
    "NVIDIA GeForce RTX 3090 Ti": None,
    "NVIDIA H100 80GB HBM3 MIG 1g.10gb": None,
    "NVIDIA GH200 480GB": None,
    "NVIDIA L40": None,
    "NVIDIA RTX A4000": None,
    "Tesla T4": None,
    "AMD Instinct MI300X": None,
    "": None,
}


@pytest.mark.parametrize(("name", "peak"), PEAKS.items())
def test_peak_of_a_device_as_torch_names_it(name: str, peak: float | None) -> None:
    assert peak_flops(name) == (None if peak is None else peak * 1e12)


def test_flops_against_a_count_by_hand() -> None:
    chosen = recipe("demo")
    model = build_model(chosen, chosen.vocab_size)
    d, layers, length = chosen.hidden_size, chosen.num_hidden_layers, chosen.context_length
    multiply_adds = 0  # of one token's forward pass
    for name, weight in model.named_parameters():
        if weight.dim() == 2:  # the tied matrix is looked up once and multiplied once
            multiply_adds += weight.numel()
        else:
            assert "norm" in name
    for _ in range(layers):
        keys = length / 2  # on average, below the diagonal
        multiply_adds += round(keys * d) + round(keys * d)  # q k^T, and weights times v
    by_hand = 3 * 2 * multiply_adds  # backward costs twice the forward pass
    counted = flops_per_token(parameter_counts(model)["parameters"], layers, d, length)
    assert counted == pytest.approx(by_hand, rel=1e-3)  # norms are in the one and not the other


@pytest.mark.parametrize(
    ("spec", "shown"),
    [("rope", "causal"), ("rope+window:5", "window"), ("rope+chunk:6+sinks:2", "chunk")],
)
def test_a_layer_counts_for_the_keys_that_it_shows(spec: str, shown: str) -> None:
    length = 16
    seen = 0
    for query in range(length):
        for key in range(query + 1):
            near = {"causal": True, "window": query - key < 5,
                    "chunk": query // 6 == key // 6 or key < 2}  # fmt: skip
            seen += near[shown]
    share = seen / (length * (length + 1) / 2)
    config = PEConfig(vocab_size=32, hidden_size=32, num_attention_heads=2, num_hidden_layers=3,
                      intermediate_size=48, pe=f"2*({spec}), nope")  # fmt: skip
    assert layers_shown(PEModel(config), length) == pytest.approx(2 * share + 1)


class FakeRun:
    def __init__(self, directory: Path) -> None:
        self.directory = directory


def flush(metrics: Metrics, step: int, losses: list[float], norm: float = 1.0) -> dict[str, Any]:
    for loss in losses:
        metrics.add(torch.tensor(loss), torch.tensor(norm))
    return metrics.flush(
        step, 1000 * step, 0.1, 1000 * len(losses), 0.5, lambda x: x, "nothing saved"
    )


def test_mfu_is_achieved_over_possible_flops(tmp_path: Path) -> None:
    metrics = Metrics(FakeRun(tmp_path), True, flops_per_token=3e6, peak=1e11)  # type: ignore[arg-type]
    line = flush(metrics, 4, [5.0, 4.0, 3.0, 2.0])
    assert line["tokens_per_second"] == 8000.0
    assert line["mfu"] == pytest.approx(8000 * 3e6 / 1e11)
    assert (line["step"], line["loss"], line["tokens"], line["seconds"]) == (4, 3.5, 4000, 0.5)
    assert line["total_tokens"] == 4000
    assert json.loads((tmp_path / "metrics.jsonl").read_text()) == line
    unknown = Metrics(FakeRun(tmp_path), False, flops_per_token=3e6, peak=None)  # type: ignore[arg-type]
    assert flush(unknown, 1, [1.0])["mfu"] is None


def test_the_step_that_went_wrong_is_named_among_those_of_a_line(tmp_path: Path) -> None:
    from pe.training.metrics import NonFiniteLoss

    metrics = Metrics(FakeRun(tmp_path), True, 1.0, None)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteLoss, match="at step 18; nothing saved"):
        flush(metrics, 20, [1.0, 2.0, math.inf, 1.0, 1.0])
    with pytest.raises(NonFiniteLoss, match="gradient norm nan at step"):
        flush(Metrics(FakeRun(tmp_path), True, 1.0, None), 1, [1.0], norm=math.nan)  # type: ignore[arg-type]
    with pytest.raises(NonFiniteLoss, match="validation loss inf after step 3"):
        metrics.validation(3, 3000, math.inf)
    assert not (tmp_path / "metrics.jsonl").exists()


def test_recorded_speed_leaves_the_warm_up_out_and_the_final_loss_is_of_the_end(
    tmp_path: Path,
) -> None:
    metrics = Metrics(FakeRun(tmp_path), False, 1.0, None)  # type: ignore[arg-type]
    metrics.lines = [
        {"step": s, "loss": float(s), "tokens_per_second": rate}
        for s, rate in ((10, 1.0), (50, 90.0), (91, 100.0), (100, 110.0))
    ]
    assert metrics.speed() == 100.0
    assert metrics.final_loss(100) == 95.5
    metrics.lines = metrics.lines[:1]
    assert metrics.speed() == 1.0
    assert metrics.final_loss(1000) == 10.0


def test_the_recorded_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PE_COMMAND", raising=False)
    monkeypatch.setattr(sys, "argv", ["/home/me/.venv/bin/study", "--seed", "3"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert record.command() == "study --seed 3"
    module = ModuleSpec("pe.tasks.study.__main__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", module)
    monkeypatch.setattr(sys, "argv", ["/x/pe/tasks/study/__main__.py", "core"])
    assert record.command() == "python -m pe.tasks.study core", "as it can be typed"
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "-f", "/tmp/kernel-1.json"])
    assert record.command() is None
    monkeypatch.setenv("PE_COMMAND", "papermill notebooks/train.ipynb -p pe pope")
    assert record.command() == "papermill notebooks/train.ipynb -p pe pope"


def test_a_notebook_carried_out_by_hand_records_the_papermill_command_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PE_COMMAND", raising=False)
    monkeypatch.setattr(sys, "argv", ["/x/ipykernel_launcher.py", "-f", "/tmp/kernel-1.json"])
    recipe = tiny(tmp_path, pe="pope", seed=3)
    run = Run(tmp_path / "mine" / recipe.run_name(), recipe)
    run.start()
    *words, values = shlex.split(run.read()["command"])
    assert words == ["papermill", "notebooks/train.ipynb", "-y"]
    monkeypatch.setenv("PE_RUNS", str(tmp_path))
    monkeypatch.setattr("pe.notebooks.parameters.check_run", lambda run: None)
    assert configure(**yaml.safe_load(values)).directory == run.directory


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository whose pe/ is as much of ours as records need."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    source, copy = Path(pe.__file__).parent, tmp_path / "checkout"
    (copy / "runs").mkdir(parents=True)
    (copy / "README.md").write_text("read me\n")
    (copy / "runs" / "note").write_text("a record\n")
    shutil.copytree(source, copy / "pe", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / ".gitignore").write_text("__pycache__/\n")
    git(copy, "init", "-q")
    git(copy, "add", ".")
    git(copy, "commit", "-q", "-m", "one")
    return copy


def code_of(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr(record, "__file__", str(checkout / "pe" / "runs" / "provenance.py"))
    return record.code()


def test_the_commit_and_whether_it_is_the_code_that_ran(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = git(checkout, "rev-parse", "HEAD")
    clean = code_of(checkout, monkeypatch)
    assert clean | {"files": ""} == {
        "commit": head, "dirty": False, "version": "0.1.0", "source": "git", "files": "",
    }  # fmt: skip
    monkeypatch.setenv("PE_COMMIT", "told")  # git knows better
    (checkout / "runs" / "note").write_text("another record\n")
    (checkout / "notes.txt").write_text("not code\n")
    assert code_of(checkout, monkeypatch) == clean
    (checkout / "pe" / "encodings" / "mine.py").write_text("# a new encoding\n")
    other = code_of(checkout, monkeypatch)
    assert (other["commit"], other["dirty"]) == (head, True)
    assert other["files"] != clean["files"]
    (checkout / "pe" / "encodings" / "mine.py").unlink()
    (checkout / "pe" / "model" / "decoder.py").write_text("# changed\n")
    changed = code_of(checkout, monkeypatch)
    assert changed["dirty"]
    assert len({clean["files"], other["files"], changed["files"]}) == 3
    git(checkout, "checkout", "-q", "pe/model/decoder.py")
    assert code_of(checkout, monkeypatch) == clean


def test_a_commit_that_was_told_is_marked_and_not_called_clean(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = code_of(checkout, monkeypatch)
    shutil.rmtree(checkout / ".git")
    monkeypatch.setenv("PE_COMMIT", measured["commit"])
    assert code_of(checkout, monkeypatch) == measured | {"source": "told", "dirty": None}


def test_outside_a_checkout_there_is_no_commit(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Installed below a checkout of something else: its commit is not ours.
    inside = checkout / ".venv" / "lib" / "site-packages"
    shutil.copytree(checkout / "pe" / "training", inside / "pe" / "training")
    found = code_of(inside, monkeypatch)
    assert (found["commit"], found["dirty"], found["source"]) == (None, None, "unknown")
    monkeypatch.setenv("PATH", "")
    assert code_of(checkout, monkeypatch)["commit"] is None


def test_versions_and_hardware_are_those_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    found = record.versions()
    assert found["python"] == sys.version.split()[0]
    assert found["torch"].split("+")[0] == torch.__version__.split("+")[0]
    assert {"transformers", "accelerate", "numpy"} <= found.keys()
    machine = record.hardware()
    assert machine["device"] == devices.choose().type
    assert machine["name"] not in ("", "unknown")
    assert machine["count"] == 1
    assert machine["cores"] >= 1
    assert machine["memory_gib"] > 0.1
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert record.hardware()["count"] == 4


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (18, "18 s"), (725, "12 min 05 s"), (3753, "1 h 02 min")]
)
def test_durations_read_like_a_clock(seconds: float, text: str) -> None:
    assert duration(seconds) == text


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("pe.training.progress.time.monotonic", lambda: self.now)


def test_outside_a_kernel_lines_come_at_most_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_in_kernel", lambda: False)
    clock, shown = Clock(monkeypatch), Progress(every_seconds=5.0)
    made = []

    def line() -> str:
        made.append(step)
        return f"step {step}"

    for step in range(120):
        clock.now = step / 10
        shown.show(line)
    assert made == [0, 50, 100]  # what is not shown is not made
    shown.show("step 120", last=True)
    out = capsys.readouterr()
    assert out.out == ""
    assert out.err.splitlines() == ["step 0", "step 50", "step 100", "step 120"]
    Progress(enabled=False).show("never", last=True)
    assert capsys.readouterr().err == ""


def test_in_a_kernel_one_display_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[str, Any, Any]] = []

    class Handle:
        def update(self, bundle: Any, *, metadata: Any, raw: bool) -> None:
            assert raw
            calls.append(("update", bundle, metadata))

    def display(bundle: Any, *, metadata: Any, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        calls.append(("display", bundle, metadata))
        return Handle()

    monkeypatch.setattr(progress, "_in_kernel", lambda: True)
    monkeypatch.setattr("IPython.display.display", display)
    clock, shown = Clock(monkeypatch), Progress()
    for step in range(13):
        clock.now = step / 10
        shown.show(f"step {step}")
    shown.show("step 13", last=True)
    assert [(kind, bundle["text/plain"]) for kind, bundle, _ in calls] == [
        ("display", "step 0"), ("update", "step 5"), ("update", "step 10"), ("update", "step 13"),
    ]  # fmt: skip
    assert all(metadata == {"pe_progress": True} for _, _, metadata in calls)
    assert capsys.readouterr().err == ""


def test_a_plain_python_is_no_kernel() -> None:
    assert progress._in_kernel() is False


@pytest.mark.parametrize(
    ("spec", "changes", "path"),
    [
        ("rope", {}, "flash"),
        ("alibi", {}, "matrix"),
        ("rope", {"mask_documents": True}, "flash"),
        ("fire", {"reset_positions": True}, "matrix"),
        ("fire+window:16", {"mask_documents": True}, "rows"),
        ("rope+window:16", {"compile": "on"}, "matrix"),
        ("rope+sink", {"mask_documents": True}, "matrix"),
    ],
)
def test_the_record_says_how_attention_was_computed(
    spec: str, changes: dict[str, Any], path: str
) -> None:
    recipe = pe.recipe("demo", pe=spec, **changes)
    assert attention_path(build_model(recipe, 64), recipe, 8, torch.device("cpu")) == path


@pytest.mark.parametrize("changes", [{}, {"reset_positions": True}])
def test_the_recorded_path_depends_on_the_windows_of_one_process(changes: dict[str, Any]) -> None:
    recipe = pe.recipe("tiny", pe="self_extend", batch_size=128, **changes)
    model = build_model(dataclasses.replace(recipe, num_hidden_layers=1), 64)
    for windows, path in ((128, "rows"), (64, "matrix")):  # alone, and with another process
        assert attention_path(model, recipe, windows, torch.device("cpu")) == path
