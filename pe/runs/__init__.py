"""The record of a run: the only way results reach the tables, the figures and the book.

    runs/<study>/<run>/run.json          what was run and what came of it (schemas/run.json)
                       metrics.jsonl     one object a logged step
                       evaluation.json   quality by context length (schemas/evaluation.json)

Records are validated when they are written and when they are read, written atomically, and never
skipped when damaged: whoever reads a folder is told the path of each file that is not right.
Imports no torch, so that the book builds without it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema

if TYPE_CHECKING:
    import pandas

    from pe.training.recipe import Recipe

SCHEMA_VERSION = 1
COLUMNS = (
    "study", "run", "pe", "seed", "status", "recipe", "config_hash", "steps", "tokens",
    "parameters", "tokens_per_second", "mfu", "peak_memory_gib", "wall_seconds", "final_loss",
    "validation_loss", "context_length", "start_from", "start_step", "commit", "directory",
)  # fmt: skip
FILES = ("run.json", "metrics.jsonl", "evaluation.json")
METRIC_COLUMNS = (
    "step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu", "seconds",
    "validation_loss",
)  # fmt: skip


class RunError(ValueError):
    """A record is damaged, missing, or does not fit its schema."""


class RunBusy(RunError):
    """Another process is writing this run."""


def root() -> Path:
    """Where records live: ``$PE_RUNS``, else ``runs/`` of the checkout, else ``./runs``."""
    if os.environ.get("PE_RUNS"):
        return Path(os.environ["PE_RUNS"]).resolve()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "notebooks").is_dir():
        return checkout / "runs"
    return Path.cwd() / "runs"


@functools.cache
def schema(name: str) -> dict[str, Any]:
    """The JSON schema ``"run"`` or ``"evaluation"``."""
    path = Path(__file__).parent / "schemas" / f"{name}.json"
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def _validated(name: str, value: Any, path: Path) -> dict[str, Any]:
    version = value.get("schema") if isinstance(value, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunError(
            f"{path}: is in format {version}, and this version of pe knows formats up to "
            f"{SCHEMA_VERSION}; update pe to read it"
        )
    errors = sorted(
        jsonschema.Draft202012Validator(schema(name)).iter_errors(value), key=lambda e: e.json_path
    )
    if errors:
        first = errors[0]
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        raise RunError(f"{path}: {first.json_path}: {first.message}{more}")
    return value  # type: ignore[no-any-return]


def _read_json(name: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such record") from None
    except (OSError, ValueError) as error:  # not UTF-8, not JSON, not a number
        raise RunError(f"{path}: damaged record ({error})") from error
    return _validated(name, value, path)


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old text or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _write_json(name: str, path: Path, value: dict[str, Any]) -> None:
    _validated(name, value, path)
    try:
        text = json.dumps(value, indent=1, allow_nan=False)
    except ValueError as error:  # NaN or infinity
        raise RunError(f"{path}: not written, a value in it is no number ({error})") from error
    write_atomically(path, text + "\n")


class Run:
    """One run's folder. ``Run(directory)`` neither reads nor creates anything."""

    notebook = "train.ipynb"
    """Name of the executed notebook in the folder, whichever notebook made the run."""

    def __init__(self, directory: str | Path, recipe: Recipe | None = None) -> None:
        self.directory = Path(directory)
        self._recipe = recipe

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    @property
    def name(self) -> str:
        """Folder name: encoding, seed, configuration hash."""
        return self.directory.name

    @property
    def study(self) -> str:
        """Name of the folder above."""
        return self.directory.parent.name

    @property
    def records(self) -> Path:
        """The folder of all studies, ``runs/``."""
        return self.directory.parent.parent

    @property
    def recipe(self) -> Recipe:
        """The recipe this run was opened with, or the recorded one."""
        if self._recipe is None:
            from pe.training.recipe import Recipe

            self._recipe = Recipe.from_dict(self.read()["recipe"])
        return self._recipe

    @property
    def checkpoint(self) -> Path:
        """The trained model in Hugging Face format (git-ignored)."""
        return self.directory / "checkpoint"

    def exists(self) -> bool:
        """Whether a record has been written."""
        return (self.directory / "run.json").exists()

    def read(self) -> dict[str, Any]:
        """run.json, validated. RunError names the file if it is missing or damaged."""
        return _read_json("run", self.directory / "run.json")

    def write(self, record: dict[str, Any]) -> None:
        """Validate and replace run.json."""
        _write_json("run", self.directory / "run.json", record)

    def update(self, **changes: Any) -> dict[str, Any]:
        """Change some fields of run.json and return the new record."""
        record = self.read() | changes
        self.write(record)
        return record

    def fail(self, reason: str, status: str = "failed") -> None:
        """Record that the run ended without a result, and why."""
        from pe.runs.provenance import now, start_record

        record = self.read() if self.exists() else start_record(self)
        self.write(record | {"status": status, "reason": reason, "finished": now()})

    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json, validated, or None when the run has not been evaluated."""
        path = self.directory / "evaluation.json"
        return _read_json("evaluation", path) if path.exists() else None

    def write_evaluation(self, evaluation: dict[str, Any]) -> None:
        """Validate and replace evaluation.json."""
        _write_json("evaluation", self.directory / "evaluation.json", evaluation)

    def part(self, name: str, suffix: str = "") -> dict[str, Any] | None:
        """Another part of the record, ``<name><suffix>.json``, validated; None if there is none."""
        path = self.directory / f"{name}{suffix}.json"
        return _read_json(name, path) if path.exists() else None

    def write_part(self, name: str, value: dict[str, Any], suffix: str = "") -> None:
        """Validate and replace ``<name><suffix>.json``."""
        _write_json(name, self.directory / f"{name}{suffix}.json", value)

    def metric_lines(self, *, drop_torn_end: bool = False) -> list[dict[str, Any]]:
        """metrics.jsonl as it stands.

        Args:
            drop_torn_end: leave out a last line without an end, which a process that was killed
                while it wrote leaves behind.

        Raises:
            RunError: names the file and the number of a line that is not right.
        """
        path = self.directory / "metrics.jsonl"
        if not path.exists():
            return []
        try:
            texts = path.read_text().split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{path}: damaged record ({error})") from error
        torn = texts.pop()
        if torn and not drop_torn_end:
            texts.append(torn)
        lines = []
        for number, text in enumerate(texts, 1):
            try:
                line = json.loads(text, parse_constant=_refuse_constant)
                if not isinstance(line["step"], int):
                    raise TypeError("step is not a whole number")
            except (ValueError, TypeError, KeyError) as error:
                raise RunError(f"{path}: line {number} is damaged ({error})") from error
            lines.append(line)
        return lines

    def metrics(self) -> pandas.DataFrame:
        """metrics.jsonl as a table; columns that a line lacks are NaN."""
        import pandas

        return pandas.DataFrame(self.metric_lines(), columns=list(METRIC_COLUMNS))

    @contextlib.contextmanager
    def lock(self, name: str = ".lock") -> Iterator[None]:
        """Hold the run's folder; a second process gets RunBusy. A dead process holds nothing."""
        import fcntl  # not on Windows, where records can be read all the same

        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / name, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                holder = file.read().strip() or "another process"
                raise RunBusy(
                    f"{self.directory} is being written by {holder}; wait for it, stop it, or "
                    "choose another study or seed"
                ) from None
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def busy(self) -> str | None:
        """The message of RunBusy if another process holds the folder, else None."""
        if not (self.directory / ".lock").exists():
            return None
        try:
            with self.lock():
                return None
        except RunBusy as error:
            return str(error)


