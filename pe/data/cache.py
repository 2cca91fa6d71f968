"""Cache entries: directories that are complete and undamaged, or not used at all.

An entry is written in a temporary directory, sealed with the size and CRC-32 of every file, and
renamed into place; a reader checks the seal before anything is read. A lock file per key makes two
processes at once do the work once.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import secrets
import shutil
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pe._files import write_atomically

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger("pe.data")
OnProgress = Callable[[str], None]

FORMAT = 2
"""Version of everything that decides the bytes of an entry: reading, splitting, tokenising,
layout. Raise it with any change to these, and old entries are simply no longer found."""

SEAL = "seal.json"


def cache_root(path: str | Path | None = None) -> Path:
    """Return the cache directory, made if missing: ``path``, else $PE_CACHE, else ~/.cache/pe."""
    root = Path(path or os.environ.get("PE_CACHE") or "~/.cache/pe").expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the cache directory {root} cannot be made ({error.strerror}): set PE_CACHE to a "
            "directory that can be written"
        ) from error
    return root


def key_of(*parts: object) -> str:
    """Return 16 hex digits that stand for ``parts`` (anything JSON can hold) and FORMAT."""
    text = json.dumps([FORMAT, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Hold the lock of ``key``; waits, and says so, while another process holds it."""
    from filelock import FileLock, Timeout

    folder = root / "locks"
    folder.mkdir(exist_ok=True)
    lock = FileLock(folder / f"{key}.lock")
    try:
        lock.acquire(timeout=0.2)
    except Timeout:
        log.warning("another process prepares the same data; waiting for it")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _crc(path: Path) -> int:
    value = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            value = zlib.crc32(block, value)
    return value


def _files(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name != SEAL)


def damage(directory: Path) -> str | None:
    """Return what is wrong with an entry, or None when every file is as it was written."""
    try:
        seal = json.loads((directory / SEAL).read_text())
        expected: dict[str, list[int]] = seal["files"]
        for name, (size, crc) in expected.items():
            path = directory / name
            actual = path.stat().st_size
            if actual != size:
                return f"{name} has {actual:,} bytes, not {size:,}"
            if _crc(path) != crc:
                return f"the content of {name} changed"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"{SEAL} is unreadable ({error})"
    return None


def usable(directory: Path) -> bool:
    """Whether an entry is there and whole; says so when it is damaged."""
    if not directory.is_dir():
        return False
    wrong = damage(directory)
    if wrong:
        log.warning("the cache entry %s is damaged (%s); making it again", directory, wrong)
    return wrong is None


@contextmanager
def building(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that becomes ``directory``, sealed, if the block succeeds.

    The caller holds the entry's lock: leftovers of killed processes are removed first.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    for leftover in directory.parent.glob(f".{directory.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = scratch(directory.parent, f".{directory.name}.")
    try:
        yield work
        files = {p.relative_to(work).as_posix(): [p.stat().st_size, _crc(p)] for p in _files(work)}
        (work / SEAL).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1))
        if directory.exists():  # a damaged one
            shutil.rmtree(directory)
        work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def scratch(parent: Path, prefix: str) -> Path:
    """Make a directory nobody else has; with the user's umask, as a cache may be shared."""
    path = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file so that a reader sees the old one or the new one, whole."""
    write_atomically(path, json.dumps(value, indent=1))


def read_json(path: Path) -> dict[str, object] | None:
    """Return the JSON object in ``path``, or None when it is missing or not one."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def progress_bar(name: str, total: int | None, on_progress: OnProgress | None = None) -> tqdm:
    """A bar of bytes on a terminal, or as lines of text for ``on_progress``."""
    from tqdm import tqdm

    file = None if on_progress is None else _Lines(on_progress)
    return tqdm(
        desc=name, total=total, unit="B", unit_scale=True, file=file, delay=file is None,
        disable=None if file is None else False,
    )  # fmt: skip


class _Lines(io.StringIO):
    """Hands on what a bar writes."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self.on_progress = on_progress

    def write(self, text: str) -> int:
        if line := text.strip():
            self.on_progress(line)
        return len(text)
