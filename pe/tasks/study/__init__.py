"""A study over tasks trains every encoding on every task of a file in studies/tasks/.

    python -m pe.tasks.study core --dry-run          only print how much is left
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
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from pe._files import read_study, shipped
from pe.encodings.core.parts import part_classes
from pe.runs import RunBusy, RunError, root
from pe.study.devices import visible_gpus
from pe.tasks.core.base import Options
from pe.tasks.measure.record import Experiment, Settings, TaskRun, task_run

FOLDER = shipped("studies") / "tasks"


class TaskOf(Options):
    """A task of a study."""

    task: str
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    """Settings that differ from those of the study."""
    encodings: list[str] | None = None
    """None: the encodings of the study."""
    sweep_steps: int | None = None
    """None: as in the study."""


class TaskStudy(Options):
    """The content of a file in studies/tasks/."""

    title: str
    study: str
    encodings: Annotated[list[str], Field(min_length=1)]
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

    def experiments(self) -> list[Experiment]:
        """Return one experiment per task.

        Raises:
            ValueError: a task or its settings are wrong.
        """
        common = self.model_dump(
            include=Experiment.model_fields.keys() - {"settings", "sweep_steps"}
        )
        return [
            Experiment(
                task=one.task,
                task_options=one.options,
                sweep_steps=one.sweep_steps or self.sweep_steps,
                settings=Settings(**(self.settings | one.settings)),
                **common,
            )
            for one in self.tasks
        ]


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


def slowest(todo: Iterable[Job]) -> dict[str, float]:
    """Return, per experiment, the seconds of the slowest encoding on record; 0 without one."""
    runs = {job.run.name: job.run for job in todo}
    return {n: max((r.seconds for r in run.encoded()), default=0.0) for n, run in runs.items()}


def load_study(name: str, mini: bool = False) -> TaskStudy:
    """Read studies/tasks/NAME.yaml, or the file ``name`` if it ends in .yaml.

    Args:
        mini: the study in miniature: its part ``mini`` replaces other fields.

    Raises:
        ValueError: there is no such study, or one of its fields is wrong.
    """
    path, content = read_study(name, FOLDER, mini=mini)
    try:
        content["tasks"] = [_task_of(entry) for entry in content.get("tasks") or []]
        study = TaskStudy(**content)
        for experiment in study.experiments():
            experiment.make_task()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def _task_of(entry: object) -> TaskOf:
    if not isinstance(entry, dict):
        raise ValueError(f"tasks: expected a dictionary such as {{task: copy}}, got {entry!r}")
    return TaskOf(**{str(name): value for name, value in entry.items()})


def jobs(study: TaskStudy, first: int = 0) -> list[Job]:
    """Return all encodings of the first task, then of the next, and so on.

    Args:
        first: the index of the task to begin with. Tasks before it come last.
    """
    pairs = list(zip(study.experiments(), study.tasks, strict=True))
    first %= len(pairs)
    return [
        Job(task_run(experiment, study.encodings, study.study), pe)
        for experiment, one in pairs[first:] + pairs[:first]
        for pe in one.encodings or study.encodings
    ]


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
        ValueError: an unknown encoding; raised before the first job.
        RunError: jobs failed; raised after the last job.
    """
    from pe.tasks.measure.experiment import Stream, measure
    from pe.tasks.measure.many import Many

    for job in todo:
        part_classes(job.pe)  # an unknown encoding is an error before anything is trained
    began, stream, folder, known = time.monotonic(), None, None, slowest(todo)
    failed: list[str] = []
    for number, job in enumerate(todo, 1):
        if job.done():
            continue
        name = f"{number}/{len(todo)} {job.experiment.task} {job.pe}"
        expected = known[job.run.name] or max(known.values())
        if time.monotonic() - began + expected > until:
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
        known[job.run.name] = max(known[job.run.name], record.seconds)
        steps = record.solved_after or record.settings["steps"]
        log(f"{name}: {record.seconds:.0f} s, {steps} steps{''.join(refusals)}")
        yield job
    if failed:
        raise RunError(f"{len(failed)} jobs failed: {'; '.join(failed)}")


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
    for name, seconds in known.items():
        own = [job for job in todo if job.run.name == name]
        left = sum(not job.done() for job in own)
        minutes = f"{left * seconds / 60:.0f}" if seconds or not left else "not known"
        lines.append([name, len(own), len(own) - left, minutes])
    table = tabulate(lines, headers=["task", "encodings", "done", "minutes left"])
    return (
        f"{study.title}\n\n{table}\n\n{study.experiments()[0].models()} models per encoding. The "
        "minutes are those of one process on the machine of the records, if each encoding takes as "
        f"long as the slowest so far. Records: {root() / study.study}"
    )
