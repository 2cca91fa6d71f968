"""Describe the code, the machine and the command, for records. Torch is imported only if needed."""

from __future__ import annotations

import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pe._version import __version__

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "torch", "transformers", "accelerate", "datasets", "tokenizers", "numpy", "papermill",
)  # fmt: skip


def now() -> str:
    """Return the time in ISO 8601, UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def command() -> str | None:
    """Return the command line of this process, or the one that papermill or a study passed on.

    None in the kernel of a notebook that is executed by hand.
    """
    if os.environ.get("PE_COMMAND"):
        return os.environ["PE_COMMAND"]
    name = Path(sys.argv[0]).name
    if name == "ipykernel_launcher.py":
        return None
    spec = getattr(sys.modules["__main__"], "__spec__", None)  # python -m MODULE has one
    words = ["python", "-m", spec.name.removesuffix(".__main__")] if spec else [name]
    return shlex.join([*words, *sys.argv[1:]])


def code() -> dict[str, Any]:
    """Describe the code of this package, in the form of `pe.runs.models.Code`.

    If the files were copied to a machine without their repository, ``$PE_COMMIT`` can name their
    commit. Whether they are unchanged is not known then, but their hash can be compared.
    """
    top = Path(__file__).resolve().parents[2]
    common = {"version": __version__, "files": _hash_of_files(top / "pe")}
    commit = git(top, "rev-parse", "HEAD") if (top / ".git").exists() else None
    if commit is None:
        told = os.environ.get("PE_COMMIT") or None
        source = "told" if told else "unknown"
        return {"commit": told, "dirty": None, "source": source, **common}
    # Records are output, so they do not count as a change. A new file in pe/ does, since it may be
    # an encoding.
    changed = git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!runs")
    added = git(top, "status", "--porcelain", "--untracked-files=all", "--", "pe")
    dirty = None if changed is None or added is None else bool(changed or added)
    return {"commit": commit, "dirty": dirty, "source": "git", **common}


def git(top: Path, *arguments: str) -> str | None:
    """Return the output of git, or None if git is missing or fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(top), *arguments], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _hash_of_files(package: Path) -> str:
    """Return SHA-256 (16 digits) of names and contents of the package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages among `PACKAGES`."""
    return {"python": platform.python_version(), **_installed()}


@functools.cache
def _installed() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def hardware() -> dict[str, Any]:
    """Return the kind and name of the device, the number of cores and the memory."""
    import psutil
    import torch

    from pe.devices import choose

    device = choose().type
    return {
        "device": device,
        "name": torch.cuda.get_device_name() if device == "cuda" else _processor(),
        "count": int(os.environ.get("WORLD_SIZE", "1")),
        "cores": cores(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": platform.platform(terse=True),
    }


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def device_name(device: torch.device) -> str:
    """Return ``cuda:1 NVIDIA H200``, or ``cpu`` and the processor's name."""
    import torch

    named = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
    return f"{device if device.type == 'cuda' else device.type} {named}"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass  # this is not Linux
    return platform.processor() or platform.machine() or "unknown"
