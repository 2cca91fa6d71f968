"""Train encodings on a task and put the outcome on record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pe._errors import PositionError
from pe.encodings.core.source import source_hashes
from pe.runs import SCHEMA_VERSION, RunError, provenance
from pe.runs.models import TaskRecord
from pe.tasks.core.base import Batch, Task
from pe.tasks.measure.many import Answers, Many, Member
from pe.tasks.measure.record import Experiment, TaskRun, lengths_of, options_of, split_of

VALIDATION_SEED, TEST_SEED = 2**63, 2**63 + 1
"""Seeds of examples that no training sees; both draw from the split "id"."""
CURVE = 100
"""Losses on record per model, at most."""
PLACES = 32
"""Groups of positions, at most."""
OnStep = Callable[[int, list[float]], bool | None]


class Stream:
    """Examples of training, made once for all encodings of an experiment."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._made: dict[tuple[int, int, int], tuple[npt.NDArray[np.int16], ...]] = {}

    def __call__(self, seed: int, first: int, count: int) -> Batch:
        """What `Task.batch` gives."""
        key = (seed, first, count)
        if key not in self._made:
            batch = self._task.batch(*key)
            self._made[key] = tuple(values.astype(np.int16) for values in batch)
        return Batch(*(values.astype(np.int64) for values in self._made[key]))


def measure(
    run: TaskRun,
    pe: str,
    on_step: OnStep | None = None,
    stream: Stream | None = None,
    on_trained: Callable[[Many], None] | None = None,
    again: bool = False,
) -> TaskRecord:
    """Train an encoding for each seed at each rate, score it, and write the record.

    A complete record is returned as it is; one that was stopped is made once more.

    Args:
        run: a folder with its experiment. on_step: called after each step with its number, counted
            from 1, and the loss of each model; training ends early where it returns True.
        stream: examples shared with other encodings. on_trained: called with the trained models.
        again: train and replace a complete record.

    Raises:
        ValueError: what the task, the encoding or the sizes do not allow.
        RunError: the record was made with another source of the encoding, or cannot be written.
    """
    experiment = run.experiment
    assert experiment is not None, "made by task_run"
    sources = source_hashes(pe)
    known = run.record(pe)
    if known is not None and known.status == "complete" and not again:
        changed = sorted(n for n, value in sources.items() if known.sources.get(n) != value)
        if changed:
            raise RunError(
                f"{run.file(pe)} was made with another source of {pe} ({', '.join(changed)} "
                f"changed since); use another study, such as '{run.study}-2', or delete the file"
            )
        return known
    task = experiment.make_task()
    members = [Member(s, rate) for s in experiment.seeds for rate in experiment.learning_rates]
    began, created = time.monotonic(), provenance.now()
    code = provenance.code()  # now: files may change while this trains
    many = Many(task, pe, members, experiment.settings, make_batch=stream)
    with run.lock(f".{run.file(pe).stem}.lock"):
        history: list[list[float]] = []
        stopped = False
        for number in range(1, experiment.settings.steps + 1):
            history.append(many.step().tolist())
            if on_step is not None and on_step(number, history[-1]):
                stopped = number < experiment.settings.steps
                break
        outcome = _outcome(many, task, experiment, history)
        if on_trained is not None:
            on_trained(many)
        model = many.model(0)
        record = {
            "schema": SCHEMA_VERSION,
            "study": run.study,
            "run": run.name,
            "status": "stopped" if stopped else "complete",
            "created": created,
            "finished": provenance.now(),
            "command": provenance.command() or command(experiment, pe, run.study),
            "code": code,
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
            "task": experiment.task,
            "task_options": options_of(task),
            "pe": pe,
            "sources": sources,
            "settings": experiment.settings.model_dump(mode="json"),
            "seeds": list(experiment.seeds),
            "learning_rates": list(experiment.learning_rates),
            "parameters": sum(p.numel() for p in model.parameters()),
            "encoding_parameters": sum(
                p.numel() for n, p in model.named_parameters() if ".encodings." in f".{n}"
            ),
            "chance": task.chance,
            "baselines": baselines(task, experiment.examples),
            **outcome,
            "seconds": round(time.monotonic() - began, 2),
        }
        run.write_part("task", record, run.file(pe).stem.removeprefix("task"))
    return TaskRecord.model_validate(record)


