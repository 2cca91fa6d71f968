"""Carry out a list of trials of one model. Each does what one execution of pretrained.ipynb does.

    python -m pe.pretrained.study smollm2 --dry-run       the papermill commands
    python -m pe.pretrained.study smollm2                 on all GPUs, or on the CPU
    python -m pe.pretrained.study smollm2 --until 1400    begin nothing that ends later
    python -m pe.pretrained.study smollm2 --steps 1530    so many in every training

Each trial writes its record when it ends, and trials that have a record are left out. So the same
command continues where it was stopped. A trial that trains has a GPU to itself; others share one.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError, validate_call

from pe._errors import explain, unknown
from pe._files import read_yaml, shipped
from pe.pretrained.configure import pretrained_run
from pe.pretrained.record import PretrainedRun
from pe.recipes.command import notebook_command

POLL_SECONDS = 0.3


class Trial(BaseModel):
    """One line of the list: parameters of pretrained.ipynb, and whether it trains."""

    model_config = ConfigDict(extra="allow", frozen=True)

    pe: str
    trained: bool = False


class PretrainedStudy(BaseModel):
    """A file of studies/pretrained/."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    title: str
    study: str
    model: str
    """Path of the model. The option ``--model`` of the command line replaces it."""
    parameters: dict[str, Any]
    """Parameters that all trials have."""
    training: dict[str, Any]
    """Further parameters of the trials that train."""
    steps: Annotated[list[int], Field(min_length=1)]
    """Numbers of steps to choose from; the largest that ends in time is taken."""
    runs: list[Trial]
    """The trials, the most useful first."""

    def arguments(self, trial: Trial, steps: int) -> dict[str, Any]:
        """Arguments of `pe.pretrained.configure.pretrained_run`, without the model."""
        own = trial.model_dump(exclude={"trained"})
        training = self.training | {"steps": steps} if trial.trained else {}
        return self.parameters | training | own | {"study": self.study}


def load_study(name: str, mini: bool = False) -> PretrainedStudy:
    """The study of ``studies/pretrained/<name>.yaml``, or of a path.

    Raises:
        ValueError: there is no such file, or it is not a study.
    """
    folder = shipped("studies") / "pretrained"
    path = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if not path.is_file():
        raise unknown("study", name, sorted(p.stem for p in folder.glob("*.yaml")))
    content = read_yaml(path)
    small = content.pop("mini", {})
    try:
        return PretrainedStudy(**(content | small if mini else content))
    except ValidationError as error:
        problems = explain(error, "field", PretrainedStudy.model_fields)
        raise ValueError(f"{path}: {problems[0]}") from None


def configured(study: PretrainedStudy, trial: Trial, model: str, steps: int) -> PretrainedRun:
    """The folder and the settings of a trial.

    Raises:
        ValueError: an unknown parameter, or a value that a parameter cannot have.
    """
    arguments = study.arguments(trial, steps)
    try:
        run: PretrainedRun = validate_call(pretrained_run)(model=model, **arguments)
    except ValidationError as error:
        problems = explain(error, "parameter", signature(pretrained_run).parameters)
        raise ValueError(f"{trial.pe}: {problems[0]}") from None
    return run


class Pace:
    """How long trials take.

    Args:
        step_seconds: duration of an optimizer step; 0: not known yet, so any number of steps fits.
    """

    def __init__(self, step_seconds: float = 0.0) -> None:
        self.step_seconds, self.rest = step_seconds, 0.0

    def expected(self, trial: Trial, steps: int) -> float:
        """Seconds that a trial will take, as far as is known."""
        return self.rest + (steps * self.step_seconds if trial.trained else 0.0)

    def learn(self, trial: Trial, record: dict[str, Any], seconds: float) -> None:
        """Take note that a trial took so many seconds."""
        speed = record.get("training_speed")
        inside = speed["seconds"] if speed else 0.0
        self.rest = max(self.rest, seconds - inside)
        if speed and speed["tokens_per_second"]:
            s = record["settings"]
            pace = s["batch_size"] * s["context_length"] / speed["tokens_per_second"]
            self.step_seconds = max(self.step_seconds, pace)


def steps_in_time(
    study: PretrainedStudy, pace: Pace, left: float, cards: int, together: int = 2
) -> int:
    """The most steps with which the first ``together`` trainings end in ``left`` seconds."""
    training = [trial for trial in study.runs if trial.trained][:together]
    rounds = math.ceil(len(training) / cards)
    fitting = [n for n in study.steps if rounds * (n * pace.step_seconds + pace.rest) <= left]
    return max(fitting, default=min(study.steps))


class Cards:
    """The processes on each GPU. Without GPUs, the CPU counts as one card."""

    def __init__(self, number: int, places: int) -> None:
        self.running: list[list[bool]] = [[] for _ in range(number)]
        """For each process on a card, whether it trains."""
        self.places = places

    def free(self, trained: bool) -> int | None:
        """A card for a trial: an empty one to train on, or else one with a place."""
        for card, running in enumerate(self.running):
            if not running or not (trained or any(running) or len(running) >= self.places):
                return card
        return None


