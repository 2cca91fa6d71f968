"""Readers of the local file formats. Each takes a path and yields a name and a text per document.

The name is None if the file gives none. The text is None if it is not UTF-8. All formats treat the
same content in the same way. A byte-order mark at the beginning of a file is not text. Blank lines,
empty texts and nulls are empty documents, which the reader of the corpus counts and leaves out. A
text that is not a string is an error, which names the file and the record. Line ends inside a text
stay as they are. No reader holds more than one record in memory.
"""

from __future__ import annotations

import codecs
import gzip
import io
import itertools
import json
import lzma
import mmap
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

Rows = Iterator[tuple[str | None, str | Iterable[str] | None]]

TEXT_COLUMNS = ("text", "content")
BLOCK = 1 << 20
BLANK_LINES = "blank-lines"
"""The name of a separator that consists of one blank line or more."""
LONGEST = 256_000_000
"""The most bytes between two separators."""


def _text_column(columns: list[str], path: Path) -> str:
    for column in TEXT_COLUMNS:
        if column in columns:
            return column
    raise ValueError(
        f"{path} has no column {' or '.join(map(repr, TEXT_COLUMNS))}; "
        f"it has {', '.join(columns) or 'none'}"
    )


def read_txt(path: Path) -> Rows:
    """Yield the whole file as one document, in pieces."""

    def pieces() -> Iterator[str]:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            while piece := stream.read(BLOCK):
                yield piece

    yield None, pieces()


def read_separated(path: Path, separator: str) -> Rows:
    """Yield the texts between separators, without the line ends next to these.

    Raises:
        ValueError: more than `LONGEST` bytes follow each other without a separator.
    """
    pattern, rest = _between(separator), b""
    with path.open("rb") as stream:
        if stream.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            stream.seek(0)
        while block := stream.read(BLOCK):
            block = rest + block
            # Blank lines at the end of a block may continue in the next one.
            end = len(block.rstrip())
            *texts, rest = pattern.split(block[:end])
            rest += block[end:]
            yield from filter(None, map(_separated, texts))
            if len(rest) > LONGEST:
                raise ValueError(
                    f"{path} has {len(rest) // 10**6} MB of text without the separator "
                    f"{separator!r}; give the one that it has, or none to read the file as one text"
                )
    yield from filter(None, map(_separated, pattern.split(rest)))


def _between(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of what lies between two texts."""
    blank = rb"\n(?:[ \t\r]*\n)+"
    return re.compile(blank if separator == BLANK_LINES else re.escape(separator.encode()))


def has_separator(path: Path, separator: str) -> bool:
    """Return whether a file has this separator anywhere."""
    if not path.stat().st_size:  # an empty file cannot be mapped
        return False
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return _between(separator).search(content) is not None


def _separated(text: bytes) -> tuple[None, str | None] | None:
    """Return a text between separators as a document; None if it is blank."""
    try:
        return (None, text.decode("utf-8").strip("\r\n")) if text.strip() else None
    except UnicodeDecodeError:
        return None, None


def _open_zst(path: Path) -> IO[bytes]:
    import pyarrow

    # pyarrow's own streams are slow at reading single lines.
    return io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd"), BLOCK)


def _jsonl(opener: Callable[[Path], Any]) -> Callable[[Path], Rows]:
    def read(path: Path) -> Rows:
        number = 0
        try:
            with opener(path) as stream:
                for number, line in enumerate(stream, 1):
                    if number == 1:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    if line.strip():
                        yield _record(line, path, number)
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise ValueError(f"{path} is damaged after line {number}: {error}") from error

    return read


def _record(line: bytes, path: Path, number: int) -> tuple[str | None, str | None]:
    try:
        record: Any = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return None, None
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number}, is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ValueError(f"{path}, line {number}, is not a JSON object")
    text = record[_text_column(list(record), path)]
    return _name(record.get("id")), _text(text, f"{path}, line {number}")


def _name(value: object) -> str | None:
    return None if value is None else str(value)


def _text(value: object, where: str) -> str:
    """Return the text of a record; null is an empty text. ``where`` names it in an error."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: the text is {type(value).__name__}, not a string")
    return value


def read_parquet(path: Path) -> Rows:
    """Yield one document per row."""
    from pyarrow import ArrowException, parquet

    try:
        # Without a buffer, pyarrow reads a column of a whole row group, often the file, at once.
        file = parquet.ParquetFile(path, buffer_size=BLOCK, pre_buffer=False)
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file: {error}") from error
    columns = [_text_column(file.schema_arrow.names, path)]
    if "id" in file.schema_arrow.names:
        columns.append("id")
    number, unnamed = 0, itertools.repeat(None)
    try:
        for batch in file.iter_batches(batch_size=64, columns=columns):
            names = batch["id"].to_pylist() if "id" in columns else unnamed
            for name, value in zip(names, batch[columns[0]], strict=False):
                number += 1
                try:
                    text = value.as_py()
                except UnicodeDecodeError:
                    yield _name(name), None
                else:
                    yield _name(name), _text(text, f"{path}, row {number}")
    except (ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged after row {number}: {error}") from error


READERS: dict[str, Callable[[Path], Rows]] = {
    ".txt": read_txt,
    ".jsonl": _jsonl(lambda path: path.open("rb")),
    ".jsonl.gz": _jsonl(gzip.GzipFile),
    ".jsonl.xz": _jsonl(lzma.LZMAFile),
    ".jsonl.zst": _jsonl(_open_zst),
    ".parquet": read_parquet,
}
"""The reader of each file ending. A new format takes a function, and a line here."""
