"""A training run of seconds: 15 steps an epoch, made-up text, two thin layers. For tests only."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from pe.recipes.recipe import Recipe
from pe.runs import Run

WORDS = "the cat sat on a mat and one dog ran to her old red house by night".split()


def text(characters: int, seed: int) -> str:
    """Return words in a random order."""
    draw = random.Random(seed)
    found = ""
    while len(found) < characters:
        found += draw.choice(WORDS) + " "
    return found[:characters]


def write_corpus(directory: Path, train: int = 1210, held_out: int = 400) -> Path:
    """Write a folder of three .txt files, one per split. A byte is about one token."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.txt").write_text(text(train, 1))
    (directory / "validation.txt").write_text(text(held_out, 2))
    (directory / "test.txt").write_text(text(held_out, 3))
    return directory


def tiny(corpus: Path, **changes: Any) -> Recipe:
    """Return a recipe of 24 steps of 4 x 16 tokens, with the end of an epoch inside step 15."""
    values: dict[str, Any] = {
        "name": "test", "pe": "rope", "corpus": str(corpus), "vocab_size": 264, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "intermediate_size": 48, "context_length": 16, "steps": 24, "batch_size": 4,
        "learning_rate": 1e-2, "min_learning_rate": 1e-3, "warmup_steps": 4,
        "checkpoint_every": 5, "log_every": 1, "validate_every": 8,
        "evaluation_lengths": [16, 32, 64], "target_tokens": 8, "evaluation_windows": 6,
    }  # fmt: skip
    return Recipe.from_dict(values | changes)


def train_tiny(folder: Path, shared: Path, trainer: Any = None, **changes: Any) -> Run:
    """Train the tiny recipe on the corpus of `shared`; returns the finished run."""
    from pe.training.train import train

    chosen = tiny(shared / "corpus", **changes)
    return train(Run(folder / chosen.run_name(), chosen), quiet=True, trainer=trainer)


class Crash(RuntimeError):
    """Stands for whatever ends a process."""


def with_step(step: Callable[[Any, Any, Callable[[Any], Any]], Any]) -> Any:
    """Return a trainer whose steps are ``step(trainer, batch, usual_step)``."""
    from pe.training.loop import Trainer

    class Changed(Trainer):
        def step(self, batch: Any) -> Any:
            return step(self, batch, super().step)

    return Changed


def dying_after(steps: int) -> Any:
    """Return a trainer that crashes after this number of steps."""
    done = 0

    def step(trainer: Any, batch: Any, usual: Callable[[Any], Any]) -> Any:
        nonlocal done
        if done == steps:
            raise Crash
        done += 1
        return usual(batch)

    return with_step(step)


def killed_after(run: Run, steps: int) -> None:
    """Train for this number of steps and crash."""
    from pe.training.train import train

    with contextlib.suppress(Crash):
        train(run, quiet=True, trainer=dying_after(steps))
        raise AssertionError("it should have crashed")


def spoiled(at: int, value: float) -> Any:
    """Return a trainer that multiplies the loss of step number ``at`` by ``value``."""
    calls = 0

    def step(trainer: Any, batch: Any, usual: Callable[[Any], Any]) -> Any:
        nonlocal calls
        calls += 1
        loss, norm = usual(batch)
        return (loss * value, norm) if calls == at else (loss, norm)

    return with_step(step)


def weights(run: Run) -> dict[str, torch.Tensor]:
    """Return every tensor of the trained model by name."""
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = load_file(run.checkpoint / "model.safetensors")
    return found


def assert_same_weights(a: Run, b: Run) -> None:
    """Compare all weights of two runs bit by bit."""
    first, second = weights(a), weights(b)
    assert first.keys() == second.keys()
    for name in first:
        assert torch.equal(first[name], second[name]), name


def lines(run: Run) -> list[tuple[int, str, float]]:
    """Return (step, kind of loss, loss) of every line of metrics.jsonl, in order."""
    found = []
    for line in run.metric_lines():
        key = "loss" if "loss" in line else "validation_loss"
        found.append((line["step"], key, line[key]))
    return found


# A process that trains: started by a server that has the imports done, so that it costs a second.