def carry_out(
    study: PretrainedStudy,
    model: str,
    start: Callable[[int, int, int | None], subprocess.Popen[bytes]],
    *,
    gpus: Sequence[int] = (),
    places: int = 2,
    until: float = math.inf,
    pace: Pace,
    steps: int = 0,
    log: Callable[[str], None] = print,
) -> int:
    """Carry out all trials that end in time, several of them at once.

    Args:
        start: called with the number of a trial, its steps and a GPU (None: the CPU); begins it.
        places: trials that share a GPU.
        until: seconds from now by which trials have to end.
        steps: of every training. 0: as many as a training on record has, so that the two can be
            compared; without such a record, the most with which the first two end in time.

    Returns:
        The number of trials that failed.
    """
    begun = time.monotonic()

    def now() -> float:
        return time.monotonic() - begun

    cards = Cards(max(1, len(gpus)), places)
    done = {number: _complete(study, trial, model) for number, trial in enumerate(study.runs)}
    trained = [n for number in done for n in done[number] if study.runs[number].trained]
    steps = steps or max(trained, default=0)
    steps = steps or steps_in_time(study, pace, until, len(cards.running))
    log(f"{now():6.0f} s  trainings take {steps:,} steps")
    left = [number for number, budgets in done.items() if not budgets]
    running: dict[int, tuple[subprocess.Popen[bytes], int, float]] = {}
    failed = 0
    while left or running:
        for number, (process, card, since) in list(running.items()):
            if process.poll() is None:
                continue
            trial, seconds = study.runs[number], now() - since
            del running[number]
            cards.running[card].remove(trial.trained)
            record = configured(study, trial, model, steps if trial.trained else 0).read()
            whole = record is not None and record["status"] == "complete"
            if whole and record is not None:
                pace.learn(trial, record, seconds)
            failed += not whole
            end = "done  " if whole else f"FAILED ({process.returncode})"
            log(f"{now():6.0f} s  {end} {_label(trial)} in {seconds:.0f} s")
        for number in list(left):
            trial = study.runs[number]
            if now() + pace.expected(trial, steps) > until:
                log(f"{now():6.0f} s  no time for {_label(trial)}")
                left.remove(number)
                continue
            free = cards.free(trial.trained)
            if free is not None:
                left.remove(number)
                process = start(number, steps, gpus[free] if gpus else None)
                running[number] = process, free, now()
                cards.running[free].append(trial.trained)
                log(f"{now():6.0f} s  begin  {_label(trial)} on {free}")
        time.sleep(POLL_SECONDS)
    log(f"{now():6.0f} s  the end")
    return failed


def _complete(study: PretrainedStudy, trial: Trial, model: str) -> list[int]:
    """The numbers of steps with which a trial has a complete record; [0] without training."""
    records = {
        n: configured(study, trial, model, n).read()
        for n in (study.steps if trial.trained else [0])
    }
    return [n for n, record in records.items() if record and record["status"] == "complete"]


def _label(trial: Trial) -> str:
    options = trial.model_dump(exclude={"pe", "trained"})
    words = [trial.pe, *(f"{key} {value}" for key, value in options.items())]
    return ", ".join(words) + (", trained" if trial.trained else "")


def papermill(study: PretrainedStudy, trial: Trial, steps: int) -> str:
    """The command that carries out one trial alone."""
    return notebook_command({"model": study.model} | study.arguments(trial, steps), "pretrained")


def main(
    name: Annotated[str, typer.Argument(help="a file of studies/pretrained/, or a path")],
    model: Annotated[str, typer.Option(help="where the model is, if elsewhere")] = "",
    mini: Annotated[bool, typer.Option(help="in miniature, for a CPU")] = False,
    dry_run: Annotated[bool, typer.Option(help="only show the commands")] = False,
    places: Annotated[int, typer.Option(min=1, help="trials that share a GPU")] = 2,
    until: Annotated[float, typer.Option(help="seconds; begin nothing that ends later")] = math.inf,
    step_seconds: Annotated[float, typer.Option(help="of a training step, measured before")] = 0.0,
    compile: Annotated[str, typer.Option(help="auto, on, off")] = "auto",
    only: Annotated[int, typer.Option(help="one trial, by its number from 0 on")] = -1,
    steps: Annotated[int, typer.Option(help="of a training; 0: as many as end in time")] = 0,
) -> None:
    """Carry out the trials of a study."""
    try:
        study = load_study(name, mini)
        model = model or study.model
        if only >= 0:
            _one(study, study.runs[only], model, steps, compile)
            return
        if dry_run:
            for trial in study.runs:
                print(papermill(study, trial, study.steps[0]))
            return
        import torch

        cards = range(torch.cuda.device_count())
    except ValueError as error:
        print(f"pe.pretrained.study: {error}", file=sys.stderr)
        raise typer.Exit(2) from error

    def start(number: int, steps: int, gpu: int | None) -> subprocess.Popen[bytes]:
        words = [
            sys.executable, "-m", "pe.pretrained.study", name, "--model", model, "--only",
            str(number), "--steps", str(steps), "--compile", compile, *(["--mini"] if mini else []),
        ]  # fmt: skip
        where = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": str(gpu)}
        return subprocess.Popen(words, env=os.environ | where)

    failed = carry_out(
        study, model, start, gpus=cards, places=places, until=until, pace=Pace(step_seconds),
        steps=steps, log=lambda text: print(text, flush=True),
    )  # fmt: skip
    raise typer.Exit(1 if failed else 0)


def _one(study: PretrainedStudy, trial: Trial, model: str, steps: int, compile: str) -> None:
    from pe.pretrained.trial import try_out

    run = configured(study, trial, model, steps)
    run.compile = compile  # type: ignore[assignment]
    run.command = papermill(study, trial, steps)
    try_out(run)


if __name__ == "__main__":
    typer.run(main)
