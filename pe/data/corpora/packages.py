"""The corpus `python-packages`: the sources of some forty large Python packages, pinned.

Anybody can rebuild it. ``python-packages.txt``, beside this file, is a list in pip's own format. It
has a version and a SHA-256 for each wheel, its licence, and the split to which it belongs. pip
downloads each wheel once into the cache and refuses one with another hash, so the text is the same
everywhere, and a download that was stopped continues where it was.

A wheel becomes documents by these rules, which make them long and avoid repetition:

- Sources (`SUFFIXES`) in UTF-8 are read. Files with very long lines, which are data or minified
  code, are left out. So are files of which at least half the lines are in files read before.
  Held-out packages are read first, so that copies are left out of the training split.
- The files of a package follow one another in the order of its folders, ``__init__`` first, each
  below a line with its path. A document consists of whole files and has at least 256 KB, except
  for the last one of a package.
- No package contributes more than `CAP` bytes, which are taken evenly from its documents.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pe.data.cache import cache_root, locked, log
from pe.data.corpora.base import Corpus, Document, register
from pe.data.splits import SPLITS

LIST = Path(__file__).with_name("python-packages.txt")
SUFFIXES = (".py", ".pyx", ".pxd", ".pyi", ".rst", ".md")
LONG = 256_000
"""After this many bytes a document ends at the next end of a file."""
CAP = 48_000_000
"""The most bytes of text from one package."""
LONGEST_LINE = 2_000
"""A file with a longer line, in characters, is left out."""
LEAST_LINE = 30
"""Shorter lines, in characters, such as ``return None``, are in every file and show no copying."""
COPIED = 0.5
"""A file is left out if at least this share of its longer lines is in earlier files."""
PLATFORM = (
    "--only-binary=:all:", "--python-version=3.12", "--implementation=cp",
    "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux2014_x86_64",
)  # fmt: skip
"""Options with which pip chooses the same wheels on every machine. They are never installed."""
READ_FIRST = ("test", "validation", "train")

_ENTRY = re.compile(
    r"(?P<name>[\w.-]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>[0-9a-f]{64})"
    r"\s+# (?P<licence>.+); (?P<split>\w+)"
)


@dataclass(frozen=True)
class Package:
    """One line of the list."""

    name: str
    version: str
    sha256: str
    licence: str
    split: str


def read_list(path: Path = LIST) -> list[Package]:
    """Return the packages of a list, in its order.

    Raises:
        ValueError: a line is not of the form ``name==version --hash=sha256:...  # licence; split``.
    """
    packages = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _ENTRY.fullmatch(line.strip())
        if match is None or match["split"] not in SPLITS:
            raise ValueError(
                f"{path}, line {number}: expected 'name==version --hash=sha256:...  # licence; "
                f"split' with a split of {', '.join(SPLITS)}; got {line!r}"
            )
        packages.append(Package(**match.groupdict()))
    return packages


@register("python-packages")
class PythonPackages(Corpus):
    """The corpus. A document is named ``package/first-file``.

    The cache keeps the documents, because making them from wheels takes minutes.
    """

    name = "python-packages"
    keep = True

    def __init__(self, path: Path = LIST, cache: Path | None = None) -> None:
        super().__init__()
        self.packages = read_list(path)
        self.folder = cache_root(cache) / "wheels"
        self._seen: set[int] = set()

    def identity(self) -> object:
        """Return the list of packages and all numbers that decide what a wheel becomes."""
        rules = [SUFFIXES, LONG, CAP, LONGEST_LINE, LEAST_LINE, COPIED]
        return ["packages", [vars(package) for package in self.packages], rules]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield a part per package, held-out packages first."""
        from tqdm.auto import tqdm

        order = sorted(self.packages, key=lambda p: READ_FIRST.index(p.split))
        for package in tqdm(order, desc=self.name, unit="package", disable=None):
            yield package.split, self._documents(package, fetch(package, self.folder))

    def _documents(self, package: Package, wheel: Path) -> Iterator[Document]:
        with zipfile.ZipFile(wheel) as archive:
            documents = list(self._joined(package, archive))
        total = sum(len(text.encode()) for _, text in documents)
        # Every document adds to the sum the share of the package that is kept. Whenever the sum
        # reaches 1, a document is kept, so kept ones are evenly spread.
        share, due = min(1.0, CAP / max(total, 1)), 0.0
        for name, text in documents:
            due += share
            if due >= 1.0 - 1e-9:
                due -= 1.0
                yield Document(name, text)
            else:
                self.skipped[f"beyond {CAP // 10**6} MB of one package"] += 1

    def _joined(self, package: Package, archive: zipfile.ZipFile) -> Iterator[tuple[str, str]]:
        """Yield name and text of documents that consist of whole files of at least `LONG` bytes."""
        pieces: list[str] = []
        size, first = 0, ""
        for name in sorted(self._sources(archive), key=_reading_order):
            text = self._text(archive.read(name))
            if text is None:
                continue
            first = first or name
            pieces.append(f"# {name}\n{text.rstrip()}\n\n")
            size += len(pieces[-1].encode())
            if size >= LONG:
                yield f"{package.name}/{first}", "".join(pieces)
                pieces, size, first = [], 0, ""
        if pieces:
            yield f"{package.name}/{first}", "".join(pieces)

    @staticmethod
    def _sources(archive: zipfile.ZipFile) -> list[str]:
        names = (info.filename for info in archive.infolist() if info.file_size > 200)
        return [n for n in names if n.endswith(SUFFIXES) and ".dist-info/" not in n]

    def _text(self, data: bytes) -> str | None:
        """Return the text of a source file; None if it is left out, and count the reason."""
        try:
            text = data.decode("utf-8-sig").replace("\r\n", "\n")
        except UnicodeDecodeError:
            self.skipped["files not UTF-8"] += 1
            return None
        lines = [line.strip() for line in text.split("\n")]
        if max(map(len, lines)) > LONGEST_LINE:
            self.skipped["files with very long lines"] += 1
            return None
        longer = {_digest(line) for line in lines if len(line) >= LEAST_LINE}
        if longer and len(longer & self._seen) >= COPIED * len(longer):
            self.skipped["files that repeat earlier ones"] += 1
            return None
        self._seen |= longer
        return text


def _digest(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=7).digest(), "little")


def _reading_order(name: str) -> tuple[tuple[str, ...], bool, str]:
    """Return a key that sorts files by folder, and in a folder by name with ``__init__`` first."""
    path = PurePosixPath(name)
    return path.parts[:-1], path.stem != "__init__", path.name


def fetch(package: Package, folder: Path) -> Path:
    """Return the package's wheel in ``folder``; pip downloads it if it is missing.

    Raises:
        ValueError: pip could not download it (no network, no such version), or its hash differs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{package.name}-{package.version}-{package.sha256[:12]}.whl"
    if target.exists():
        return target
    with (
        locked(folder, target.stem),
        tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as work,
    ):
        if target.exists():  # another process has downloaded it while this one waited
            return target
        wanted = Path(work) / "wanted.txt"
        pin = f"{package.name}=={package.version} --hash=sha256:{package.sha256}"
        wanted.write_text(pin + "\n")
        log.info("downloading %s %s", package.name, package.version)
        done = subprocess.run(
            [
                sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--require-hashes",
                "--disable-pip-version-check", *PLATFORM, "-d", work, "-r", str(wanted),
            ],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        wheels = list(Path(work).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
            raise ValueError(
                f"corpus 'python-packages': {package.name} {package.version} could not be "
                f"downloaded ({reason}); with a network, the same command continues from here"
            )
        wheels[0].replace(target)
    return target
