"""A study over tasks trains every encoding on every task of a file in studies/tasks/.

    python -m pe.tasks.study core --dry-run          check it, and print how much is left
    python -m pe.tasks.study core --mini             in miniature, for a CPU
    python -m pe.tasks.study core --processes 6      six processes, spread over all GPUs
    python -m pe.tasks.study core --until 540        begin nothing that would end after 540 s

Each encoding on a task is recorded as soon as it is done, and recorded ones are skipped. So the
same command continues where an earlier one stopped. Several processes may run at the same time:
each skips what another process is training.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self

from pydantic import Field, model_validator

from pe._errors import StudyFailed
from pe.runs import RunBusy, root
from pe.study.devices import visible_gpus
from pe.study.pace import Deadline, Slowest
from pe.study.reading import (
    AnyStudy,
    Distinct,
    FolderName,
    Mistakes,
    YamlPart,
    mistakes_in,
    read_study,
)
from pe.tasks.measure.record import Experiment, Settings, TaskRun, task_run

Encodings = Annotated[list[str], Field(min_length=1), Distinct]


class TaskOf(YamlPart):
    """A task of a study."""

    task: str
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    """Settings that differ from those of the study."""
    encodings: Encodings | None = None
    """None: the encodings of the study."""
    sweep_steps: int | None = None
    """None: as in the study."""


class TaskStudy(AnyStudy):
    """The content of a file in studies/tasks/."""

    below: ClassVar[str] = "tasks"
    study: FolderName
    encodings: Encodings
    seeds: list[int]
    learning_rates: list[float]
    sweep_seeds: int = 0
    """As in an `Experiment`."""
    sweep_steps: int | None = None
    settings: dict[str, Any] = {}
    tasks: Annotated[list[TaskOf], Field(min_length=1)]
    examples: int = 640
    validation: int = 320
    each_length: int = 128

    @model_validator(mode="after")
    def _experiments_are_possible(self) -> Self:
        names: list[str] = []
        for number, one in enumerate(self.tasks):
            with mistakes_in(f"tasks[{number}]"):
                names.append(self.experiment(one).name())
                if names[-1] in names[:-1]:
                    raise ValueError(f"{one.task} is there twice with the same settings")
        return self

    def experiment(self, one: TaskOf) -> Experiment:
        """Return the experiment on a task of the study.

        Raises:
            ValueError: its settings are wrong.
        """
        common = self.model_dump(
            include=Experiment.model_fields.keys() - {"settings", "sweep_steps"}
        )
        return Experiment(
            task=one.task,
            task_options=one.options,
            sweep_steps=self.sweep_steps if one.sweep_steps is None else one.sweep_steps,
            settings=Settings(**(self.settings | one.settings)),
            **common,
        )


class Job(NamedTuple):
    """One encoding on one task."""

    run: TaskRun
    pe: str

    @property
    def experiment(self) -> Experiment:
        """The experiment of the folder."""
        assert self.run.experiment is not None, "made by task_run"
        return self.run.experiment

    def done(self) -> bool:
        """Return whether there is a complete record."""
        return self.run.recorded(self.pe)


def slowest(todo: Sequence[Job]) -> Slowest:
    """Return the seconds of the slowest encoding on record, by experiment and of "any"."""
    known = Slowest()
    for run in {job.run.name: job.run for job in todo}.values():
        for record in run.encoded():
            known.learn(record.seconds, run.name, "any")
    return known


def load_study(name: str, mini: bool = False) -> TaskStudy:
    """Read studies/tasks/NAME.yaml, or the file ``name`` if it ends in .yaml.

    Args:
        mini: the study in miniature: its part ``mini`` replaces other fields.

    Raises:
        ValueError: there is no such study, or one of its fields is wrong.
    """
    return read_study(TaskStudy, name, mini=mini)[1]


def jobs(study: TaskStudy, first: int = 0, *, check: bool = False) -> list[Job]:
    """Return all encodings of the first task, then of the next, and so on.

    Args:
        first: the index of the task to begin with. Tasks before it come last.
        check: also check the encodings, which imports torch.

    Raises:
        ValueError: an encoding is unknown or does not fit the models of a task, or it is recorded
            and its source has changed since; one line per mistake.
    """
    todo = [
        Job(task_run(study.experiment(one), study.encodings, study.study), pe)
        for one in study.tasks[first:] + study.tasks[:first]
        for pe in one.encodings or study.encodings
    ]
    mistakes = Mistakes()
    for job in todo if check else ():
        with mistakes.at(f"{job.experiment.task}, {job.pe}"):
            job.experiment.check(job.pe)
            job.run.check_source(job.pe)
    mistakes.refuse()
    return todo


def carry_out(
    todo: list[Job], log: Callable[[str], None] = print, until: float = math.inf
) -> Iterator[Job]:
    """Train and score all jobs without a complete record; yields each job when it is done.

    A job that another process is training is skipped. If torch fails in a job, the failure is
    logged and the next job begins.

    Args:
        until: seconds. A job is skipped if it would end later, taking as long as the slowest
            encoding so far of its task, or of all tasks if its own has none.

    Raises:
        StudyFailed: jobs failed; raised after the last job.
    """
    from pe.tasks.measure.experiment import Stream, measure
    from pe.tasks.measure.many import Many

    deadline, stream, folder, known = Deadline(until), None, None, slowest(todo)
    failed: list[str] = []
    for number, job in enumerate(todo, 1):
        if job.done():
            continue
        name = f"{number}/{len(todo)} {job.experiment.task} {job.pe}"
        if not deadline.allows(known.of(job.run.name, "any")):
            log(f"{name}: skipped, it would not end within {until:.0f} s")
            continue
        if folder != job.run.directory:
            stream, folder = Stream(job.experiment.make_task()), job.run.directory
        refusals: list[str] = []

        def on_trained(many: Many, refusals: list[str] = refusals) -> None:
            refusals += [f", no step replayed: {many.refusal}"] if many.refusal else []

        try:
            record = measure(job.run, job.pe, stream=stream, on_trained=on_trained)
        except RunBusy as busy:
            log(f"{name}: skipped, it is being trained by {busy.holder}")
            continue
        except RuntimeError as error:  # torch's: out of memory, for example
            log(f"{name}: failed\n{''.join(traceback.format_exception(error))}")
            failed.append(name)
            continue
        known.learn(record.seconds, job.run.name, "any")
        steps = record.solved_after or record.settings["steps"]
        log(f"{name}: {record.seconds:.0f} s, {steps} steps{''.join(refusals)}")
        yield job
    if failed:
        raise StudyFailed(f"{len(failed)} of {len(todo)} jobs failed: {'; '.join(failed)}")


def spread(arguments: list[str], processes: int, tasks: int) -> int:
    """Run a study in several processes that begin at different tasks, and wait for them.

    Args:
        arguments: arguments of ``python -m pe.tasks.study``. tasks: the number of tasks in the
            study.

    Returns:
        The number of processes that failed.
    """
    cards = visible_gpus()
    running = []
    for number in range(processes):
        one = {"CUDA_VISIBLE_DEVICES": cards[number % len(cards)]} if cards else {}
        where = os.environ | one
        begin = ["--first", str(number * tasks // processes)]
        command = [sys.executable, "-m", "pe.tasks.study", *arguments, *begin]
        running.append(subprocess.Popen(command, env=where))
    return sum(process.wait() != 0 for process in running)


def text(study: TaskStudy, todo: list[Job]) -> str:
    """Write a table of jobs per task: how many are done, and about how long the others take."""
    from tabulate import tabulate

    known, lines = slowest(todo), []
    for name in dict.fromkeys(job.run.name for job in todo):
        own, seconds = [job for job in todo if job.run.name == name], known.of(name)
        left = sum(not job.done() for job in own)
        minutes = f"{left * seconds / 60:.0f}" if seconds or not left else "not known"
        lines.append([name, len(own), len(own) - left, minutes])
    table = tabulate(lines, headers=["task", "encodings", "done", "minutes left"])
    return (
        f"{study.title}\n\n{table}\n\n{todo[0].experiment.models()} models per encoding. The "
        "minutes are those of one process on the machine of the records, if each encoding takes as "
        f"long as the slowest so far. Records: {root() / study.study}"
    )
