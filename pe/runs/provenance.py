"""What a record says about the code, the machine and the command. No torch at import."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pe
from pe.runs import SCHEMA_VERSION, Run

PACKAGES = (
    "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy", "papermill",
)  # fmt: skip


def now() -> str:
    """This moment in ISO 8601, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def start_record(run: Run) -> dict[str, Any]:
    """A valid record for a run that has done nothing yet."""
    recipe = run.recipe
    return {
        "schema": SCHEMA_VERSION,
        "study": run.study,
        "run": run.name,
        "status": "running",
        "reason": None,
        "pe": recipe.pe,
        "seed": recipe.seed,
        "recipe": recipe.to_dict(),
        "config_hash": recipe.config_hash(),
        "created": now(),
        "finished": None,
        "command": command(),
        "code": code(),
        "versions": versions(),
        "hardware": hardware(),
        "data": None,
        "model": None,
        "training": None,
    }


def command() -> str:
    """The command line; papermill hands its own down, since a kernel's says nothing."""
    if os.environ.get("PE_COMMAND"):
        return os.environ["PE_COMMAND"]
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return shlex.join(words) if words[0] != "ipykernel_launcher.py" else "a notebook"


def code() -> dict[str, Any]:
    """Commit of the checkout that holds this package, and whether it was changed since.

    A machine that gets the files without their repository can be told the commit of an unchanged
    copy in ``$PE_COMMIT``.
    """
    top = Path(__file__).resolve().parents[2]

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(top), *arguments], capture_output=True, text=True, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD") if (top / ".git").exists() else None
    if commit is None:
        told = os.environ.get("PE_COMMIT")
        dirty = None if told is None else False
        return {"commit": told, "dirty": dirty, "version": pe.__version__}
    # Records of runs are output: writing one does not make the code another. A new file in pe/
    # does, for an encoding may be such a file.
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!runs")
    added = git("status", "--porcelain", "--untracked-files=all", "--", "pe")
    known = commit is not None and changed is not None and added is not None
    return {
        "commit": commit,
        "dirty": bool(changed or added) if known else None,
        "version": pe.__version__,
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the installed packages among `PACKAGES`."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue  # not every place that trains has papermill
    return found


def hardware() -> dict[str, Any]:
    """Device, its name, cores and memory."""
    import psutil
    import torch

    from pe.devices import choose

    device = choose().type
    return {
        "device": device,
        "name": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "count": int(os.environ.get("WORLD_SIZE", "1")),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": platform.platform(terse=True),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # not Linux: the platform module's word will do
    return platform.processor() or platform.machine() or "unknown"
