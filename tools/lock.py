"""Write requirements-lock.txt: one exact version of everything, for CPython 3.11 and 3.12.

    python tools/lock.py python3.11 python3.12

For the first interpreter pip chooses versions within the bounds of pyproject.toml. The second uses
the same versions wherever possible, and a package that only one of them needs gets a marker.
Nothing is installed: `pip --dry-run` only reads metadata. The CUDA libraries are left out, because
torch itself pins them exactly and a CPU build of torch needs none.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CUDA = re.compile(r"^(nvidia-|cuda-)")
# Fixed versions: the tests and the committed records were made with them.
# The CUDA build of this torch pins this triton; with a CPU build the test extra brings it.
# The next jsonschema needs rfc3987-syntax, which builds a grammar at import: 1.4 s of CPU at each
# start of papermill and of jupyter-book.
CHOSEN = {"torch": "2.13.0", "triton": "3.7.1", "jsonschema": "4.24.1"}
# Not for every system. appnope is what ipykernel needs on macOS, where nothing is resolved here.
SYSTEMS = {"triton": "linux", "appnope": "darwin"}
ELSEWHERE = {"appnope": "0.1.4"}
HEADER = """\
# Exact versions for CPython 3.11 and 3.12, runtime and test extra, resolved on Linux x86_64.
# Written by `make lock` (tools/lock.py) from pyproject.toml; do not edit by hand.
# The CUDA libraries are not listed: a CUDA build of torch pins its own, a CPU build needs none.
# Lines for macOS are there and no Mac was: whether all of them install on one is untested.
"""


def normal(name: str) -> str:
    """Return the name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def resolve(python: str, constraints: dict[str, str]) -> tuple[str, dict[str, str]]:
    """Return the interpreter's "3.x" and the versions pip would install there, by name."""
    with tempfile.TemporaryDirectory() as folder:
        venv = Path(folder) / "venv"
        subprocess.run([python, "-m", "venv", str(venv)], check=True)
        inside = str(venv / "bin" / "python")
        # Only newer versions of pip read metadata without downloading the whole wheel.
        subprocess.run([inside, "-m", "pip", "install", "-q", "--upgrade", "pip"], check=True)
        version = subprocess.run(
            [inside, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        held = Path(folder) / "held.txt"
        pins = {**constraints, **CHOSEN}
        held.write_text("".join(f"{name}=={number}\n" for name, number in pins.items()))
        report = Path(folder) / "report.json"
        command = [inside, "-m", "pip", "install", "-q", "--dry-run", "--ignore-installed"]
        command += ["--report", str(report), "-c", str(held)]
        # The first release of each minor version: later ones accept what it accepts.
        command += ["--python-version", f"{version}.0", "--only-binary", ":all:"]
        command += [f"{ROOT}[test]", "setuptools", "wheel"]
        subprocess.run(command, check=True)
        found = {}
        for item in json.loads(report.read_text())["install"]:
            name, number = normal(item["metadata"]["name"]), item["metadata"]["version"]
            if name != "pe-encodings" and not CUDA.match(name):
                found[name] = number.split("+")[0]  # "+cpu" says how it was built, not which it is
        return version, found


def merge(resolved: list[tuple[str, dict[str, str]]]) -> list[str]:
    """Return the lock's lines: plain where the interpreters agree, marked where they do not."""
    lines = []
    resolved = [(python, ELSEWHERE | pins) for python, pins in resolved]
    for name in sorted({name for _, pins in resolved for name in pins}):
        versions = {pins.get(name) for _, pins in resolved}
        if len(versions) == 1:
            system = f' ; sys_platform == "{SYSTEMS[name]}"' if name in SYSTEMS else ""
            lines.append(f"{name}=={versions.pop()}{system}")
            continue
        lines += [
            f'{name}=={pins[name]} ; python_version == "{python}"'
            for python, pins in resolved
            if name in pins
        ]
    return lines


def main(pythons: list[str]) -> None:
    """Resolve for every interpreter and write the lock beside pyproject.toml."""
    resolved: list[tuple[str, dict[str, str]]] = []
    for python in pythons:
        resolved.append(resolve(python, resolved[0][1] if resolved else {}))
        print(f"{python}: {resolved[-1][0]}, {len(resolved[-1][1])} packages", flush=True)
    lines = merge(resolved)
    (ROOT / "requirements-lock.txt").write_text(HEADER + "\n".join(lines) + "\n")
    print(f"requirements-lock.txt: {len(lines)} lines")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python tools/lock.py PYTHON3.11 PYTHON3.12")
    main(sys.argv[1:])
