"""The default corpus: the standard library of the Python that runs, as text.

It consists of every ``.py`` source of the standard library without its tests, and of every help
topic of ``pydoc_data.topics``. Nothing has to be downloaded, and the text is real and has long
documents. It is meant for demos and tests, not for published results, because distributions of
Python differ a little (Debian leaves out idlelib). The record holds a fingerprint of what was read.
"""

from __future__ import annotations

import importlib
import os
import platform
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from pe.data.corpora.base import Corpus, Document, register

_NOT_LIBRARY = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
# These are written when Python is built or by the distribution, and differ between machines.
_NOT_SOURCES = ("_sysconfigdata", "sitecustomize.py", "usercustomize.py")
# This file holds all help topics; each of them is read as a separate document.
_TOPICS = "pydoc_data/topics.py"


@register("stdlib")
class StandardLibrary(Corpus):
    """The corpus. A source is named by its path in the library, a help topic by
    ``pydoc_data/topics/<topic>``."""

    name = "stdlib"

    def __init__(self, root: Path | None = None) -> None:
        super().__init__()
        self.root = root or Path(sysconfig.get_paths()["stdlib"])

    def files(self) -> list[str]:
        """Return the relative paths of the sources, sorted."""
        sources = []
        for folder, folders, names in os.walk(self.root):
            folders[:] = [
                f for f in folders if f not in _NOT_LIBRARY and not f.startswith("config-")
            ]
            for name in names:
                relative = Path(folder, name).relative_to(self.root).as_posix()
                if name.endswith(".py") and not name.startswith(_NOT_SOURCES):
                    sources.append(relative)
        if not sources:
            raise ValueError(
                f"no Python sources under {self.root}: this Python ships its standard library "
                "without sources, so give another corpus, for example a directory of .txt files"
            )
        return sorted(sources)

    def identity(self) -> object:
        """Return Python's version, and the path, size and time of every source."""
        stats = [(name, (self.root / name).stat()) for name in self.files()]
        return [
            "stdlib",
            platform.python_version(),
            str(self.root),
            [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        ]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield one part, which is not divided into splits."""
        yield None, self._documents()

    def _documents(self) -> Iterator[Document]:
        for name in self.files():
            if name == _TOPICS:
                yield from self._topics()
                continue
            try:
                text = (self.root / name).read_bytes().decode("utf-8")
            except UnicodeDecodeError:
                self.skipped["not UTF-8"] += 1
                continue
            yield Document(name, text)

    def _topics(self) -> Iterator[Document]:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        for topic in sorted(topics):
            yield Document(f"pydoc_data/topics/{topic}", topics[topic])