def server() -> Any:
    """Return the context of multiprocessing whose processes are forked from that server."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tiny_training", "pe.training.loop", "pe.runs.provenance", "psutil",
         "transformers.models.auto.tokenization_auto"]
    )  # fmt: skip
    return context


def _child(
    folder: str, recipe: dict[str, Any], environment: dict[str, str], hook: Any, log: str
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    from pe.training.train import train

    trainer = None if hook is None else hook()
    train(Run(folder, Recipe.from_dict(recipe)), trainer=trainer)


def wait_for_signal_at(last: int) -> Any:
    """Return a trainer with steps of 30 ms, which waits for a signal soon after step ``last``."""

    def slowly(trainer: Any, batch: Any, usual: Callable[[Any], Any]) -> Any:
        time.sleep(0.03 if trainer.state.step < last + 3 else 20.0)
        return usual(batch)

    return with_step(slowly)


class TrainingProcess:
    """Training in another process, as a user's command would do it."""

    def __init__(
        self,
        run: Run,
        cache: Path,
        hook: Callable[[], Any] | None = None,
        rank: dict[str, str] | None = None,
    ) -> None:
        context = server()
        environment = {"PE_CACHE": str(cache)} | (rank or {})
        log = f"{run.name}-{environment.get('RANK', 0)}.log"
        self.run, self.log = run, run.directory.parent / log
        run.directory.mkdir(parents=True, exist_ok=True)
        self.process = context.Process(
            target=_child,
            args=(str(run.directory), run.recipe.to_dict(), environment, hook, str(self.log)),
        )
        self.process.start()

    def signal_at(self, step: int, number: signal.Signals) -> None:
        """Send a signal as soon as the metrics show ``step``."""
        path, end = self.run.directory / "metrics.jsonl", time.monotonic() + 120
        while self.process.is_alive() and time.monotonic() < end:
            rows = path.read_text().splitlines() if path.exists() else []
            if rows and rows[-1].endswith("}") and json.loads(rows[-1])["step"] >= step:
                time.sleep(random.random() * 0.05)  # anywhere in a step, not only at its end
                assert self.process.pid is not None
                os.kill(self.process.pid, number)
                return
            time.sleep(0.002)
        raise AssertionError(f"step {step} never came:\n{self.output()}")

    def end(self) -> int:
        """Wait for the end and return the exit code, negative for a signal."""
        self.process.join(120)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"hangs:\n{self.output()}")
        return self.process.exitcode

    def output(self) -> str:
        """Return what the process wrote to standard output and error."""
        return self.log.read_text() if self.log.exists() else ""


def _process_of_a_run(
    task: dict[str, Any], environment: dict[str, str], reports: Any, log: str, hook: Any
) -> None:
    os.setsid()
    os.dup2(reports.fileno(), 1)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.environ.update(environment)
    torch.set_num_threads(1)
    hook()
    from pe.training.worker import main

    main(task | {"parent": os.getppid()})  # the server is the parent here


class ProcessOfARun:
    """What `pe.training.processes` starts, without imports: has what it uses of a Popen."""

    def __init__(
        self, task: dict[str, Any], environment: dict[str, str], log: Path, hook: Any
    ) -> None:
        context = server()
        read, write = context.Pipe(duplex=False)
        environment = {"PE_CACHE": os.environ["PE_CACHE"], **environment}
        self.rank = int(environment["RANK"])
        self.process = context.Process(
            target=_process_of_a_run, args=(task, environment, write, str(log), hook)
        )
        self.process.start()
        write.close()
        self.stdout = os.fdopen(os.dup(read.fileno()))
        read.close()
        self.pid = self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, as of a Popen; None while it runs."""
        return self.process.exitcode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return self.process.exitcode

    def wait(self) -> None:
        """Wait until it has ended."""
        self.process.join()

    def send_signal(self, number: int) -> None:
        """Send a signal to this process."""
        os.kill(self.pid or 0, number)

    def kill(self) -> None:
        """Kill this process."""
        self.process.kill()


def _run_of_a_study(task: str, environment: dict[str, str], log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.clear()
    os.environ.update(environment)
    torch.set_num_threads(1)
    from pe.study import worker as program

    program.main(json.loads(task))


def _worker_of_a_study(scheduler_file: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    from distributed.cli.dask_worker import main

    from pe.study import worker as program

    def run(command: list[str], *, stdout: Any, env: dict[str, str], **_: Any) -> SimpleNamespace:
        process = multiprocessing.get_context("fork").Process(  # it watches this parent
            target=_run_of_a_study, args=(command[-1], env, stdout.name)
        )
        process.start()
        process.join()
        return SimpleNamespace(returncode=process.exitcode)

    program.subprocess = SimpleNamespace(run=run, DEVNULL=None)  # type: ignore[assignment]
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    main(["--nthreads", "1", "--no-nanny", "--no-dashboard", "--memory-limit", "0",
          "--scheduler-file", scheduler_file], standalone_mode=False)  # fmt: skip


def start_worker_of_a_study(scheduler_file: str) -> Any:
    """Start a Dask worker that comes from the server, and whose runs are forked from it."""
    arguments = scheduler_file, dict(os.environ)  # the server may have that of another test
    process = server().Process(target=_worker_of_a_study, args=arguments)
    process.start()
    return process
