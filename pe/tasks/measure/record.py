"""Experiments on tasks, and their records. Imports no torch.

    runs/<study>/<task>-<hash>/task-<encoding>.json      one encoding (`pe.runs.models.TaskRecord`)

A folder belongs to one experiment: a task with its options, seeds, learning rates and sizes, but
without an encoding. Each encoding has a file in it, so all records of a folder can be compared.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from pe._errors import LAST_SEED
from pe.runs import Folder, RunError, root
from pe.runs.models import TaskRecord
from pe.runs.table import folders_with
from pe.tasks.core.base import Options, Task
from pe.tasks.core.registry import task

if TYPE_CHECKING:
    import pandas

LENGTHS = 9
"""The approximate number of lengths with a score each."""
COLUMNS = (
    "study", "run", "task", "pe", "seed", "learning_rate", "best", "status", "steps", "parameters",
    "chance", "validation_loss",
)  # fmt: skip
"""Columns of `load`, besides those of splits."""
DEVICE_SIZES = {"cpu": "small", "cuda": "app"}
STOP_EVERY = 50
"""Steps between two checks of the setting ``stop_loss``."""


def _different(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if not values:
        raise ValueError("expected at least one value")
    if len(set(values)) < len(values):
        raise ValueError(f"expected different values, got {', '.join(map(str, values))}")
    return values


Seed = Annotated[int, Field(ge=0, lt=LAST_SEED + 1)]
Rate = Annotated[float, Field(gt=0)]


class Settings(Options):
    """Sizes and training of the models. The defaults are those of the comparison app.

    There are two differences. The app's feed-forward block has two matrices of width 512; ours is
    SwiGLU with three of width 352, which have about as many parameters. The app has dropout 0.1,
    and our models have none.
    """

    layers: Annotated[int, Field(ge=1)] = 2
    width: Annotated[int, Field(ge=1)] = 128
    heads: Annotated[int, Field(ge=1)] = 4
    feedforward: Annotated[int, Field(ge=1)] = 352
    steps: Annotated[int, Field(ge=0)] = 300
    batch_size: Annotated[int, Field(ge=1)] = 64
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    clip: Annotated[float, Field(gt=0)] = 1.0
    """The largest norm of a model's gradient. A larger gradient is scaled down to it."""
    precision: Literal["float32", "tf32", "bfloat16", "auto"] = "float32"
    """As in a recipe, ``auto`` is bfloat16 on CUDA. With ``tf32`` CUDA keeps 10 bits of each
    number's fraction in products of float32 matrices; other devices use float32."""
    stop_loss: Annotated[float, Field(ge=0)] = 0.0
    """Training ends early when the mean loss of the last `STOP_EVERY` steps is below this in every
    model. It is checked every `STOP_EVERY` steps. 0: never."""

    @model_validator(mode="after")
    def _heads_divide_the_width(self) -> Settings:
        if self.width % (2 * self.heads):
            raise ValueError(
                f"width: {self.width} does not divide into {self.heads} heads of an even width; "
                f"take a multiple of {2 * self.heads}"
            )
        return self

    @model_validator(mode="after")
    def _warmup_ends(self) -> Settings:
        if self.warmup_steps and self.warmup_steps >= self.steps:
            raise ValueError(
                f"warmup_steps: {self.warmup_steps} of {self.steps} steps, so that no step has the "
                "full learning rate; expected fewer than the steps"
            )
        return self


