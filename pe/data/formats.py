"""Readers of the local file formats: path -> (name or None, text or None if not UTF-8).

All formats treat the same content in the same way: a byte-order mark at the head of a file is not
text; blank lines, empty texts and nulls are empty documents, which the reader of the corpus counts
and leaves out; a text that is no string is an error that names the file and the record. Line ends
inside a text stay as they are.
"""

from __future__ import annotations

import codecs
import gzip
import importlib
import importlib.util
import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

Rows = Iterator[tuple[str | None, str | None]]

TEXT_COLUMNS = ("text", "content")


def _text_column(columns: list[str], path: Path) -> str:
    for column in TEXT_COLUMNS:
        if column in columns:
            return column
    raise ValueError(
        f"{path} has no column {' or '.join(map(repr, TEXT_COLUMNS))}; "
        f"it has {', '.join(columns) or 'none'}"
    )


def read_txt(path: Path) -> Rows:
    """One document, newlines as they are."""
    try:
        yield None, path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        yield None, None


def _open_zst(path: Path) -> IO[bytes]:
    """Open a .zst file with whichever library is at hand."""
    if importlib.util.find_spec("zstandard"):
        stream: IO[bytes] = importlib.import_module("zstandard").open(path, "rb")
        return stream
    if importlib.util.find_spec("pyarrow"):
        arrow = importlib.import_module("pyarrow")
        if arrow.Codec.is_available("zstd"):
            stream = arrow.input_stream(str(path), compression="zstd")
            return stream
    raise ValueError(
        f"{path} is compressed with zstd: install a reader with `pip install zstandard`"
    )


def _jsonl(opener: Callable[[Path], Any]) -> Callable[[Path], Rows]:
    def read(path: Path) -> Rows:
        number = 0
        try:
            with opener(path) as stream:
                for number, line in enumerate(_lines(stream), 1):
                    if number == 1:
                        line = line.removeprefix(codecs.BOM_UTF8)
                    if line.strip():
                        yield _record(line, path, number)
        except (EOFError, OSError, lzma.LZMAError, gzip.BadGzipFile) as error:
            raise ValueError(f"{path} is damaged after line {number}: {error}") from error

    return read


def _lines(stream: IO[bytes], block: int = 1 << 22) -> Iterator[bytes]:
    """Split a byte stream at newlines only; pyarrow's streams have no fast iteration of lines."""
    rest: list[bytes] = []
    while chunk := stream.read(block):
        first, *others = chunk.split(b"\n")
        rest.append(first)
        for piece in others:
            yield b"".join(rest)
            rest = [piece]
    if last := b"".join(rest):
        yield last


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
    """The text of a record; null is an empty one."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: the text is {type(value).__name__}, not a string")
    return value


def read_parquet(path: Path) -> Rows:
    """One document a row, a few hundred rows in memory at once."""
    if not importlib.util.find_spec("pyarrow"):
        raise ValueError(f"{path} is parquet: install a reader with `pip install pyarrow`")
    parquet = importlib.import_module("pyarrow.parquet")
    try:
        file = parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's own exception types, OSError for a truncated file
        raise ValueError(f"{path} is not a readable parquet file: {error}") from error
    columns = [_text_column(file.schema_arrow.names, path)]
    if "id" in file.schema_arrow.names:
        columns.append("id")
    number = 0
    for batch in file.iter_batches(batch_size=256, columns=columns):
        rows = batch.to_pydict()
        names = rows.get("id", [None] * batch.num_rows)
        for name, text in zip(names, rows[columns[0]], strict=True):
            number += 1
            yield _name(name), _text(text, f"{path}, row {number}")


READERS: dict[str, Callable[[Path], Rows]] = {
    ".txt": read_txt,
    ".jsonl": _jsonl(lambda path: path.open("rb")),
    ".jsonl.gz": _jsonl(gzip.GzipFile),
    ".jsonl.xz": _jsonl(lzma.LZMAFile),
    ".jsonl.zst": _jsonl(_open_zst),
    ".parquet": read_parquet,
}
"""File ending -> reader. A new format is one function and one line here."""
