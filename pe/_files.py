"""Files that come with the package, and files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def shipped(folder: str) -> Path:
    """``notebooks`` or ``studies``: the copy in an installed package, or those of the checkout."""
    package = Path(__file__).resolve().parent
    copy = package / "shipped" / folder
    return copy if copy.is_dir() else package.parent / folder


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old text or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