class Experiment(Options):
    """What is trained for each encoding: models of every seed at every learning rate."""

    task: str
    task_options: dict[str, Any] = {}
    seeds: Annotated[tuple[Seed, ...], Field(strict=False), AfterValidator(_different)] = (0, 1)
    learning_rates: Annotated[tuple[Rate, ...], Field(strict=False), AfterValidator(_different)] = (
        1e-3,
        3e-3,
    )
    sweep_seeds: Annotated[int, Field(ge=0)] = 0
    """The number of seeds in a sweep. They are trained at every rate, and then all seeds at the
    best rate. 0: no sweep, all seeds are trained at every rate."""
    sweep_steps: Annotated[int, Field(ge=1)] | None = None
    """Training steps in the sweep. None: as many as in the settings."""
    settings: Settings = Settings()
    examples: Annotated[int, Field(ge=1)] = 640
    """Test examples per split, for each model."""
    validation: Annotated[int, Field(ge=1)] = 320
    """Validation examples that choose the rate."""
    each_length: Annotated[int, Field(ge=1)] = 128
    """Test examples per length."""

    @model_validator(mode="after")
    def _a_sweep_is_possible(self) -> Experiment:
        if self.sweep_seeds > len(self.seeds):
            raise ValueError(
                f"sweep_seeds: there are {len(self.seeds)} seeds, got {self.sweep_seeds}"
            )
        if self.sweep_seeds and len(self.learning_rates) == 1:
            raise ValueError("sweep_seeds: with one learning rate there is nothing to choose")
        if self.sweep_steps is not None and not self.sweep_seeds:
            raise ValueError("sweep_steps: has no effect without sweep_seeds")
        return self

    def models(self) -> int:
        """Return the number of models trained for each encoding, including those of a sweep."""
        seeds, rates = len(self.seeds), len(self.learning_rates)
        return self.sweep_seeds * rates + seeds if self.sweep_seeds else seeds * rates

    def at_once(self) -> int:
        """Return the largest number of models that are trained at the same time."""
        seeds, rates = len(self.seeds), len(self.learning_rates)
        return max(self.sweep_seeds * rates, seeds) if self.sweep_seeds else seeds * rates

    def make_task(self) -> Task:
        """Make the task.

        Raises:
            ValueError: an unknown task or a wrong option.
        """
        return task(self.task, **self.task_options)

    def check(self, pe: str) -> None:
        """Raise ValueError for an encoding that does not fit models of these sizes."""
        from pe.model import PEConfig

        made, sizes = self.make_task(), self.settings
        PEConfig(
            vocab_size=made.vocab_size,
            hidden_size=sizes.width,
            intermediate_size=sizes.feedforward,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            max_position_embeddings=made.longest("train"),
            pe=pe,
        )

    def name(self) -> str:
        """Return the folder's name, such as ``k_back-1a2b3c4d``: task and hash of all settings."""
        made = self.make_task()
        options = {
            name: value
            for name, value in made.model_dump(mode="json").items()
            if name not in made.later or value != type(made).model_fields[name].default
        }
        values = self.model_dump(mode="json") | {"task_options": options}
        # Fields that were added later do not change the names of older experiments.
        for where, field in (
            (values, "sweep_seeds"), (values, "sweep_steps"), (values["settings"], "stop_loss"),
        ):  # fmt: skip
            if not where[field]:
                del where[field]
        text = json.dumps(values, sort_keys=True, separators=(",", ":"))
        plain = self.task.replace(":", "_")  # module:Class
        return f"{plain}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


SIZES: dict[str, dict[str, Any]] = {
    "small": {
        "seeds": (0, 1, 2),
        "learning_rates": (3e-3,),
        "settings": Settings(width=64, feedforward=176, batch_size=32),
        "examples": 320,
        "validation": 128,
        "each_length": 64,
    },
    "app": {"seeds": tuple(range(8)), "learning_rates": (1e-3, 3e-3, 1e-2)},
}
"""Sizes by name: ``small`` for a CPU; ``app``, the comparison app's model with eight seeds."""


def lengths_of(made: Task) -> list[int]:
    """Return the lengths that have a score each, from the shortest of any split to the longest.

    Lengths that no example can have are left out.
    """
    ends = [made.lengths(split) for split in made.splits]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    steps = {round((low + (high - low) * i / (LENGTHS - 1)) / made.step) for i in range(LENGTHS)}
    grid = {made.step * n for n in steps} | {end for pair in ends for end in pair}
    return sorted(filter(made.allows, grid))


def split_of(made: Task, length: int) -> str:
    """Return the split whose examples have this length: "id" for the lengths of training."""
    low, high = made.train_lengths
    return "id" if low <= length <= high else made.splits[2]


def slug(pe: str) -> str:
    """Return an encoding as part of a file name. Different encodings have different names."""
    plain = re.sub(r"[^A-Za-z0-9_.+-]+", "_", pe)
    return plain if plain == pe else f"{plain}-{hashlib.sha256(pe.encode()).hexdigest()[:8]}"


