"""Local files: .txt, .jsonl (plain, .gz, .xz, .zst), .parquet, or a directory of them.

A .txt file is one document, or many with a separator between them. A line of .jsonl and a row of
.parquet are one document each; the text is in a column ``text`` or ``content``, and a column ``id``
may hold a name. A file belongs to a split if its name, or that of a folder above it, is that of the
split (train, val or test), alone or followed by one of - _ . or a digit and anything else. If every
file of a directory belongs to a split, these are the splits. If no file does, the directory is
divided by document.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from pe._errors import GUIDE
from pe.data.corpora.base import Corpus, Document
from pe.data.formats import READERS, has_separator, read_separated

_SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "dev": "validation",
    "test": "test",
}
_SPLIT = re.compile(rf"({'|'.join(_SPLIT_NAMES)})(?:[-_.0-9].*)?", re.IGNORECASE)


def files_under(root: Path) -> list[Path]:
    """Return the visible files below ``root``, sorted by relative path."""
    visible = (
        p for p in root.rglob("*") if not any(s[0] == "." for s in p.relative_to(root).parts)
    )
    return sorted((p for p in visible if p.is_file()), key=lambda p: p.relative_to(root).as_posix())


def is_known(file: Path) -> bool:
    """Return whether a file has the ending of a known format; it may be written in capitals."""
    return file.name.lower().endswith(tuple(READERS))


def split_of(relative: Path) -> str | None:
    """Return the split that a relative path names by its file, or else by a folder."""
    for part in (relative.name, *relative.parts[:-1]):
        match = _SPLIT.fullmatch(part)
        if match:
            return _SPLIT_NAMES[match[1].lower()]
    return None


def stamp(file: Path) -> tuple[str, int, int, int, int]:
    """Return path, size, inode and two times of a file, which differ if its content may have.

    The time of modification alone is not enough, because programs can set it and copies keep it.
    The time of the last change to the inode cannot be set.
    """
    stat = file.stat()
    return str(file.resolve()), stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns


class LocalCorpus(Corpus):
    """The files of known formats at ``path``, in the order of their names.

    Args:
        path: a file or a directory. name: of the corpus; default: the path.
        separator: the text between the documents of a .txt file; "": a file is one document.

    Raises:
        ValueError: there is no file of a known format, ``separator`` has no effect, or only some
            of the files are named for a split.
    """

    def __init__(self, path: Path, name: str | None = None, separator: str = "") -> None:
        super().__init__()
        self.name, self.separator = name or str(path), separator
        self.root = path if path.is_dir() else path.parent
        found = [path] if path.is_file() else files_under(path)
        self.files = [file for file in found if is_known(file)]
        others = sorted(file.suffix.lower() for file in found if not is_known(file))
        self.unread = Counter(
            f"files ending in {e}" if e else "files without an ending" for e in others
        )
        if not self.files:
            where = "has none of the endings" if path.is_file() else "holds no file ending in"
            raise ValueError(f"corpus {self.name!r} {where} {', '.join(READERS)}; {GUIDE}")
        if separator and not self._text_files():
            raise ValueError(
                f"separator: {separator!r} has no effect on corpus {self.name!r}, which has no "
                ".txt file; leave it out"
            )
        splits = [split_of(file.relative_to(self.root)) for file in self.files]
        divided = "train" in splits and len(set(splits) - {None}) > 1
        if divided and None in splits:
            stray = self.files[splits.index(None)].name
            raise ValueError(
                f"in corpus {self.name!r} some files are named for a split (train, val, test) and "
                f"{stray} is not; name every file for its split, or none"
            )
        self.splits = splits if divided else [None] * len(splits)

    def identity(self) -> object:
        """Return what decides the texts and the notes about them.

        That is the `stamp` of every file, the split that its name says, the separator, and how many
        files are not read.
        """
        files = zip(self.files, self.splits, strict=True)
        stamps = [(*stamp(file), split) for file, split in files]
        unread = [self.unread] if self.unread else []  # a note of the record counts them
        return ["local", stamps, *([self.separator] if self.separator else []), *unread]

    def _text_files(self) -> list[Path]:
        return [file for file in self.files if file.name.lower().endswith(".txt")]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield a part per file.

        Raises:
            ValueError: the separator is in none of the .txt files.
        """
        texts = self._text_files()
        if self.separator and not any(has_separator(file, self.separator) for file in texts):
            raise ValueError(
                f"separator: {self.separator!r} has no effect on corpus {self.name!r}, because no "
                ".txt file has it; give the one that they have, or leave it out"
            )
        self.skipped |= self.unread
        for file, split in zip(self.files, self.splits, strict=True):
            yield split, self._documents(file)

    def _documents(self, file: Path) -> Iterator[Document]:
        relative = file.relative_to(self.root).as_posix()
        ending = file.name.lower()
        read = next(read for suffix, read in READERS.items() if ending.endswith(suffix))
        if self.separator and read is READERS[".txt"]:
            read = partial(read_separated, separator=self.separator)
        for row, (name, text) in enumerate(read(file)):
            if text is None:
                self.skipped["not UTF-8"] += 1
            else:
                whole = read is READERS[".txt"]
                yield Document(name or (relative if whole else f"{relative}:{row}"), text)