def command(experiment: Experiment, pe: str, study: str) -> str:
    """The papermill command that makes a record."""
    import shlex

    import yaml

    values: dict[str, Any] = {
        "task": experiment.task,
        "pe": pe,
        "study": study,
        "seeds": ",".join(map(str, experiment.seeds)),
        "learning_rates": ",".join(f"{rate:g}" for rate in experiment.learning_rates),
        "task_options": dict(experiment.task_options),
        "overrides": experiment.settings.model_dump(mode="json")
        | experiment.model_dump(include={"examples", "validation", "each_length"}),
    }
    line = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, width=10**6).strip()
    return shlex.join(["papermill", "notebooks/tasks.ipynb", "-y", line])


def baselines(task: Task, examples: int) -> dict[str, dict[str, float]]:
    """Token accuracy of the trivial strategies by split; measured where there is no formula."""
    return {
        one.name: {
            split: float(
                one.score[split]
                if split in one.score
                else task.score_of(one.guess, split, examples, TEST_SEED).token
            )
            for split in task.splits
            if split != "train"
        }
        for one in task.baselines()
    }


def _outcome(
    many: Many, task: Task, experiment: Experiment, history: list[list[float]]
) -> dict[str, Any]:
    """The part of the record that the models decide."""
    validation = many.answers("id", experiment.validation, VALIDATION_SEED)
    scored = {
        split: _answers(many, split, experiment.examples)
        for split in task.splits
        if split != "train"
    }
    rates = experiment.learning_rates
    best = min(rates, key=lambda rate: _mean_loss(many.members, validation, rate))
    chosen = [i for i, member in enumerate(many.members) if member.learning_rate == best]
    few = many.only(chosen)
    steps = _spread(len(history), CURVE)
    models = [
        {
            "seed": member.seed,
            "learning_rate": member.learning_rate,
            "losses": [_number(history[step - 1][m]) for step in steps],
            "validation": _counts(validation[m]),
            "splits": {
                split: None if own is None else _counts(own[m]) for split, own in scored.items()
            },
        }
        for m, member in enumerate(many.members)
    ]
    lengths: dict[str, Any] = {}
    for length in lengths_of(task):
        own = _answers(few, split_of(task, length), experiment.each_length, length)
        lengths[str(length)] = None if own is None else [_counts(one) for one in own]
    return {
        "best_rate": best,
        "steps": steps,
        "models": models,
        "lengths": lengths,
        "positions": {
            split: None if own is None else _places([own[m] for m in chosen])
            for split, own in scored.items()
        },
    }


def _answers(
    many: Many, split: str, examples: int, length: int | None = None
) -> list[Answers] | None:
    """None where the encoding has no such positions."""
    try:
        return many.answers(split, examples, TEST_SEED, length)
    except PositionError:
        return None


def _mean_loss(members: Sequence[Member], answers: Sequence[Answers], rate: float) -> float:
    """Infinite where one of the models diverged."""
    losses = [a.loss for m, a in zip(members, answers, strict=True) if m.learning_rate == rate]
    return float(np.mean(losses)) if all(map(math.isfinite, losses)) else math.inf


def _spread(count: int, most: int) -> list[int]:
    """At most so many whole numbers from 1 to ``count``, evenly spread, the last one included."""
    return sorted({round(1 + (count - 1) * i / (most - 1)) for i in range(most)}) if count else []


def _number(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _counts(answers: Answers) -> dict[str, Any]:
    return answers.score._asdict() | {"loss": _number(answers.loss)}


def _places(answers: Sequence[Answers]) -> dict[str, Any]:
    asked = answers[0].asked
    width = int(asked.nonzero()[0].max()) + 1
    size = math.ceil(width / PLACES)
    starts = list(range(0, width, size))
    shares = [
        [
            None
            if not (total := int(asked[start : start + size].sum()))
            else _number(int(one.right[start : start + size].sum()) / total)
            for start in starts
        ]
        for one in answers
    ]
    return {"starts": starts, "shares": shares}
