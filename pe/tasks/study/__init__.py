"""A study over tasks: every encoding on every task, from one file of studies/tasks/.

    python -m pe.tasks.study core --dry-run      what it would take
    python -m pe.tasks.study core --mini         in miniature, for a CPU
    python -m pe.tasks.study core --part 1/4     a quarter of it, for one of four GPUs

What is on record is not trained again, so the same command goes on where it stopped, and parts may
run at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from pe._errors import unknown
from pe.runs import RunBusy, root
from pe.tasks.core.options import Options
from pe.tasks.measure.record import Experiment, TaskRun, task_run
from pe.tasks.measure.settings import Settings

FOLDER = Path(__file__).resolve().parents[3] / "studies" / "tasks"
STEP_SECONDS = 0.035
"""What calling torch takes per step on a GPU, whatever the size: an assumption."""
FLOPS_PER_SECOND = 1.5e13
"""What an H200 is assumed to reach in float32 on products of small matrices; not measured."""


class TaskOf(Options):
    """A task of a study."""

    task: str
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    """Settings that differ from those of the study."""


class TaskStudy(Options):
    """A file of studies/tasks/."""

    title: str
    study: str
    encodings: Annotated[list[str], Field(min_length=1)]
    seeds: list[int]
    learning_rates: list[float]
    settings: dict[str, Any] = {}
    tasks: Annotated[list[TaskOf], Field(min_length=1)]
    examples: int = 640
    validation: int = 320
    each_length: int = 128

    def experiments(self) -> list[Experiment]:
        """One per task. ValueError for whatever a task or the settings refuse."""
        return [
            Experiment(
                task=one.task,
                task_options=one.options,
                seeds=tuple(self.seeds),
                learning_rates=tuple(self.learning_rates),
                settings=Settings(**(self.settings | one.settings)),
                examples=self.examples,
                validation=self.validation,
                each_length=self.each_length,
            )
            for one in self.tasks
        ]


class Job(NamedTuple):
    """One encoding on one task."""

    run: TaskRun
    pe: str

    def done(self) -> bool:
        """Whether a complete record is there."""
        record = self.run.record(self.pe)
        return record is not None and record.status == "complete"

    def seconds(self) -> float:
        """About how long it takes on one GPU: computed from the sizes, not measured."""
        experiment = self.run.experiment
        assert experiment is not None
        sizes, made = experiment.settings, experiment.make_task()
        tokens = made.longest("train")
        per_token = 4 * sizes.width**2 + 3 * sizes.width * sizes.feedforward + tokens * sizes.width
        flops = 6.0 * sizes.layers * per_token * tokens * sizes.batch_size
        models = len(experiment.seeds) * len(experiment.learning_rates)
        return 1.3 * sizes.steps * (STEP_SECONDS + models * flops / FLOPS_PER_SECOND)


def load_study(name: str, mini: bool = False) -> TaskStudy:
    """Read studies/tasks/NAME.yaml, or a path.

    Raises:
        ValueError: there is no such study, or a field of it is not right.
    """
    import yaml

    path = Path(name)
    if path.suffix != ".yaml":
        known = {p.stem: p for p in sorted(FOLDER.glob("*.yaml"))}
        if name not in known:
            raise unknown("study over tasks", name, known)
        path = known[name]
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file")
    content = yaml.safe_load(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path}: expected fields such as title, encodings and tasks")
    small = content.pop("mini", None)
    if mini:
        if small is None:
            raise ValueError(f"{path}: the study has no 'mini'")
        content |= small
    content["tasks"] = [TaskOf(**one) for one in content.get("tasks", [])]
    try:
        study = TaskStudy(**content)
        study.experiments()
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return study


def jobs(study: TaskStudy, part: tuple[int, int] = (1, 1)) -> list[Job]:
    """All encodings of the first task, then of the second.

    Args:
        part: (2, 4): the second of four parts, which differ by a job in length.
    """
    number, parts = part
    if not 1 <= number <= parts:
        raise ValueError(f"part: expected 1/{parts} to {parts}/{parts}, got {number}/{parts}")
    every = [
        Job(task_run(experiment, study.encodings, study.study), pe)
        for experiment in study.experiments()
        for pe in study.encodings
    ]
    size, rest = divmod(len(every), parts)
    first = (number - 1) * size + min(number - 1, rest)
    return every[first : first + size + (number <= rest)]


def carry_out(todo: list[Job], log: Callable[[str], None] = print) -> Iterator[Job]:
    """Train and score what is not on record; yields each job when it is done.

    A job that another process is at is left to it.
    """
    from pe.tasks.measure.experiment import Stream, measure

    stream, folder = None, None
    for number, job in enumerate(todo, 1):
        if job.done():
            continue
        experiment = job.run.experiment
        assert experiment is not None
        if folder != job.run.directory:
            stream, folder = Stream(experiment.make_task()), job.run.directory
        try:
            record = measure(job.run, job.pe, stream=stream)
        except RunBusy as busy:
            log(f"{number}/{len(todo)} {experiment.task} {job.pe}: left to {busy.holder}")
            continue
        log(f"{number}/{len(todo)} {experiment.task} {job.pe}: {record.seconds:.0f} s")
        yield job


def text(study: TaskStudy, todo: list[Job]) -> str:
    """The jobs by task, how many are done, and about how long the rest takes."""
    from tabulate import tabulate

    rows: dict[str, list[Job]] = {}
    for job in todo:
        rows.setdefault(job.run.name, []).append(job)
    lines = []
    for name, own in rows.items():
        left = [job for job in own if not job.done()]
        minutes = sum(job.seconds() for job in left) / 60
        lines.append([name, len(own), len(own) - len(left), f"{minutes:.0f}"])
    total = sum(job.seconds() for job in todo if not job.done()) / 60
    table = tabulate(lines, headers=["task", "encodings", "done", "minutes left"])
    models = len(study.seeds) * len(study.learning_rates)
    return (
        f"{study.title}\n\n{table}\n\n{models} models per encoding; about {total:.0f} minutes are "
        "left on one H200 (computed from the sizes, not measured; a CPU takes some hundred times "
        f"as long). Records: {root() / study.study}"
    )