class TaskRun(Folder):
    """The folder of an experiment. Its records are task-ENCODING.json.

    Attributes:
        experiment: what is measured; None where records are only read.
        encodings: the encodings that were asked for, in order.
    """

    notebook = "tasks.ipynb"

    def __init__(
        self,
        directory: str | Path,
        experiment: Experiment | None = None,
        encodings: Sequence[str] = (),
    ) -> None:
        super().__init__(directory)
        self.experiment, self.encodings = experiment, list(encodings)

    def file(self, pe: str) -> Path:
        """Return the file of the record of an encoding."""
        return self.directory / f"task-{slug(pe)}.json"

    def record(self, pe: str) -> TaskRecord | None:
        """Return the validated record of an encoding, or None if there is none."""
        value = self.part("task", f"-{slug(pe)}")
        return None if value is None else TaskRecord.model_validate(value)

    @property
    def complete(self) -> bool:
        """Whether all encodings that were asked for are on record."""
        return all(map(self.recorded, self.encodings))

    def recorded(self, pe: str) -> bool:
        """Return whether there is a complete record of an encoding."""
        record = self.record(pe)
        return record is not None and record.status == "complete"

    def check_source(self, pe: str) -> None:
        """Raise RunError if an encoding is recorded and its source has changed since."""
        from pe.encodings.core.source import source_hashes

        known = self.record(pe)
        if known is None or known.status != "complete":
            return
        hashes = source_hashes(pe)
        changed = sorted(n for n, value in hashes.items() if known.sources.get(n) != value)
        if changed:
            raise RunError(
                f"{self.file(pe)} was made with another source of {pe} ({', '.join(changed)} "
                f"changed since); use another study, such as '{self.study}-2', or delete the file"
            )

    def encoded(self) -> list[TaskRecord]:
        """Return all records of the folder: the encodings asked for, then others by file name."""
        there = [
            TaskRecord.model_validate(self.part("task", path.stem.removeprefix("task")))
            for path in sorted(self.directory.glob("task-*.json"))
        ]
        first = {name: place for place, name in enumerate(self.encodings)}
        return sorted(there, key=lambda record: first.get(record.pe, len(first)))


def task_run(
    experiment: Experiment, encodings: Sequence[str] = (), study: str = "tasks"
) -> TaskRun:
    """Return the folder of an experiment below `pe.runs.root`. Writes nothing."""
    return TaskRun(root() / study / experiment.name(), experiment, encodings)


def load(path: str | Path | None = None, study: str | None = None) -> pandas.DataFrame:
    """Return all records of tasks as a table with one row per encoding, seed and rate.

    Args:
        path: a folder of runs; None: `pe.runs.root`. study: a folder in it; None: all of them.

    Columns: study, run, task, pe, seed, learning_rate, best (whether it is the best rate), status,
    steps, parameters, chance, validation_loss, and for each split ``id_token``, ``id_exact``,
    ``id_loss`` and so on; NaN where the encoding has no such positions.

    Raises:
        RunError: a file is damaged, or there is no such folder or study.
    """
    import pandas

    folders = folders_with(["task-*.json"], path, study)
    rows = []
    for record in (record for folder in folders for record in TaskRun(folder).encoded()):
        for model in record.models:
            row = {
                "study": record.study,
                "run": record.run,
                "task": record.task,
                "pe": record.pe,
                "seed": model.seed,
                "learning_rate": model.learning_rate,
                "best": model.learning_rate == record.best_rate,
                "status": record.status,
                "steps": record.settings["steps"],
                "parameters": record.parameters,
                "chance": record.chance,
                "validation_loss": model.validation.loss,
            }
            for split, answers in model.splits.items():
                if answers is not None:
                    row[f"{split}_token"] = answers.tokens_right / answers.tokens
                    row[f"{split}_exact"] = answers.examples_right / answers.examples
                    row[f"{split}_loss"] = answers.loss
            rows.append(row)
    # Every column is there even without a record; those of splits are as far as recorded.
    columns = list(dict.fromkeys([*COLUMNS, *(key for row in rows for key in row)]))
    return pandas.DataFrame(rows, columns=columns)
