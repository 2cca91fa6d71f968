"""The embedded default: the running Python's own standard library, as text.

Every ``.py`` source of the standard library without its tests, and every help topic of
``pydoc_data.topics``. Nothing is downloaded, and it is real text with long documents. Python
distributions differ a little (Debian leaves out idlelib), so the record holds a fingerprint of
what was read. Good for a demo and for tests, not for published results.
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
# Written when Python was built or by the distribution (they name the machine), or, for topics.py,
# the very texts that are read as separate documents.
_NOT_SOURCES = ("_sysconfigdata", "sitecustomize.py", "usercustomize.py")
_TOPICS = "pydoc_data/topics.py"


@register("stdlib")
class StandardLibrary(Corpus):
    """Documents are named by their path below the library, topics ``pydoc_data/topics/<topic>``."""

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
        """Python's version and the path, size and time of every source."""
        stats = [(name, (self.root / name).stat()) for name in self.files()]
        return [
            "stdlib",
            platform.python_version(),
            str(self.root),
            [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats],
        ]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """One part, not divided into splits."""
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
