"""Studies of seconds, for tests: runs of 16 steps with made-up text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_training import write_corpus

import pe
from pe.runs import Run
from pe.study import Planned, queue, worker

SMALL = {
    "vocab_size": 264, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "intermediate_size": 48, "context_length": 16, "steps": 16,
    "batch_size": 4, "warmup_steps": 2, "checkpoint_every": 4, "log_every": 1,
    "validate_every": 8, "evaluation_lengths": [16, 32], "target_tokens": 8,
    "evaluation_windows": 4,
}  # fmt: skip
CHAIN: dict[str, Any] = {
    "rope": {"pe": "rope"},
    "dropped": {
        "pe": "nope", "start": {"run": "rope", "at": "1/2"}, "set": {"steps": "1/2"},
    },
}  # fmt: skip
WSD = {"schedule": "wsd", "warmup_steps": 2, "decay_steps": "1/4", "validate_every": 0}
BRANCHING: dict[str, Any] = {"rope": {"pe": "rope", "branches": ["1/4", "1/2"]}}


def write(folder: Path, runs: dict[str, Any], **more: Any) -> str:
    """Write a study file with these runs, and a corpus beside it; ``more`` are recipe fields."""
    corpus = write_corpus(folder / "corpus")
    content = {"recipe": "demo", "set": SMALL | {"corpus": str(corpus)} | more, "runs": runs}
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return str(path)


def by_label(plan: list[Planned]) -> dict[str, Planned]:
    return {p.label: p for p in plan}


def trained_steps(run: Run) -> list[int]:
    return [line["step"] for line in run.metric_lines() if "loss" in line]


def carry_out(plan: list[Planned]) -> None:
    """Train the runs one after the other, as a worker does."""
    for planned in plan:
        pe.evaluate(pe.train(planned.run(), quiet=True), quiet=True)
        assert planned.done()


def lose_weights(root: Path) -> None:
    """Delete the weights, so that only records are left, as in a clone."""
    for folder in [*root.glob("*/*/checkpoint"), *root.glob("*/*/checkpoints")]:
        shutil.rmtree(folder)


@contextmanager
def workers_in_this_process(count: int, threads: int = 1, gpus: str = "") -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=count, threads_per_worker=threads, processes=False, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client, list(gpus)


def run_in_this_process(
    monkeypatch: pytest.MonkeyPatch, execute: Any = None, workers: int = 1, **more: Any
) -> None:
    """Let `run_study` train here, or call ``execute``, which costs no process per run."""

    def carry_out(task: dict[str, Any], environment: dict[str, str]) -> str:
        try:
            worker.carry_out_task(task | {"notebook": False})
        except Exception as error:  # Dask shows the message alone
            raise worker.RunFailed(f"{type(error).__name__}: {error}") from error
        return str(task["directory"])

    monkeypatch.setattr(queue, "execute", execute or carry_out)
    monkeypatch.setattr(queue, "POLL", 0.01)
    monkeypatch.setattr(queue, "connect", lambda a, w: workers_in_this_process(workers, **more))
