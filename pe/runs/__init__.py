"""The record of a run: the only way results reach the tables, the figures and the book.

    runs/<study>/<run>/run.json          what was run and what came of it
                       metrics.jsonl     one object per logged step
                       evaluation.json   quality by context length

The fields are in `pe.runs.models`. Records are validated when they are written and when they are
read, written atomically, and never skipped when damaged: whoever reads a folder is told the path of
each file that is not right. Imports no torch, so that the book builds without it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pe._errors import explain, one_line, unknown
from pe._files import write_atomically
from pe.runs import provenance
from pe.runs.models import MODELS, Record, RunRecord, Session, Status

if TYPE_CHECKING:
    import pandas

    from pe.recipes.recipe import Recipe

SCHEMA_VERSION = 1
COLUMNS = (
    "study", "run", "pe", "seed", "status", "recipe", "config_hash", "steps", "tokens",
    "parameters", "tokens_per_second", "mfu", "peak_memory_gib", "wall_seconds", "final_loss",
    "validation_loss", "context_length", "start_from", "start_step", "commit", "directory",
)  # fmt: skip
FILES = ("run.json", "metrics.jsonl", "evaluation.json")
METRIC_COLUMNS = (
    "step", "loss", "grad_norm", "lr", "tokens", "total_tokens", "tokens_per_second", "mfu",
    "seconds", "validation_loss", "validation_perplexity",
)  # fmt: skip


RESTORE = "restore the file, from git if it is there, or delete its folder and train once more"


class RunError(ValueError):
    """A record is damaged, missing, or does not fit its format."""


class RunBusy(RunError):
    """Another process is writing this folder; ``holder`` says which."""

    EXIT_CODE = 75
    """Of a command that is refused for this reason (EX_TEMPFAIL of sysexits.h): try it later."""

    def __init__(self, directory: Path, holder: str) -> None:
        self.directory, self.holder = directory, holder
        super().__init__(
            f"{directory} is being written by {holder}; wait for it, stop it, or choose another "
            "study or seed"
        )

    def __reduce__(self) -> tuple[type, tuple[Path, str]]:
        return type(self), (self.directory, self.holder)


@contextlib.contextmanager
def writing(path: Path, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Write ``path``, or below it.

    Args:
        errors: what the writer raises where it cannot write.

    Raises:
        RunError: it could not be written, as on a full disk; says what to do.
    """
    try:
        yield
    except errors as error:
        there = next(folder for folder in (path, *path.parents) if folder.is_dir())
        raise RunError(
            f"{path} cannot be written ({one_line(error)}; "
            f"{shutil.disk_usage(there).free / 2**20:,.0f} MiB are free there); make room or "
            "change its permissions, and the same command goes on, or set PE_RUNS to another folder"
        ) from error


def root() -> Path:
    """Where records live: ``$PE_RUNS``, else ``runs/`` of the checkout, else ``./runs``."""
    if os.environ.get("PE_RUNS"):
        return Path(os.environ["PE_RUNS"]).resolve()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "notebooks").is_dir():
        return checkout / "runs"
    return Path.cwd() / "runs"


def _validate(name: str, value: Any, path: Path) -> None:
    version = value.get("schema") if isinstance(value, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise RunError(
            f"{path}: is in format {version}, and this version of pe knows formats up to "
            f"{SCHEMA_VERSION}; update pe to read it"
        )
    try:
        MODELS[name].model_validate(value)
    except ValidationError as error:
        first, *others = explain(error, "field", MODELS[name].model_fields)
        more = f" (and {len(others)} more)" if others else ""
        raise RunError(f"{path}: {first}{more}") from None


def _read_json(name: str, path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such record") from None
    except (OSError, ValueError) as error:  # not UTF-8, not JSON, not a number
        raise RunError(f"{path}: damaged record ({error}); {RESTORE}") from error
    _validate(name, value, path)
    return value  # type: ignore[no-any-return]


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no number")


class Folder:
    """A folder that one process writes at a time: a lock, an executed notebook, files of records.

    ``Folder(directory)`` neither reads nor creates anything.
    """

    notebook = "train.ipynb"
    """Name of the executed notebook in the folder."""
    depth = 2
    """Folders below the folder of all studies: ``runs/STUDY/RUN``."""

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.directory)!r})"

    @property
    def name(self) -> str:
        """Folder name; of a run: encoding, seed, configuration hash."""
        return self.directory.name

    @property
    def study(self) -> str:
        """Name of the study that the folder belongs to."""
        return self.directory.parts[-self.depth]

    @property
    def records(self) -> Path:
        """The folder of all studies, ``runs/``."""
        return self.directory.parents[self.depth - 1]

    def part(self, name: str, suffix: str = "") -> dict[str, Any] | None:
        """A file of the record, ``<name><suffix>.json``, validated; None if there is none."""
        path = self.directory / f"{name}{suffix}.json"
        return _read_json(name, path) if path.exists() else None

    def write_part(self, name: str, value: Mapping[str, Any], suffix: str = "") -> None:
        """Validate and replace ``<name><suffix>.json``."""
        path = self.directory / f"{name}{suffix}.json"
        _validate(name, value, path)
        try:
            text = json.dumps(value, indent=1, allow_nan=False)
        except ValueError as error:  # NaN or infinity in a free part, such as the recipe
            raise RunError(f"{path}: not written, a value in it is no number ({error})") from error
        with writing(path):
            write_atomically(path, text + "\n")

    @contextlib.contextmanager
    def lock(self, name: str = ".lock") -> Iterator[None]:
        """Hold the folder; a second process gets RunBusy. A dead process holds nothing.

        Raises:
            RunError: the folder cannot be written.
        """
        from filelock import FileLock, Timeout

        path = self.directory / name
        with contextlib.ExitStack() as held:
            with writing(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)
                try:
                    held.enter_context(FileLock(path).acquire(timeout=0))
                except Timeout:
                    holder = path.read_text().strip() or "another process"
                    raise RunBusy(self.directory, holder) from None
                path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
            yield

    def busy(self, name: str = ".lock") -> RunBusy | None:
        """The refusal that `lock` would meet, or None. Creates nothing."""
        if not (self.directory / name).exists():
            return None
        try:
            with self.lock(name):
                return None
        except RunBusy as error:
            return error


