"""Two processes train as one does.

They talk through gloo, and are started with the variables that torchrun sets, or by PE_PROCESSES
(`pe.training.processes`), whose processes come from the server of `tiny_training` here, which has
torch imported.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_training import (
    ProcessOfARun,
    TrainingProcess,
    killed_after,
    lines,
    tiny,
    weights,
    with_step,
)

from pe.data import Batches
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.study.devices import visible_gpus
from pe.training import checkpoint, processes
from pe.training.processes import Interrupted
from pe.training.progress import Progress
from pe.training.train import train


def uneven(signal_at: int = 0) -> Any:
    """A trainer; sequences have very different numbers of targets: a mean of means would be wrong.

    With ``signal_at`` the second process, and only that one, is told to stop at this step.
    """
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


@pytest.fixture
def two(shared: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, ProcessOfARun]:
    """PE_PROCESSES=2, on text as `uneven` makes it; the processes that were started, by rank."""
    monkeypatch.setenv("PE_CACHE", str(shared / "cache"))
    monkeypatch.setenv(processes.PROCESSES, "2")
    monkeypatch.setattr(processes, "GRACE_SECONDS", 5.0)
    monkeypatch.setattr(Batches, "at", Batches.at)  # put back at the end
    uneven()
    started: dict[int, ProcessOfARun] = {}

    def start(task: Any, environment: Any, log: Path) -> ProcessOfARun:
        process = ProcessOfARun(task, environment, log, uneven)
        started[process.rank] = process
        return process

    monkeypatch.setattr(processes, "_start_process", start)
    return started


def test_a_process_that_is_killed_ends_all_and_other_numbers_of_processes_go_on(
    shared: Path, two: dict[int, ProcessOfARun], monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    chosen = recipe(shared, micro_batch_size=1)
    run, one = (Run(shared / name / chosen.run_name(), chosen) for name in ("many", "alone"))

    def kill_the_second(process: ProcessOfARun) -> int | None:
        if process.rank and [line["step"] for line in run.metric_lines(drop_torn_end=True)][6:]:
            process.kill()
        return process.process.exitcode

    with monkeypatch.context() as patch:
        patch.setattr(ProcessOfARun, "poll", kill_the_second)
        with pytest.raises(
            processes.ProcessDied, match="process 1 of 2 was killed by SIGKILL"
        ) as e:
            train(run, quiet=True)
    assert not any(process.process.is_alive() for process in two.values())
    assert run.record.status == "failed"
    assert run.record.reason == f"ProcessDied: {e.value}"
    assert run.record.hardware.devices is not None
    assert [name[:4] for name in run.record.hardware.devices] == ["cpu ", "cpu "]

    with monkeypatch.context() as patch:  # on one
        patch.delenv(processes.PROCESSES)
        killed_after(run, 6)
        train(one, quiet=True)
    assert [s.step for s in run.record.sessions] == [0, 5]

    (run.directory / "process-3.log").write_text("of a session with four processes")
    divided = Run(run.directory, recipe(shared, micro_batch_size=1, fsdp=True,
                                        activation_checkpointing=True))  # fmt: skip
    assert divided.name == run.name, "how memory is saved does not change what a run is"
    train(divided)
    assert "step 18/18" in capsys.readouterr().err, "the progress of process 0 is shown here"
    record = run.record
    assert (record.status, [s.step for s in record.sessions]) == ("complete", [0, 5, 10])
    assert record.command.startswith("PE_PROCESSES=2 ")
    assert not list(run.directory.glob("*.log"))
    assert [x for *_, x in lines(run)] == pytest.approx([x for *_, x in lines(one)], abs=2e-5)
    for (name, a), b in zip(weights(run).items(), weights(one).values(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=5e-5), name
    # What two processes wrote of a divided model, any number can read.
    last, same = (checkpoint.checkpoints(r.directory / "checkpoints")[-1] for r in (run, one))
    ours, theirs = (torch.load(path / checkpoint.OPTIMIZER) for path in (last, same))
    assert ours["param_groups"] == theirs["param_groups"]
    for index, state in theirs["state"].items():
        for name, value in state.items():
            assert torch.allclose(ours["state"][index][name], value, rtol=1e-2, atol=1e-5)


def test_an_error_in_one_process_is_raised_where_they_were_started(
    shared: Path, two: dict[int, ProcessOfARun]
) -> None:
    chosen = recipe(shared, batch_size=3)
    run = Run(shared / "refused" / chosen.run_name(), chosen)
    with pytest.raises(ValueError, match="batch_size 3 does not divide among 2 processes"):
        train(run, quiet=True)
    assert run.record.status == "failed"
    assert "Traceback" in run.traceback.read_text()


def test_the_last_line_of_progress_is_shown_also_if_it_arrives_after_the_end(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow() -> Iterator[str]:
        yield '["step 1/2", false]\n'
        time.sleep(0.05)
        yield '["step 2/2", true]\n'

    ended = SimpleNamespace(poll=lambda: 0, stdout=slow())
    monkeypatch.setattr(processes, "_start_process", lambda *arguments: ended)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.001)
    group = processes._Group(Run(shared / "study" / "slow", recipe(shared)), 1, shared)
    group.start()
    shown: list[str] = []
    assert group.wait(Progress(True, 0.0, lambda text, last: shown.append(text))) is None
    assert shown == ["step 1/2", "step 2/2"]


def test_a_signal_stops_all_processes_at_the_same_step(
    shared: Path, two: dict[int, ProcessOfARun], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(shared / "stopped" / "run", recipe(shared))
    sent = []

    def poll(process: ProcessOfARun) -> int | None:
        if not sent and run.metric_lines(drop_torn_end=True):
            sent.append(process)
            os.kill(os.getpid(), signal.SIGTERM)
        return process.process.exitcode

    monkeypatch.setattr(ProcessOfARun, "poll", poll)
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 18") as stopped:
        train(run, quiet=True)
    assert stopped.value.signal == run.record.signal == "SIGTERM"
    assert run.record.status == "interrupted"


@pytest.mark.parametrize(
    ("text", "message"),
    [("two", "expected a whole number from 1 on, got 'two'"), ("0", "got '0'")],
)
def test_a_number_of_processes_that_is_none_is_refused(
    text: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.PROCESSES, text)
    with pytest.raises(ValueError, match=f"PE_PROCESSES: .*{message}"):
        processes.wanted()


def test_more_processes_than_gpus_are_refused_and_torchrun_comes_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pe.devices.choose", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,8")
    monkeypatch.setenv(processes.PROCESSES, "3")
    with pytest.raises(ValueError, match="asks for 3 processes, and this machine has 2 GPUs"):
        processes.wanted()
    monkeypatch.setenv(processes.PROCESSES, "2")
    assert visible_gpus() == ["4,5", "6,7"], "a run of a study takes two together"
    monkeypatch.setenv("RANK", "0")
    assert processes.wanted() == 1


def test_fsdp_has_no_effect_in_one_process_and_says_so(shared: Path, alone: None) -> None:
    run = Run(shared / "undivided" / "run", recipe(shared, fsdp=True))
    with pytest.raises(ValueError, match="fsdp: spreads a model over processes, and there is one"):
        train(run, quiet=True)


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
