"""Two processes train as one does.

They are started with the variables that torchrun and `accelerate launch` set, and talk through
gloo. (`accelerate launch --cpu --num_processes 2` itself starts two only where MPI is installed.)
"""

from __future__ import annotations

import functools
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_training import TrainingProcess, lines, tiny, weights, with_step

from pe.recipes.recipe import Recipe
from pe.runs import Run


def uneven(signal_at: int = 0) -> Any:
    """A trainer; sequences have very different numbers of targets: a mean of means would be wrong.

    With ``signal_at`` the second process, and only that one, is told to stop at this step.
    """
    from pe.data import Batches

    at, done = Batches.at, 0

    def holed(self: Any, number: int) -> Any:
        batch = at(self, number)
        targets = batch.targets.copy()
        for row, kept in enumerate((16, 1, 9, 3)[: len(targets)]):
            targets[row, kept:] = -100
        return batch._replace(targets=targets)

    def counted(trainer: Any, batch: Any, usual: Any) -> Any:
        nonlocal done
        done += 1
        if done == signal_at and not trainer.main:
            os.kill(os.getpid(), signal.SIGTERM)
        return usual(batch)

    Batches.at = holed  # type: ignore[assignment, method-assign]
    return with_step(counted)


def launch(run: Run, shared: Path, processes: int, signal_at: int = 0) -> list[TrainingProcess]:
    """Train in so many processes; returns them when they have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    world = {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    world |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(processes):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), **world} if processes > 1 else {}
        hook = functools.partial(uneven, signal_at)
        started.append(TrainingProcess(run, shared / "cache", hook, place))
    for process in started:
        process.end()
    return started


def codes(started: list[TrainingProcess]) -> list[int | None]:
    return [process.process.exitcode for process in started]


def recipe(shared: Path, **changes: Any) -> Recipe:
    return tiny(shared / "corpus", **({"steps": 18, "pe": "pope"} | changes))


def test_two_processes_stop_go_on_and_equal_one(shared: Path) -> None:
    chosen = recipe(shared, micro_batch_size=1, keep_best=True)
    one, two = (Run(shared / name / chosen.run_name(), chosen) for name in ("one", "two"))
    assert codes(launch(one, shared, 1)) == [0]

    stopped = launch(two, shared, 2, signal_at=7)
    assert all(code not in (0, None) for code in codes(stopped)), stopped[0].output()
    record = two.read()
    assert record["status"] == "interrupted", stopped[0].output()
    step = two.metric_lines()[-1]["step"]
    assert step in (7, 8)
    assert record["reason"].startswith(f"stopped after step {step} of 18")

    finished = launch(two, shared, 2)
    assert codes(finished) == [0, 0], finished[0].output() + finished[1].output()
    record, single = two.read(), one.read()
    assert record["status"] == "complete"
    assert record["training"]["resumes"] == 1
    assert record["training"]["tokens"] == single["training"]["tokens"] == 18 * 64
    assert record["model"] == single["model"]
    best, last = two.metrics()["validation_loss"].dropna(), record["training"]["validation_loss"]
    assert record["training"]["best"]["validation_loss"] == best.min() <= last
    assert record["training"]["best"]["step"] == single["training"]["best"]["step"]
    assert (record["hardware"]["count"], single["hardware"]["count"]) == (2, 1)
    # One metrics file with every step once, across the end of an epoch.
    ours, theirs = lines(two), lines(one)
    assert [(step, key) for step, key, _ in ours] == [(step, key) for step, key, _ in theirs]
    assert [x for *_, x in ours] == pytest.approx([x for *_, x in theirs], abs=2e-5)
    norms = two.metrics()["grad_norm"].dropna().tolist()
    assert norms == pytest.approx(one.metrics()["grad_norm"].dropna().tolist(), rel=1e-3)
    for (name, a), b in zip(weights(two).items(), weights(one).values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=5e-5), name
    assert "step 18/18" in finished[0].output()
    assert "step 18/18" not in finished[1].output(), "progress comes from one process"
    assert [p.name for p in sorted((two.directory / "checkpoints").iterdir())] == [
        "step-000015", "step-000018",
    ]  # fmt: skip


def test_a_batch_that_does_not_divide_is_a_clear_error(shared: Path) -> None:
    chosen = recipe(shared, batch_size=3)
    run = Run(shared / "odd" / chosen.run_name(), chosen)
    started = launch(run, shared, 2)
    message = "batch_size 3 does not divide among 2 processes"
    for process in started:
        assert process.process.exitcode not in (0, None)
        assert message in process.output()
    assert run.read()["status"] == "failed"
    assert message in run.read()["reason"]
