"""Cache entries: directories that are used only if they are complete and undamaged.

An entry is written into a temporary directory together with the size and CRC-32 of every file (the
seal), and then renamed. A reader checks the seal first. A lock file per key keeps two processes
from doing the same work at the same time.
"""

from __future__ import annotations

import errno
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
"""Version of the code that determines the content of an entry: reading, splitting, tokenising,
layout. A change of this code must raise it, so that entries of older versions are not used."""

SEAL = "seal.json"


def cache_root(path: str | Path | None = None) -> Path:
    """Return the cache directory, and create it if it is missing.

    It is ``path``, or else $PE_CACHE, or else ~/.cache/pe.

    Raises:
        ValueError: the directory cannot be created.
    """
    root = Path(path or os.environ.get("PE_CACHE") or "~/.cache/pe").expanduser().absolute()
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"the cache directory {root} cannot be made ({error.strerror}): set PE_CACHE to a "
            "directory that can be written"
        ) from error
    return root


@contextmanager
def written(root: Path) -> Iterator[None]:
    """Write below ``root``, the directory of the cache, in this block.

    Raises:
        ValueError: the disk is full, or the directory cannot be written.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        below = error.filename is not None and Path(str(error.filename)).is_relative_to(root)
        if not (full or below):
            raise
        free = shutil.disk_usage(root).free / 2**20
        raise ValueError(
            f"the cache directory {root} cannot be written ({error.strerror}; {free:,.0f} MiB are "
            "free there): make room or change its permissions, and the same command goes on, or "
            "set PE_CACHE to another directory"
        ) from error


def key_of(*parts: object) -> str:
    """Return 16 hex digits of a hash of ``parts`` (anything that JSON can hold) and `FORMAT`."""
    text = json.dumps([FORMAT, *parts], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@contextmanager
def locked(root: Path, key: str) -> Iterator[None]:
    """Hold the lock of ``key`` in this block.

    If another process holds it, log a warning and wait.
    """
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
    """Return what is wrong with an entry, or None if every file is as it was written."""
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
    """Return whether an entry exists and is undamaged; log a warning if it is damaged."""
    if not directory.is_dir():
        return False
    wrong = damage(directory)
    if wrong:
        log.warning("the cache entry %s is damaged (%s); making it again", directory, wrong)
    return wrong is None


@contextmanager
def building(directory: Path) -> Iterator[Path]:
    """Yield a temporary directory that is sealed and renamed ``directory`` if the block succeeds.

    What killed processes have left is removed first, so the caller must hold the entry's lock.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    for leftover in directory.parent.glob(f".{directory.name}.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    work = scratch(directory.parent, f".{directory.name}.")
    try:
        yield work
        files = {p.relative_to(work).as_posix(): [p.stat().st_size, _crc(p)] for p in _files(work)}
        (work / SEAL).write_text(json.dumps({"format": FORMAT, "files": files}, indent=1))
        if directory.exists():  # a damaged entry
            shutil.rmtree(directory)
        work.rename(directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def scratch(parent: Path, prefix: str) -> Path:
    """Create a directory with a new name, and with the user's umask, as a cache may be shared."""
    path = parent / f"{prefix}{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir()
    return path


def write_json(path: Path, value: object) -> None:
    """Write a small JSON file so that a reader sees the old content or the new one."""
    write_atomically(path, json.dumps(value, indent=1))


def read_json(path: Path) -> dict[str, object] | None:
    """Return the JSON object in ``path``, or None if the file is missing or holds no object."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def progress_bar(name: str, total: int | None, on_progress: OnProgress | None = None) -> tqdm:
    """Return a progress bar that counts bytes.

    Args:
        name: is written before the bar. total: bytes, None if it is not known.
        on_progress: called with each state of the bar as a line of text. None: show it on a
            terminal.
    """
    from tqdm import tqdm

    file = None if on_progress is None else _Lines(on_progress)
    return tqdm(
        desc=name, total=total, unit="B", unit_scale=True, file=file, delay=file is None,
        disable=None if file is None else False,
    )  # fmt: skip


class _Lines(io.StringIO):
    """A file for a progress bar that calls a function with every line."""

    def __init__(self, on_progress: OnProgress) -> None:
        super().__init__()
        self.on_progress = on_progress

    def write(self, text: str) -> int:
        if line := text.strip():
            self.on_progress(line)
        return len(text)
