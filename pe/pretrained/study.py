"""Carry out a list of trials of one model. Each does what one execution of pretrained.ipynb does.

    python -m pe.pretrained.study smollm2 --dry-run       what is done, and the papermill commands
    python -m pe.pretrained.study smollm2                 on all GPUs, or on the CPU
    python -m pe.pretrained.study smollm2 --until 1400    begin nothing that would end later
    python -m pe.pretrained.study smollm2 --steps 1530    so many in every training

Each trial writes its record when it ends, and trials that have a record are left out. So the same
command continues where it was stopped. A trial that trains has a GPU to itself; others share one.
After Ctrl-C no other trial begins.
"""

from __future__ import annotations

import inspect
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat
from typing import Annotated, Any, ClassVar

import typer
from pydantic import AfterValidator, ConfigDict, Field

from pe._command import DryRun, Mini, Until, checked
from pe._errors import StudyFailed, unknown
from pe.pretrained.record import PretrainedRun, configure_pretrained
from pe.recipes.command import notebook_command
from pe.recipes.recipe import Count
from pe.runs import RunBusy
from pe.study.devices import visible_gpus
from pe.study.pace import Deadline, Slowest
from pe.study.reading import AnyStudy, Distinct, FolderName, Mistakes, YamlPart, read_study
from pe.training.processes import stop_with_parent

PARAMETERS = [
    name
    for name in inspect.signature(configure_pretrained).parameters
    if name not in ("model", "pe", "study", "steps", "compiled")
]
"""Those of pretrained.ipynb that a file may give; it says the others once for all trials."""


