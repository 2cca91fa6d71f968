"""Carry out a list of trials of one model. Each does what one execution of pretrained.ipynb does.

    python -m pe.pretrained.study smollm2 --dry-run       the papermill commands
    python -m pe.pretrained.study smollm2                 on all GPUs, or on the CPU
    python -m pe.pretrained.study smollm2 --until 1400    begin nothing that ends later
    python -m pe.pretrained.study smollm2 --steps 1530    so many in every training

Each trial writes its record when it ends, and trials that have a record are left out. So the same
command continues where it was stopped. A trial that trains has a GPU to itself; others share one.
After Ctrl-C no other trial begins.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import groupby, repeat
from typing import Annotated, Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pe._errors import explain
from pe._files import read_study, shipped
from pe.pretrained.record import PretrainedRun, configure_pretrained
from pe.recipes.command import notebook_command
from pe.study.devices import visible_gpus


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
        """Return arguments of `pe.pretrained.record.configure_pretrained`, without the model."""
        own = trial.model_dump(exclude={"trained"})
        training = self.training | {"steps": steps} if trial.trained else {}
        return self.parameters | training | own | {"study": self.study}


def load_study(name: str, mini: bool = False) -> PretrainedStudy:
    """Return the study of ``studies/pretrained/<name>.yaml``, or of a path.

    Raises:
        ValueError: there is no such study, it has no miniature, or the file is not a study.
    """
    path, content = read_study(name, shipped("studies") / "pretrained", mini=mini)
    try:
        return PretrainedStudy.model_validate(content)
    except ValidationError as error:
        problems = explain(error, "field", PretrainedStudy.model_fields)
        raise ValueError(f"{path}: {'; '.join(problems)}") from None


def configured(study: PretrainedStudy, trial: Trial, model: str, steps: int) -> PretrainedRun:
    """Return the folder and the settings of a trial.

    Raises:
        ValueError: an unknown parameter, or a value that a parameter cannot have.
    """
    try:
        return configure_pretrained(model=model, **study.arguments(trial, steps))
    except ValueError as error:
        raise ValueError(f"{trial.pe}: {error}") from None


def steps_in_time(study: PretrainedStudy, step_seconds: float, left: float, cards: int) -> int:
    """Return the most steps with which the first two trainings end in ``left`` seconds.

    Args:
        step_seconds: duration of an optimizer step; 0: not known, so any number of steps fits.
    """
    training = [trial for trial in study.runs if trial.trained][:2]
    rounds = math.ceil(len(training) / cards)
    fitting = [n for n in study.steps if rounds * n * step_seconds <= left]
    return max(fitting, default=min(study.steps))


def carry_out(
    study: PretrainedStudy,
    model: str,
    start: Callable[[int, int, str | None], subprocess.Popen[bytes]],
    *,
    gpus: Sequence[str] = (),
    places: int = 2,
    until: float = math.inf,
    step_seconds: float = 0.0,
    steps: int = 0,
    log: Callable[[str], None] = print,
) -> int:
    """Carry out the trials that end in time, in their order and several at once.

    A GPU has one trial that trains, or several that do not. Of neighbours in the list that all
    train, or all do not, each GPU takes the next one when it has a place.

    Args:
        start: called with the number of a trial, its steps and a GPU (None: the CPU); begins it.
        places: trials that share a GPU.
        until: seconds from now by which trials have to end. A trial is expected to take as long as
            the slowest so far.
        step_seconds: duration of an optimizer step; 0: not known yet.
        steps: of every training. 0: as many as a training on record has, so that the two can be
            compared; without such a record, the most with which the first two end in time.

    Returns:
        The number of trials that failed.
    """
    begun = time.monotonic()
    cards: list[str | None] = [*gpus] or [None]
    steps = steps or _steps_on_record(study, model)
    steps = steps or steps_in_time(study, step_seconds, until, len(cards))
    slowest = {False: 0.0, True: steps * step_seconds}

    def is_complete(trial: Trial) -> bool:
        return configured(study, trial, model, steps if trial.trained else 0).complete

    def tell(text: str) -> None:
        log(f"{time.monotonic() - begun:6.0f} s  {text}")

    def fails(number: int, card: str | None) -> bool:
        trial, since = study.runs[number], time.monotonic()
        if since - begun + slowest[trial.trained] > until:
            tell(f"no time for {_label(trial)}")
            return False
        tell(f"begin  {_label(trial)} on {card}")
        code = start(number, steps, card).wait()
        seconds = time.monotonic() - since
        whole = is_complete(trial)
        if whole:
            slowest[trial.trained] = max(slowest[trial.trained], seconds)
        tell(f"{'done  ' if whole else f'FAILED ({code})'} {_label(trial)} in {seconds:.0f} s")
        return not whole

    missing = [n for n, trial in enumerate(study.runs) if not is_complete(trial)]
    groups = [
        (trained, deque(numbers))
        for trained, numbers in groupby(missing, lambda n: study.runs[n].trained)
    ]

    def in_a_place(left: deque[int], card: str | None) -> int:
        """Carry out what is left, one by one; returns how many failed."""
        failed = 0
        with _nothing_more(groups):
            while (number := _first(left)) is not None:
                failed += fails(number, card)
        return failed

    def on_card(card: str | None) -> int:
        failed = 0
        for trained, left in groups:
            count = 1 if trained else places
            with ThreadPoolExecutor(count) as pool:
                failed += sum(pool.map(in_a_place, repeat(left, count), repeat(card)))
        return failed

    tell(f"trainings take {steps:,} steps")
    with ThreadPoolExecutor(len(cards)) as pool, _nothing_more(groups):
        failed = sum(pool.map(on_card, cards))
    tell("the end")
    return failed


def _first(left: deque[int]) -> int | None:
    """Take the first; None if another thread took the last."""
    try:
        return left.popleft()
    except IndexError:
        return None


@contextmanager
def _nothing_more(groups: Sequence[tuple[bool, deque[int]]]) -> Iterator[None]:
    """Let no other trial begin after an exception or Ctrl-C; those that run are waited for."""
    try:
        yield
    except BaseException:
        for _, left in groups:
            left.clear()
        raise


def _steps_on_record(study: PretrainedStudy, model: str) -> int:
    """Return the most steps that a complete training has; 0 without one."""
    trained = [trial for trial in study.runs if trial.trained]
    return max(
        (
            n
            for trial in trained
            for n in study.steps
            if configured(study, trial, model, n).complete
        ),
        default=0,
    )


def _label(trial: Trial) -> str:
    options = trial.model_dump(exclude={"pe", "trained"})
    words = [trial.pe, *(f"{key} {value}" for key, value in options.items())]
    return ", ".join(words) + (", trained" if trial.trained else "")


def papermill(study: PretrainedStudy, trial: Trial, steps: int) -> str:
    """Return the command that carries out one trial alone."""
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
    only: Annotated[
        int | None, typer.Option(min=0, help="one trial, by its number from 0 on")
    ] = None,
    steps: Annotated[int, typer.Option(min=0, help="of a training; 0: as many as end in time")] = 0,
) -> None:
    """Carry out the trials of a study."""

    def start(number: int, steps: int, gpu: str | None) -> subprocess.Popen[bytes]:
        words = [
            sys.executable, "-m", "pe.pretrained.study", name, "--model", study.model, "--only",
            str(number), "--steps", str(steps), "--compile", compile, *(["--mini"] if mini else []),
        ]  # fmt: skip
        where = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return subprocess.Popen(words, env=os.environ | where)

    try:
        study = load_study(name, mini)
        if model:
            study = study.model_copy(update={"model": model})
        if only is not None:
            if only >= len(study.runs):
                raise ValueError(f"--only: expected 0 to {len(study.runs) - 1}, got {only}")
            _one(study, study.runs[only], study.model, steps, compile)
            return
        if dry_run:
            for trial in study.runs:
                print(papermill(study, trial, steps or study.steps[0]))
            return
        failed = carry_out(
            study, study.model, start, gpus=visible_gpus(), places=places, until=until,
            step_seconds=step_seconds, steps=steps, log=lambda text: print(text, flush=True),
        )  # fmt: skip
    except ValueError as error:
        print(f"pe.pretrained.study: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    raise typer.Exit(1 if failed else 0)


def _one(study: PretrainedStudy, trial: Trial, model: str, steps: int, compile: str) -> None:
    from pe.pretrained.trial import try_out

    run = configured(study, trial, model, steps)
    run.compile = compile  # type: ignore[assignment]
    run.command = papermill(study, trial, steps)
    try_out(run)


if __name__ == "__main__":
    typer.run(main)
