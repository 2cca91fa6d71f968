"""Which checkpoints a run has. No torch."""

from __future__ import annotations

import re
from pathlib import Path

KEPT = "kept"


def checkpoints(directory: Path) -> list[Path]:
    """Whole checkpoints, oldest first."""
    found = [p for p in directory.glob("step-*") if re.fullmatch(r"step-\d+", p.name)]
    return sorted(p for p in found if (p / "state.json").exists())


def kept_steps(directory: Path) -> list[int]:
    """Steps whose weights are kept for good."""
    return [int(path.name.removeprefix("step-")) for path in checkpoints(directory / KEPT)]


def folder_of(directory: Path, step: int) -> Path | None:
    """A checkpoint of this step, kept or among the last ones, or None."""
    for folder in (directory / KEPT, directory):
        found = folder / f"step-{step:06d}"
        if found in checkpoints(folder):
            return found
    return None