def _known_parameters(values: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in values:
        if name not in PARAMETERS:
            raise unknown("parameter", name, PARAMETERS)
    return values


Parameters = Annotated[dict[str, Any], AfterValidator(_known_parameters)]


class Trial(YamlPart):
    """One line of the list: parameters of pretrained.ipynb, and whether it trains."""

    model_config = ConfigDict(extra="allow")
    more_keys: ClassVar[Sequence[str]] = PARAMETERS

    pe: str
    trained: bool = False


class PretrainedStudy(AnyStudy):
    """A file of studies/pretrained/."""

    below: ClassVar[str] = "pretrained"
    study: FolderName
    model: str
    """Path of the model. The option ``--model`` of the command line replaces it."""
    parameters: Parameters = {}
    """Parameters that all trials have."""
    training: Parameters = {}
    """Further parameters of the trials that train."""
    steps: Annotated[list[Count], Field(min_length=1), Distinct]
    """Numbers of steps to choose from; the largest that ends in time is taken."""
    runs: Annotated[list[Trial], Field(min_length=1)]
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
    return read_study(PretrainedStudy, name, mini=mini)[1]


def configured(study: PretrainedStudy, trial: Trial, model: str, steps: int) -> PretrainedRun:
    """Return the folder and the settings of a trial.

    Raises:
        ValueError: a value that a parameter cannot have, or a model that cannot be explained.
    """
    return configure_pretrained(model=model, **study.arguments(trial, steps))


def planned(study: PretrainedStudy, model: str, steps: int) -> list[PretrainedRun]:
    """Return the folder and the settings of every trial.

    Args:
        steps: of the trials that train.

    Raises:
        ValueError: as `configured`, or two trials are the same; one line per mistake.
    """
    runs: list[PretrainedRun] = []
    mistakes = Mistakes()
    for number, trial in enumerate(study.runs):
        with mistakes.at(f"runs[{number}], {trial.pe}"):
            run = configured(study, trial, model, steps if trial.trained else 0)
            if run.directory in (other.directory for other in runs):
                raise ValueError("an earlier run has the same settings")
            runs.append(run)
    mistakes.refuse()
    return runs


def steps_of_trainings(
    study: PretrainedStudy, model: str, step_seconds: float, until: float, cards: int
) -> int:
    """Return as many steps as a training on record has, so that the two can be compared.

    Without such a record it is the most with which the first two end in time.
    """
    trained = [trial for trial in study.runs if trial.trained]
    recorded = [
        n for trial in trained for n in study.steps if configured(study, trial, model, n).complete
    ]
    return max(recorded, default=0) or steps_in_time(study, step_seconds, until, cards)


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
        steps: of every training. 0: what `steps_of_trainings` says.

    Returns:
        The number of trials that failed.

    Raises:
        ValueError: as `planned`; nothing has begun.
    """
    deadline = Deadline(until)
    cards: list[str | None] = [*gpus] or [None]
    steps = steps or steps_of_trainings(study, model, step_seconds, until, len(cards))
    runs = planned(study, model, steps)
    slowest = Slowest()
    slowest.learn(steps * step_seconds, True)

    def tell(text: str) -> None:
        log(f"{deadline.passed():6.0f} s  {text}")

    def fails(number: int, card: str | None) -> bool:
        trial, since = study.runs[number], time.monotonic()
        if not deadline.allows(slowest.of(trial.trained)):
            tell(f"no time for {_label(trial)}")
            return False
        tell(f"begin  {_label(trial)} on {card}")
        code = start(number, steps, card).wait()
        seconds = time.monotonic() - since
        if code == RunBusy.EXIT_CODE:
            tell(f"skipped {_label(trial)}, another process carries it out")
            return False
        whole = runs[number].complete
        if whole:
            slowest.learn(seconds, trial.trained)
        tell(f"{'done  ' if whole else f'FAILED ({code})'} {_label(trial)} in {seconds:.0f} s")
        return not whole

    missing = [n for n, run in enumerate(runs) if not run.complete]
    groups = [
        (trained, iter([*numbers]))
        for trained, numbers in groupby(missing, lambda n: study.runs[n].trained)
    ]
    stopped = threading.Event()

    def in_a_place(left: Iterator[int], card: str | None) -> int:
        """Carry out the next trials until none is left, and return how many failed."""
        failed = 0
        for number in left:  # the places share this iterator, so each trial is taken once
            if stopped.is_set():
                break
            try:
                failed += fails(number, card)
            except BaseException:
                stopped.set()
                raise
        return failed

    def on_card(card: str | None) -> int:
        failed = 0
        for trained, left in groups:
            count = 1 if trained else places
            with ThreadPoolExecutor(count) as pool:
                failed += sum(pool.map(in_a_place, repeat(left, count), repeat(card)))
        return failed

    tell(f"trainings take {steps:,} steps")
    with ThreadPoolExecutor(len(cards)) as pool:
        try:
            failed = sum(pool.map(on_card, cards))
        finally:
            stopped.set()  # after Ctrl-C no other trial begins, and those that run are waited for
    tell("the end")
    return failed


def _label(trial: Trial) -> str:
    options = trial.model_dump(exclude={"pe", "trained"})
    words = [trial.pe, *(f"{key} {value}" for key, value in options.items())]
    return ", ".join(words) + (", trained" if trial.trained else "")


def papermill(study: PretrainedStudy, trial: Trial, steps: int) -> str:
    """Return the command that carries out one trial alone."""
    return notebook_command({"model": study.model} | study.arguments(trial, steps), "pretrained")


def main(
    name: Annotated[str, typer.Argument(help="a file of studies/pretrained/, or a path")],
    model: Annotated[str, typer.Option(help="path of the model; default: the file's")] = "",
    mini: Mini = False,
    dry_run: DryRun = False,
    until: Until = math.inf,
    places: Annotated[int, typer.Option(min=1, help="trials that share a GPU")] = 2,
    step_seconds: Annotated[float, typer.Option(help="measured time of a training step")] = 0.0,
    compile: Annotated[str, typer.Option(help="compile layers: auto, on, off")] = "auto",
    steps: Annotated[int, typer.Option(min=0, help="of each training; 0: as time allows")] = 0,
    only: Annotated[int | None, typer.Option(hidden=True)] = None,  # the trial of this process
) -> None:
    """Carry out the trials of a study."""

    def start(number: int, steps: int, gpu: str | None) -> subprocess.Popen[bytes]:
        words = [
            sys.executable, "-m", "pe.pretrained.study", name, "--model", study.model, "--only",
            str(number), "--steps", str(steps), "--compile", compile, *(["--mini"] if mini else []),
        ]  # fmt: skip
        where = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        return subprocess.Popen(words, env=os.environ | where)

    with checked("pe.pretrained.study"):
        study = load_study(name, mini)
        study = study.model_copy(update={"model": model or study.model})
        if compile not in (known := ("auto", "on", "off")):
            raise unknown("--compile", compile, known)
        if only is not None:
            _one(study, study.runs[only], steps, compile)
            return
        if dry_run:
            _list(study, steps or steps_of_trainings(study, study.model, 0.0, until, 1))
            return
        failed = carry_out(
            study, study.model, start, gpus=visible_gpus(), places=places, until=until,
            step_seconds=step_seconds, steps=steps, log=lambda text: print(text, flush=True),
        )  # fmt: skip
        if failed:
            raise StudyFailed(f"{failed} of {len(study.runs)} trials failed")


def _list(study: PretrainedStudy, steps: int) -> None:
    """Print the command of each trial, and whether it is done."""
    runs = planned(study, study.model, steps)
    for trial, run in zip(study.runs, runs, strict=True):
        print(f"# {_label(trial)}: {'done' if run.complete else 'not done'}")
        print(papermill(study, trial, steps))
    print(f"# {sum(run.complete for run in runs)} of {len(runs)} trials done")


def _one(study: PretrainedStudy, trial: Trial, steps: int, compile: str) -> None:
    """Carry out one trial in this process, which ends when its parent does."""
    from pe.pretrained.trial import try_out

    threading.Thread(target=stop_with_parent, args=(os.getppid(),), daemon=True).start()
    run = configured(study, trial, study.model, steps)
    run.compile = compile  # type: ignore[assignment]
    run.command = papermill(study, trial, steps)
    try:
        try_out(run)
    except RunBusy as error:
        print(f"pe.pretrained.study: {error}", file=sys.stderr)
        raise typer.Exit(RunBusy.EXIT_CODE) from None


if __name__ == "__main__":
    typer.run(main)