class Run(Folder):
    """One run's folder and its record."""

    def __init__(self, directory: str | Path, recipe: Recipe | None = None) -> None:
        super().__init__(directory)
        self._recipe = recipe

    @property
    def recipe(self) -> Recipe:
        """The recipe this run was opened with, or the recorded one."""
        if self._recipe is None:
            from pe.recipes.recipe import Recipe

            self._recipe = Recipe.from_dict(self.record.recipe)
        return self._recipe

    @property
    def checkpoint(self) -> Path:
        """The trained model in Hugging Face format (git-ignored)."""
        return self.directory / "checkpoint"

    @property
    def best(self) -> Path:
        """The same of the step with the least validation loss, where the recipe has keep_best."""
        return self.directory / "best"

    @property
    def traceback(self) -> Path:
        """Where Python was when the run failed, in full; run.json has the reason in one line."""
        return self.directory / "traceback.txt"

    def keep_traceback(self, error: BaseException) -> None:
        """Write the traceback of ``error`` into the folder, and its path into a note of ``error``."""
        path, here = self.traceback, Path.cwd()
        try:
            path.write_text("".join(traceback.format_exception(error)))
        except OSError as second:
            error.add_note(f"and its traceback could not be written: {second}")
        else:
            shown = path.relative_to(here) if path.is_relative_to(here) else path
            error.add_note(f"traceback: {shown}")

    def exists(self) -> bool:
        """Whether a record has been written."""
        return (self.directory / "run.json").exists()

    @property
    def record(self) -> RunRecord:
        """run.json, as it is now. RunError names the file if it is missing or damaged."""
        return RunRecord.model_validate(self.read())

    def read(self) -> dict[str, Any]:
        """`record` as plain values of JSON."""
        return _read_json("run", self.directory / "run.json")

    def write(self, record: Mapping[str, Any]) -> None:
        """Validate and replace run.json."""
        self.write_part("run", record)

    def update(self, **changes: Any) -> dict[str, Any]:
        """Change some fields of run.json and return the new record."""
        record = self.read() | changes
        self.write(record)
        return record

    def start(self, devices: list[str] | None = None) -> None:
        """Write the record of a run that has done nothing yet, or goes on in this process.

        Args:
            devices: that of each process, where there are several.
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
        """Record that this process trains from after ``step`` steps on.

        Sessions that began there or later led to nothing that is kept, and are forgotten.
        """
        old = self.record
        session = Session(created=provenance.now(), step=step, code=old.code, hardware=old.hardware)
        sessions = [*(s for s in old.sessions if s.step < step), session]
        self.update(sessions=[s.model_dump(exclude_unset=True) for s in sessions])

    def fail(self, reason: str, status: Status = "failed", signal: str | None = None) -> None:
        """Record that the run ended without a result, and why; ``signal`` is what stopped it."""
        record = self.read() if self.exists() else self._started()
        record.pop("signal", None)
        if signal:
            record["signal"] = signal
        self.write(record | {"status": status, "reason": reason, "finished": provenance.now()})

    def evaluation(self) -> dict[str, Any] | None:
        """evaluation.json, validated, or None when the run has not been evaluated."""
        return self.part("evaluation")

    def write_evaluation(self, evaluation: Mapping[str, Any]) -> None:
        """Validate and replace evaluation.json."""
        self.write_part("evaluation", evaluation)

    def metric_lines(self, *, drop_torn_end: bool = False) -> list[dict[str, Any]]:
        """metrics.jsonl, line by line.

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
            raise RunError(f"{path}: damaged record ({error}); {RESTORE}") from error
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
                raise RunError(f"{path}: line {number} is damaged ({error}); {RESTORE}") from error
            lines.append(line)
        return lines

    def metrics(self) -> pandas.DataFrame:
        """metrics.jsonl as a table; columns that a line lacks are NaN."""
        import pandas

        return pandas.DataFrame(self.metric_lines(), columns=list(METRIC_COLUMNS))


