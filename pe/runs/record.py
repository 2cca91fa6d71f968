"""The folder of one run: its record, its metrics and its evaluation."""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe.runs import provenance
from pe.runs.folder import RESTORE, SCHEMA_VERSION, Folder, RunError, read_json, refuse_constant
from pe.runs.models import RunRecord, Session, Status

if TYPE_CHECKING:
    import pandas

    from pe.recipes.recipe import Recipe

METRIC_COLUMNS = (
    "step", "loss", "grad_norm", "lr", "tokens", "total_tokens", "tokens_per_second", "mfu",
    "seconds", "validation_loss", "validation_perplexity",
)  # fmt: skip


class Run(Folder):
    """One run's folder and its record."""

    def __init__(self, directory: str | Path, recipe: Recipe | None = None) -> None:
        super().__init__(directory)
        self._recipe = recipe

    @property
    def recipe(self) -> Recipe:
        """The recipe with which this object was made, or else the recorded one.

        Raises:
            RunError: the recorded one is damaged.
        """
        if self._recipe is None:
            from pe.recipes.recipe import Recipe

            recorded = self.record.recipe
            try:
                self._recipe = Recipe.from_dict(recorded)
            except ValueError as error:
                raise RunError(
                    f"{self.directory / 'run.json'}: recipe: {error}; {RESTORE}"
                ) from error
        return self._recipe

    @property
    def checkpoint(self) -> Path:
        """The trained model in Hugging Face format (git-ignored)."""
        return self.directory / "checkpoint"

    @property
    def best(self) -> Path:
        """The model with the least validation loss, if the recipe has keep_best."""
        return self.directory / "best"

    @property
    def traceback(self) -> Path:
        """The file with the traceback of a failed run; run.json has the reason in one line."""
        return self.directory / "traceback.txt"

    def keep_traceback(self, error: BaseException) -> None:
        """Write the traceback of ``error`` into the folder, and add its path to the error."""
        path, here = self.traceback, Path.cwd()
        try:
            path.write_text("".join(traceback.format_exception(error)))
        except OSError as second:
            error.add_note(f"and its traceback could not be written: {second}")
        else:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            error.add_note(f"traceback: {shown}")

    def exists(self) -> bool:
        """Return whether a record has been written."""
        return (self.directory / "run.json").exists()

    @property
    def record(self) -> RunRecord:
        """The present content of run.json.

        Raises:
            RunError: the file is missing or damaged.
        """
        return RunRecord.model_validate(self.read())

    def read(self) -> dict[str, Any]:
        """Return `record` as plain JSON values."""
        return read_json("run", self.directory / "run.json")

    def write(self, record: Mapping[str, Any]) -> None:
        """Validate and replace run.json."""
        self.write_part("run", record)

    def update(self, **changes: Any) -> dict[str, Any]:
        """Change some fields of run.json and return the new record."""
        record = self.read() | changes
        self.write(record)
        return record

    def start(self, devices: list[str] | None = None) -> None:
        """Write the record of a run that begins or continues in this process.

        Args:
            devices: the device of each process, if there are several.
        """
        record = self._started()
        if devices is not None:
            record["hardware"]["devices"] = devices
        self.write(record)
        self.traceback.unlink(missing_ok=True)

    def _started(self) -> dict[str, Any]:
        from pe.recipes.command import notebook_command, notebook_parameters

        recipe = self.recipe
        record: dict[str, Any] = {
            "schema": SCHEMA_VERSION,
            "study": self.study,
            "run": self.name,
            "status": "running",
            "reason": None,
            "pe": recipe.pe,
            "seed": recipe.seed,
            "recipe": recipe.to_dict(),
            "config_hash": recipe.config_hash(),
            "created": provenance.now(),
            "finished": None,
            "command": provenance.command()
            or notebook_command(notebook_parameters(recipe, self.study)),
            "code": provenance.code(),
            "versions": provenance.versions(),
            "hardware": provenance.hardware(),
            "sessions": [],
            "data": None,
            "model": None,
            "training": None,
        }
        if self.exists():
            old = self.record
            record["created"] = old.created
            record["sessions"] = [s.model_dump(exclude_unset=True) for s in old.all_sessions()]
            if old.sources:
                record["sources"] = old.sources
        return record

    def begin_session(self, step: int) -> None:
        """Record that this process continues the training after ``step`` steps.

        Sessions that began at this step or later are removed, because none of their steps remain.
        """
        old = self.record
        session = Session(created=provenance.now(), step=step, code=old.code, hardware=old.hardware)
        sessions = [*(s for s in old.sessions if s.step < step), session]
        self.update(sessions=[s.model_dump(exclude_unset=True) for s in sessions])

    def fail(self, reason: str, status: Status = "failed", signal: str | None = None) -> None:
        """Record why the run ended without a result, and the name of the signal that stopped it."""
        record = self.read() if self.exists() else self._started()
        record.pop("signal", None)
        if signal:
            record["signal"] = signal
        self.write(record | {"status": status, "reason": reason, "finished": provenance.now()})

    def evaluation(self) -> dict[str, Any] | None:
        """Read and validate evaluation.json. Return None if the run has not been evaluated."""
        return self.part("evaluation")

    def write_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Validate and replace evaluation.json."""
        self.write_part("evaluation", evaluation)

    def metric_lines(self, *, drop_torn_end: bool = False) -> list[dict[str, Any]]:
        """Return the lines of metrics.jsonl.

        Args:
            drop_torn_end: leave out an incomplete last line, which a process leaves if it is killed
                while it writes.

        Raises:
            RunError: a line is damaged; the message has the file and the number of the line.
        """
        path = self.directory / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            texts = path.read_text().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: damaged record ({error}); {RESTORE}") from error
        torn = texts.pop()
        if torn and not drop_torn_end:
            texts.append(torn)
        lines = []
        for number, text in enumerate(texts, 1):
            try:
                line = json.loads(text, parse_constant=refuse_constant)
                if not isinstance(line["step"], int):
                    raise TypeError("step is not a whole number")
            except (ValueError, TypeError, KeyError) as error:
                raise RunError(f"{path}: line {number} is damaged ({error}); {RESTORE}") from error
            lines.append(line)
        return lines

    def metrics(self) -> pandas.DataFrame:
        """Return metrics.jsonl as a table, with NaN where a line lacks a column."""
        import pandas

        return pandas.DataFrame(self.metric_lines(), columns=list(METRIC_COLUMNS))


def checked(run: object) -> Run:
    """Return ``run`` if it is a run.

    Raises:
        TypeError: it is the name of an encoding, a path, or anything else.
    """
    if isinstance(run, Run):
        return run
    raise TypeError(
        f"expected a run, got {run!r}; pe.configure('rope') makes one, pe.runs.find() lists those "
        "that are recorded"
    )