def find(path: str | Path | None = None, study: str | None = None) -> list[Run]:
    """All runs below ``path`` (default `root`), in order of folder name.

    A folder that holds any file of a record counts, so that a lost run.json is noticed.
    """
    base = Path(path) if path is not None else root()
    if not base.is_dir():
        raise RunError(f"{base}: there is no such folder of runs")
    folders = {found.parent for name in FILES for found in base.glob(f"{study or '*'}/*/{name}")}
    return [Run(folder) for folder in sorted(folders)]


def load(path: str | Path | None = None, study: str | None = None) -> pandas.DataFrame:
    """Every record below ``path`` as a table, one row a run.

    Columns: study, run, pe, seed, status, recipe, config_hash, steps, tokens, parameters,
    tokens_per_second, mfu, peak_memory_gib, wall_seconds, final_loss, validation_loss,
    context_length, start_from and start_step (the run a converted one began with, and its step, or
    None), commit, directory, and perplexities by tokens (``ppl@512``) and by multiples of the
    training context (``ppl@2x``).

    Raises:
        RunError: names the path of every damaged record; none is skipped.
    """
    import pandas

    rows, damaged = [], []
    for run in find(path, study):
        try:
            rows.append(_row(run))
        except RunError as error:
            damaged.append(str(error))
    if damaged:
        raise RunError("damaged records:\n" + "\n".join(damaged))
    # Every column is there even if no run has a value for it, perplexities as far as recorded.
    columns = list(dict.fromkeys([*COLUMNS, *(key for row in rows for key in row)]))
    return pandas.DataFrame(rows, columns=columns)


def _row(run: Run) -> dict[str, Any]:
    record, evaluation = run.read(), run.evaluation()
    # Nobody has tidied up yet after a run that was killed, so its last line may be torn.
    run.metric_lines(drop_torn_end=record["status"] == "running")
    training, model = record["training"] or {}, record["model"] or {}
    length = record["recipe"]["context_length"]
    row = {key: record[key] for key in ("study", "run", "pe", "seed", "status", "config_hash")}
    row["recipe"] = record["recipe"]["name"]
    for key in (
        "steps", "tokens", "tokens_per_second", "mfu", "peak_memory_gib", "wall_seconds",
        "final_loss", "validation_loss",
    ):  # fmt: skip
        row[key] = training.get(key)
    row |= {"parameters": model.get("parameters"), "context_length": length}
    parent = record.get("parent")
    row["start_from"] = None if parent is None else f"{parent['study']}/{parent['run']}"
    row["start_step"] = None if parent is None else parent["step"]
    row |= {"commit": record["code"]["commit"], "directory": str(run.directory)}
    for at, cell in (evaluation or {}).get("perplexity", {}).items():
        row[f"ppl@{at}"] = cell["value"]
        if int(at) % length == 0:
            row[f"ppl@{int(at) // length}x"] = cell["value"]
    return row