def checked(run: object) -> Run:
    """``run``, if it is one.

    Raises:
        TypeError: it is the name of an encoding, a path, or anything else.
    """
    if isinstance(run, Run):
        return run
    raise TypeError(
        f"expected a run, got {run!r}; pe.configure('rope') makes one, pe.runs.find() lists those "
        "that are recorded"
    )


def find(
    path: str | Path | None = None, study: str | None = None, *, failed: bool = False
) -> list[Run]:
    """Runs below ``path`` (default `root`), in order of folder name.

    A folder that holds any file of a record counts, so that a lost run.json is noticed, and so does
    a record that is damaged.

    Args:
        failed: also those that failed, which have nothing to show in a table.

    Raises:
        RunError: no such folder, or no such study in it; the nearest name is given.
    """
    base = Path(path) if path is not None else root()
    if not base.is_dir():
        raise RunError(f"{base}: there is no such folder of runs; pe train makes the first one")
    if study is not None and not any(folder.is_dir() for folder in base.glob(study)):
        known = sorted(p.name for p in base.iterdir() if p.is_dir() and not p.name.startswith("."))
        raise RunError(f"{unknown('study', study, known)} (in {base})")
    folders = {file.parent for name in FILES for file in base.glob(f"{study or '*'}/*/{name}")}
    runs = [Run(folder) for folder in sorted(folders)]
    return runs if failed else [run for run in runs if not _has_failed(run)]


def _has_failed(run: Run) -> bool:
    try:
        return bool(run.read()["status"] == "failed")
    except RunError:  # whoever reads the record is told
        return False


def load(
    path: str | Path | None = None, study: str | None = None, *, failed: bool = False
) -> pandas.DataFrame:
    """Every record below ``path`` as a table, one row per run.

    Runs that failed are left out unless ``failed`` asks for them.

    Columns: study, run, pe, seed, status, recipe, config_hash, steps, tokens, parameters,
    tokens_per_second, mfu, peak_memory_gib, wall_seconds, final_loss, validation_loss,
    context_length, start_from and start_step (the run a converted one began with, and its step, or
    None), commit (every one that trained, with commas), directory, and perplexities and shares of
    prompts answered by tokens (``ppl@512``, ``passkey@512``) and by multiples of the training
    context (``ppl@2x``).

    Raises:
        RunError: names the path of every damaged record; none is skipped.
    """
    import pandas

    rows, damaged = [], []
    for run in find(path, study, failed=failed):
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
    record, evaluation = run.record, run.evaluation() or {}
    # Nobody has tidied up yet after a run that was killed, so its last line may be torn.
    lines = run.metric_lines(drop_torn_end=record.status == "running")
    if record.status == "complete" and record.training and record.training.steps and not lines:
        raise RunError(f"{run.directory / 'metrics.jsonl'}: there is no such record; {RESTORE}")
    length, parent = record.recipe["context_length"], record.parent
    row: dict[str, Any] = {
        "study": record.study,
        "run": record.run,
        "pe": record.pe,
        "seed": record.seed,
        "status": record.status,
        "recipe": record.recipe["name"],
        "config_hash": record.config_hash,
        "parameters": record.model and record.model.parameters,
        "context_length": length,
        "start_from": parent and f"{parent.study}/{parent.run}",
        "start_step": parent and parent.step,
        "commit": ", ".join(record.commits) or None,
        "directory": str(run.directory),
    }
    row |= (
        record.training.model_dump(exclude={"passes", "resumes", "best"}) if record.training else {}
    )
    cells = {f"ppl@{at}": cell["value"] for at, cell in evaluation.get("perplexity", {}).items()}
    for part in (evaluation[name] for name in ("retrieval", "needles") if evaluation.get(name)):
        samples = part.get("samples", 1)
        for task, lengths in part["tasks"].items():
            cells |= {f"{task}@{at}": _share(cell, samples) for at, cell in lengths.items()}
    for name, value in cells.items():
        kind, _, at = name.partition("@")
        row[name] = value
        if int(at) % length == 0:
            row[f"{kind}@{int(at) // length}x"] = value
    return row


def _share(cell: Mapping[str, Any], samples: int) -> float | None:
    """The share of a retrieval task's prompts that are wholly right; None if none was asked.

    Records hold ``samples`` prompts per depth (``exact``), or each prompt's hit (``prompts``).
    """
    hits = cell.get("prompts", cell.get("exact"))
    return None if hits is None else sum(map(int, hits)) / (len(hits) * samples)
