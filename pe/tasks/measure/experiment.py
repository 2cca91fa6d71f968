"""Train encodings on a task and record the results."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pe._errors import PositionError
from pe.encodings.core.source import source_hashes
from pe.recipes.command import notebook_command
from pe.runs import SCHEMA_VERSION, provenance
from pe.runs.models import TaskRecord
from pe.tasks.core.base import Batch, Task
from pe.tasks.core.scoring import guessed
from pe.tasks.measure.many import Answers, Many, Member
from pe.tasks.measure.record import (
    STOP_EVERY,
    Experiment,
    TaskRun,
    lengths_of,
    split_of,
)

VALIDATION_SEED, TEST_SEED = 2**63, 2**63 + 1
"""Seeds of the validation and test examples. No training uses them."""
CURVE = 100
"""The most losses per model in a record."""
PLACES = 32
"""The most groups of positions in a record."""
OnStep = Callable[[int, list[float]], bool | None]
"""Called with the number of a step and the loss of each model; True ends the training."""


class Stream:
    """Training examples, made once for all encodings of an experiment and kept in memory."""

    def __init__(self, task: Task) -> None:
        self._task = task
        largest = max(task.vocab_size, task.longest("train"), *task.train_lengths)
        self._dtype = np.int16 if largest < 2**15 else np.int32
        self._made: dict[tuple[int, int, int], tuple[npt.NDArray[np.signedinteger], ...]] = {}

    def __call__(self, seed: int, first: int, count: int) -> Batch:
        """Return the batch that `Task.batch` makes."""
        key = (seed, first, count)
        if key not in self._made:
            batch = self._task.batch(*key)
            self._made[key] = tuple(values.astype(self._dtype) for values in batch)
        return Batch(*(values.astype(np.int64) for values in self._made[key]))


def measure(
    run: TaskRun,
    pe: str,
    on_step: OnStep | None = None,
    stream: Stream | None = None,
    on_trained: Callable[[Many], None] | None = None,
    again: bool = False,
) -> TaskRecord:
    """Train an encoding with each seed at each rate, score the models, and write the record.

    If there is a complete record, it is returned. A stopped record is replaced.

    Args:
        run: the folder of an experiment.
        on_step: called after each step with its number, from 1 on, and the loss of each model. If
            it returns True, the training ends. It is not called in a sweep.
        stream: training examples that encodings share.
        on_trained: called with the trained models.
        again: train and replace a complete record.

    Raises:
        ValueError: the task, the encoding and the sizes do not fit each other.
        RunError: the source of the encoding has changed since the record was made, or the record
            cannot be written.
    """
    experiment = run.experiment
    assert experiment is not None, "made by task_run"
    sources = source_hashes(pe)
    known = run.record(pe)
    if known is not None and known.status == "complete" and not again:
        run.check_source(pe)
        return known
    task = experiment.make_task()
    began, created = time.monotonic(), provenance.now()
    code = provenance.code()  # read now, because files may change during the training
    with run.lock(f".{run.file(pe).stem}.lock"):
        meanwhile = run.record(pe)  # another process may have written it before we got the lock
        if meanwhile is not None and meanwhile.status == "complete" and not again:
            return meanwhile
        best, sweep = _sweep(task, pe, experiment, stream)
        rates = experiment.learning_rates if best is None else [best]
        members = [Member(seed, rate) for seed in experiment.seeds for rate in rates]
        many = Many(task, pe, members, experiment.settings, make_batch=stream)
        history, stopped = train(many, on_step)
        outcome = _outcome(many, task, experiment, history, best)
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
            "task_options": task.model_dump(mode="json"),
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
            "sweep": sweep,
            "solved_after": None
            if stopped or len(history) == experiment.settings.steps
            else len(history),
            **outcome,
            "seconds": round(time.monotonic() - began, 2),
        }
        run.write_part("task", record, run.file(pe).stem.removeprefix("task"))
    return TaskRecord.model_validate(record)


def train(many: Many, on_step: OnStep | None = None) -> tuple[list[list[float]], bool]:
    """Train to the last step, or until ``stop_loss`` or ``on_step`` ends the training.

    Returns:
        The loss of each model at each step, and whether ``on_step`` ended the training.
    """
    history: list[list[float]] = []
    waiting: list[Tensor] = []  # losses are read together, so as not to wait for a GPU each step
    settings = many.settings
    for number in range(1, settings.steps + 1):
        waiting.append(many.step())
        if on_step is None and number % STOP_EVERY and number < settings.steps:
            continue
        history += torch.stack(waiting).tolist()
        waiting.clear()
        if on_step is not None and on_step(number, history[-1]):
            return history, number < settings.steps
        if settings.stop_loss and not number % STOP_EVERY:
            means = np.mean(history[-STOP_EVERY:], axis=0)
            if (means < settings.stop_loss).all():  # False if a loss is not a number
                break
    return history, False


def _sweep(
    task: Task, pe: str, experiment: Experiment, stream: Stream | None
) -> tuple[float | None, dict[str, Any] | None]:
    """Return the rate with the least mean validation loss of a sweep, and the sweep's record.

    Both are None if the experiment has no sweep.
    """
    if not experiment.sweep_seeds:
        return None, None
    seeds, rates = experiment.seeds[: experiment.sweep_seeds], experiment.learning_rates
    steps = experiment.sweep_steps or experiment.settings.steps
    settings = experiment.settings.model_copy(update={"steps": steps, "stop_loss": 0.0})
    members = [Member(seed, rate) for seed in seeds for rate in rates]
    many = Many(task, pe, members, settings, make_batch=stream)
    train(many)
    answers = many.answers("id", experiment.validation, VALIDATION_SEED)
    by_rate = {
        f"{rate:g}": [
            _counts(a) for m, a in zip(members, answers, strict=True) if m.learning_rate == rate
        ]
        for rate in rates
    }
    best = _best_rate(experiment, members, answers)
    return best, {"seeds": list(seeds), "steps": steps, "validation": by_rate}


def _best_rate(
    experiment: Experiment, members: Sequence[Member], validation: Sequence[Answers]
) -> float:
    """Return the rate with the least mean validation loss. That of a diverged model is infinite."""

    def mean_loss(rate: float) -> float:
        own = zip(members, validation, strict=True)
        losses = [answers.loss for member, answers in own if member.learning_rate == rate]
        return float(np.mean(losses)) if all(map(math.isfinite, losses)) else math.inf

    return min(experiment.learning_rates, key=mean_loss)


def command(experiment: Experiment, pe: str, study: str) -> str:
    """Return the papermill command that repeats a record."""
    values: dict[str, Any] = {
        "task": experiment.task,
        "pe": pe,
        "study": study,
        "seeds": ",".join(map(str, experiment.seeds)),
        "learning_rates": ",".join(map(str, experiment.learning_rates)),
        "task_options": dict(experiment.task_options),
        "overrides": experiment.settings.model_dump(mode="json")
        | experiment.model_dump(include={"examples", "validation", "each_length"}),
    }
    return notebook_command(values, "tasks")


def baselines(task: Task, examples: int) -> dict[str, dict[str, float]]:
    """Return each trivial strategy's token accuracy per split, on the models' examples."""
    batches = {s: task.batch(TEST_SEED, 0, examples, s) for s in task.splits if s != "train"}
    return {
        one.name: {
            split: guessed(one.guess, batch.tokens, batch.targets).token
            for split, batch in batches.items()
        }
        for one in task.baselines()
    }


def _outcome(
    many: Many,
    task: Task,
    experiment: Experiment,
    history: list[list[float]],
    best: float | None,
) -> dict[str, Any]:
    """Return the scores in the record.

    Args:
        best: the rate that a sweep has chosen; None: choose it from these models.
    """
    validation = many.answers("id", experiment.validation, VALIDATION_SEED)
    scored = {s: _answers(many, s, experiment.examples) for s in task.splits if s != "train"}
    best = _best_rate(experiment, many.members, validation) if best is None else best
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
    """Return the scores of all models; None if the encoding has no such positions."""
    try:
        return many.answers(split, examples, TEST_SEED, length)
    except PositionError:
        return None


def _spread(count: int, most: int) -> list[int]:
    """Return up to ``most`` whole numbers from 1 to ``count``, evenly spread, with the last."""
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
