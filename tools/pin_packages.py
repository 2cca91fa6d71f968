"""Write the list of packages for `pe.data.corpora.packages` with versions, hashes and licences.

    python tools/pin_packages.py pe/data/corpora/python-packages.txt NAME[:split] ...

Each package gets its newest version. Without names, the packages of the list are updated. Read each
licence before you commit the list: it may contain only permissive ones.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path

from pe.data.corpora.packages import PLATFORM, read_list

HEADER = """\
# The corpus python-packages: wheels from PyPI, in pip's format, with licence and split.
# Written by tools/pin_packages.py; the licences were read by hand. packages.py says how it is read.
"""


def licence_of(wheel: Path) -> str:
    """Return the licence in the metadata of a wheel, in a few words."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        fields = HeaderParser().parsestr(archive.read(name).decode("utf-8", "replace"))
    short = next(iter((fields.get("License") or "").strip().splitlines()), "")
    approved = "License :: OSI Approved :: "
    classes = [c for c in fields.get_all("Classifier", []) if c.startswith(approved)]
    words = [fields.get("License-Expression"), *(c.removeprefix(approved) for c in classes), short]
    return next((w.strip() for w in words if w), "unknown").replace(";", ",")


def pin(name: str, split: str) -> str:
    """Return the line of one package in the list."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "-q", "--no-deps", *PLATFORM,
                "-d", folder, name,
            ],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(folder).glob("*.whl")
        version = wheel.name.split("-")[1]
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return f"{name}=={version} --hash=sha256:{digest}  # {licence_of(wheel)}; {split}"


def main() -> None:
    """Pin the packages that the command line names."""
    path, *names = sys.argv[1:]
    wanted = [name.partition(":") for name in names]
    if not wanted:
        wanted = [(p.name, ":", p.split) for p in read_list(Path(path))]
    lines = [pin(name, split or "train") for name, _, split in wanted]
    Path(path).write_text(HEADER + "\n".join(sorted(lines, key=str.lower)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
