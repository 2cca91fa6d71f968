"""task-ENCODING.json and numerics.json: small models on tasks, and values of formulas."""

from __future__ import annotations

from typing import Any, Literal

from pe.runs.models.parts import Part, Process, Record, Seconds, Tokens


class TaskAnswers(Part):
    """The answers of one model."""

    tokens_right: int
    """Correct tokens among those that were asked for."""
    tokens: int
    """Tokens that were asked for."""
    examples_right: int
    """Examples in which every token is correct."""
    examples: int
    """Examples that were asked."""
    loss: float | None
    """Mean cross-entropy of the task's answers, in nats per token; null if it is not finite, for
    example after a training that diverged."""


class TaskModel(Part):
    """One of the models: a seed at a learning rate."""

    seed: int
    """Draws the initial weights and the examples of training."""
    learning_rate: float
    """Constant after the warmup."""
    losses: list[float | None]
    """Loss of the batch at each step of `steps`; null if it is not finite."""
    validation: TaskAnswers
    """On examples of their own, of the lengths of training; chooses the rate."""
    splits: dict[str, TaskAnswers | None]
    """By split, the answers on its examples; null where the encoding has no such positions."""


class TaskPlaces(Part):
    """Accuracy by position, of the models at the best rate."""

    starts: list[int]
    """First position of each group of positions, counted from 0."""
    shares: list[list[float | None]]
    """For each seed and group the share of right tokens; null where nothing is asked."""


class TaskSweep(Part):
    """How the rate was chosen, where not every seed was trained at every rate."""

    seeds: list[int]
    """Seeds that were trained at every rate."""
    steps: int
    """Steps of each."""
    validation: dict[str, list[TaskAnswers]]
    """By rate, what the models of each of these seeds answered."""


class TaskRecord(Process, Record):
    """One encoding on one synthetic task: several seeds, each at several learning rates."""

    study: str
    """Folder that the experiment belongs to."""
    run: str
    """Folder of the experiment: the task and a hash of all settings but the encoding."""
    status: Literal["complete", "stopped"]
    """stopped: the training was ended before its last step, and the scores are of that moment."""
    task: str
    """Name of the task."""
    task_options: dict[str, Any]
    """All options of the task."""
    pe: str
    """The encoding."""
    sources: dict[str, str]
    """By module, SHA-256 (16 digits) of all in it that decides the encoding's result."""
    settings: dict[str, Any]
    """Sizes of the models and how they were trained (`pe.tasks.measure.record.Settings`)."""
    seeds: list[int]
    """Seeds, each of which was trained at every rate, or where there is a `sweep` at the best."""
    learning_rates: list[float]
    """Learning rates, in order."""
    best_rate: float
    """The rate with the least loss in validation, in the mean over seeds."""
    parameters: int
    """Parameters of one model."""
    encoding_parameters: int
    """Those of its encoding."""
    chance: float
    """Token accuracy of uniform guesses among the answers."""
    baselines: dict[str, dict[str, float]]
    """Token accuracy of the task's trivial strategies, by name and split."""
    sweep: TaskSweep | None = None
    """How the rate was chosen where only some of the seeds were trained at every rate."""
    solved_after: int | None = None
    """Training ended after so many steps by the setting ``stop_loss``, before its last."""
    steps: list[int]
    """Steps, counted from 1, whose losses are recorded."""
    models: list[TaskModel]
    """All rates of the first seed, then of the second; after a `sweep` those at the best rate."""
    lengths: dict[Tokens, list[TaskAnswers] | None]
    """By length as the task counts it, the answers of the models at the best rate, a seed after the
    other; null where the encoding has no such positions."""
    positions: dict[str, TaskPlaces | None]
    """By split, accuracy by position."""
    seconds: Seconds


class NumericsRecord(Process, Record):
    """Numbers that are computed from an encoding's formula, without training."""

    run: str
    """Folder below runs/numerics/."""
    settings: dict[str, Any]
    """What all values have in common."""
    values: dict[str, dict[str, float]]
    """By encoding, with options as in ``rope@theta=10000``, and by quantity, with the length as in
    ``position-inversion@1024``."""
    seconds: Seconds
