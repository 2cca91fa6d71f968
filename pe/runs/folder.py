"""A folder with a record: its validated files, and the lock of the process that writes it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pe._errors import explain, one_line
from pe._files import write_atomically
from pe.runs.models import MODELS

SCHEMA_VERSION = 1
RESTORE = "restore the file, from git if it is there, or delete its folder and train once more"


class RunError(ValueError):
    """A record is damaged, missing, or does not fit its format."""


class RunBusy(RunError):
    """Another process is writing this folder; ``holder`` says which."""

    EXIT_CODE = 75
    """The exit code of a command that is refused for this reason: EX_TEMPFAIL of sysexits.h."""

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
    """Write ``path``, or a file below it, in this block.

    Args:
        errors: the exceptions that mean that it cannot be written.

    Raises:
        RunError: it cannot be written, for example because the disk is full.
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
    """Return the folder of all records: ``$PE_RUNS``, ``runs/`` of the checkout, or ``./runs``."""
    if os.environ.get("PE_RUNS"):
        return Path(os.environ["PE_RUNS"]).resolve()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "notebooks").is_dir():
        return checkout / "runs"
    return Path.cwd() / "runs"


class Folder:
    """A folder with the files of a record and a notebook; one process writes it at a time.

    ``Folder(directory)`` itself neither reads nor creates anything.
    """

    notebook = "train.ipynb"
    """Name of the executed notebook in the folder."""
    depth = 2
    """The number of levels below the folder of all studies; 2 for ``runs/STUDY/RUN``."""

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
        """Read and validate the file ``<name><suffix>.json``; return None if there is none."""
        path = self.directory / f"{name}{suffix}.json"
        return read_json(name, path) if path.exists() else None

    def write_part(self, name: str, value: Mapping[str, Any], suffix: str = "") -> None:
        """Validate and replace ``<name><suffix>.json``."""
        path = self.directory / f"{name}{suffix}.json"
        _validate(name, value, path)
        try:
            text = json.dumps(value, indent=1, allow_nan=False)
        except ValueError as error:  # NaN or infinity in a free part, such as the recipe
            raise RunError(f"{path}: not written, a value is NaN or infinite ({error})") from error
        with writing(path):
            write_atomically(path, text + "\n")

    @contextlib.contextmanager
    def lock(self, name: str = ".lock") -> Iterator[None]:
        """Hold the lock of the folder in this block; it is released if the process dies.

        Raises:
            RunBusy: another process holds it.
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

    def busy(self) -> RunBusy | None:
        """Return the error that `lock` would raise, or None, without creating the folder."""
        if not (self.directory / ".lock").exists():
            return None
        try:
            with self.lock():
                return None
        except RunBusy as error:
            return error


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


def read_json(name: str, path: Path) -> dict[str, Any]:
    """Read and validate a file of a record.

    Args:
        name: key of `pe.runs.models.MODELS`.

    Raises:
        RunError: the file is missing or damaged.
    """
    try:
        value = json.loads(path.read_text(), parse_constant=refuse_constant)
    except FileNotFoundError:
        raise RunError(f"{path}: there is no such record") from None
    except (OSError, ValueError) as error:  # not UTF-8, not JSON, not a number
        raise RunError(f"{path}: damaged record ({error}); {RESTORE}") from error
    _validate(name, value, path)
    return value  # type: ignore[no-any-return]


def refuse_constant(word: str) -> None:
    """Refuse NaN and Infinity, which no record holds; `json` calls this for them."""
    raise ValueError(f"{word} is not a number")
