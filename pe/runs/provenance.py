"""The code, the machine and the command, as a record holds them. Imports no torch at first."""

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
    """Return the command line, or the one that papermill or a study passed on.

    None in the kernel of a notebook that somebody carries out by hand, whose line says nothing.
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
    """Return the code that runs here, in the form of `pe.runs.models.Code`.

    A machine that gets the files without their repository can be told their commit in
    ``$PE_COMMIT``; whether they are unchanged is not known there, but `files` can be compared.
    """
    top = Path(__file__).resolve().parents[2]
    common = {"version": __version__, "files": _hash_of_files(top / "pe")}
    commit = git(top, "rev-parse", "HEAD") if (top / ".git").exists() else None
    if commit is None:
        told = os.environ.get("PE_COMMIT") or None
        source = "told" if told else "unknown"
        return {"commit": told, "dirty": None, "source": source, **common}
    # Records of runs are output: writing one does not make the code another. A new file in pe/
    # does, for an encoding may be such a file.
    changed = git(top, "status", "--porcelain", "--untracked-files=no", "--", ".", ":!runs")
    added = git(top, "status", "--porcelain", "--untracked-files=all", "--", "pe")
    dirty = None if changed is None or added is None else bool(changed or added)
    return {"commit": commit, "dirty": dirty, "source": "git", **common}


def git(top: Path, *arguments: str) -> str | None:
    """Return git's answer, or None if there is no git or no answer."""
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
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # such as papermill
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
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "platform": platform.platform(terse=True),
    }


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
        pass  # not Linux: the platform module's word will do
    return platform.processor() or platform.machine() or "unknown"
