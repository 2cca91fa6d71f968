"""The documents of a corpus, read once into a plain text file with an index.

A corpus may be compressed or come over a network, and splitting needs every document's length
and digest before the first token is made. So all text goes once to ``text.bin`` (UTF-8), and
every later step reads it from there, in any order and in bounded memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pe.data.cache import log
from pe.data.corpora import BYTES_PER_TOKEN, HELD_OUT_SHARE, Budget, Corpus
from pe.data.splits import SPLITS

Array = npt.NDArray[np.int64]
_PRIORITY = {"test": 3, "validation": 2, "train": 1, None: 0}
REPORT_EVERY = 100_000_000


@dataclass
class Documents:
    """Every distinct text of a corpus, in reading order.

    offsets: (N+1,) byte offsets into text.bin; digests: (N, 16) uint8, of SHA-256;
    given: (N,) index into SPLITS, or -1 where the corpus does not divide itself.
    """

    directory: Path
    offsets: Array
    digests: npt.NDArray[np.uint8]
    given: npt.NDArray[np.int8]
    names: list[str]
    notes: list[str]

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Array:
        """Bytes of every document, (N,)."""
        return np.diff(self.offsets)

    def texts(self, indices: Array) -> Iterator[str]:
        """Yield the documents with these indices; one is in memory at a time."""
        with (self.directory / "text.bin").open("rb") as stream:
            for i in indices:
                stream.seek(self.offsets[i])
                yield stream.read(int(self.offsets[i + 1] - self.offsets[i])).decode("utf-8")


def read_documents(corpus: Corpus, budget: Budget, directory: Path) -> Documents:
    """Read ``corpus`` into ``directory``; exact duplicates are kept once.

    A text that a divided corpus has in several splits stays in the test split, else in the
    validation split, so that nothing held out is trained on. Raises ValueError when nothing
    is left.
    """
    kept: dict[bytes, int] = {}  # digest -> position among the texts written
    offsets = [0]
    digests: list[bytes] = []
    given: list[int] = []
    names: list[str] = []
    dropped: list[int] = []
    skipped = corpus.skipped
    end, reported = 0, 0
    used: dict[str | None, list[int]] = {}  # split -> [bytes, documents]
    with (directory / "text.bin").open("wb") as out:
        for split, stream in corpus.parts():
            held_out = split in ("validation", "test")
            limit = budget.share(HELD_OUT_SHARE) if held_out else budget
            spent = used.setdefault(split, [0, 0])
            if _reached(limit, spent):
                continue
            for document in stream:
                data = document.text.encode("utf-8", "replace")
                if not data.strip():
                    skipped["empty"] += 1
                    continue
                digest = hashlib.sha256(data).digest()[:16]
                before = kept.get(digest)
                if before is not None:
                    skipped["exact duplicate of another"] += 1
                    old = given[before]
                    if _PRIORITY[split] <= _PRIORITY[SPLITS[old] if old >= 0 else None]:
                        continue
                    dropped.append(before)
                kept[digest] = len(names)
                out.write(data)
                end += len(data)
                offsets.append(end)
                digests.append(digest)
                given.append(SPLITS.index(split) if split else -1)
                names.append(document.name.replace("\n", " ").replace("\r", " "))
                spent[0] += len(data)
                spent[1] += 1
                if end - reported >= REPORT_EVERY:
                    reported = end
                    log.info("read %s: %d MB of text so far", corpus.name, end // 10**6)
                if _reached(limit, spent):
                    break
    if not names:
        raise ValueError(f"corpus {corpus.name!r} holds no text ({_notes(skipped) or 'no files'})")
    documents = Documents(
        directory,
        np.array(offsets, dtype=np.int64),
        np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 16),
        np.array(given, dtype=np.int8),
        names,
        [f"{n:,} documents left out: {reason}" for reason, n in skipped.items()],
    )
    if dropped:
        documents = _without(documents, dropped)
    if len(documents) < len(SPLITS) and not (documents.given >= 0).any():
        documents = _cut(documents)
    return documents


def _reached(limit: Budget, spent: list[int]) -> bool:
    return (limit.tokens is not None and spent[0] >= limit.tokens * BYTES_PER_TOKEN) or (
        limit.documents is not None and spent[1] >= limit.documents
    )


def _notes(skipped: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in skipped.items())


def _without(documents: Documents, dropped: list[int]) -> Documents:
    """Rewrite the text file without the documents at these positions."""
    keep = np.setdiff1d(np.arange(len(documents)), dropped)
    directory = documents.directory
    with (directory / "kept.bin").open("wb") as out:
        for text in documents.texts(keep):
            out.write(text.encode("utf-8"))
    (directory / "kept.bin").replace(directory / "text.bin")
    return Documents(
        directory,
        np.concatenate([[0], np.cumsum(documents.sizes[keep])]),
        documents.digests[keep],
        documents.given[keep],
        [documents.names[i] for i in keep],
        documents.notes,
    )


def _cut(documents: Documents) -> Documents:
    """Cut the longest of one or two documents into three parts, at line ends.

    With fewer documents than splits there is no splitting by document; a single text file is
    too common to refuse, so its first 90% train and the note says what was done.
    """
    longest = int(np.argmax(documents.sizes))
    text = (documents.directory / "text.bin").read_bytes()
    start, stop = (int(x) for x in documents.offsets[longest : longest + 2])
    marks = [start]
    for share in (0.90, 0.95):
        line_end = text.find(b"\n", start + int((stop - start) * share), stop)
        if line_end < 0 or line_end + 1 >= stop:
            raise ValueError(
                f"the corpus is {len(documents)} document(s) and {documents.names[longest]!r} "
                "has too few lines to be cut into training, validation and test parts; give "
                "more documents, or files named train, validation and test"
            )
        marks.append(line_end + 1)
    marks.append(stop)
    bounds = sorted({*map(int, documents.offsets), *marks})
    pieces = [text[a:b] for a, b in itertools.pairwise(bounds)]
    names: list[str] = []
    given: list[int] = []
    for a in bounds[:-1]:
        inside = start <= a < stop
        part = marks.index(a) if inside else 0
        owner = int(np.searchsorted(documents.offsets, a, side="right")) - 1
        names.append(documents.names[owner] + (f"#{SPLITS[part]}" if inside else ""))
        given.append(part)
    if len(set(pieces)) < len(pieces) or marks[1] == marks[2]:
        raise ValueError(
            f"{documents.names[longest]!r} cannot be cut into distinct training, validation and "
            "test parts; give more documents"
        )
    note = (
        f"{documents.names[longest]} was cut into training, validation and test parts, as "
        f"{len(documents)} document(s) cannot be split by document"
    )
    log.warning(note)
    return Documents(
        documents.directory,
        np.array(bounds, dtype=np.int64),
        np.stack([np.frombuffer(hashlib.sha256(p).digest()[:16], np.uint8) for p in pieces]),
        np.array(given, dtype=np.int8),
        names,
        [*documents.notes, note],
    )


def save_index(documents: Documents) -> None:
    """Write the index beside text.bin, for a corpus that is kept."""
    np.savez(
        documents.directory / "index.npz",
        offsets=documents.offsets,
        digests=documents.digests,
        given=documents.given,
    )
    more = {"names": documents.names, "notes": documents.notes}
    (documents.directory / "names.json").write_text(json.dumps(more))


def load_documents(directory: Path) -> Documents:
    """Read back what `save_index` wrote."""
    more = json.loads((directory / "names.json").read_text())
    with np.load(directory / "index.npz") as index:
        return Documents(
            directory,
            index["offsets"],
            index["digests"],
            index["given"],
            more["names"],
            more["notes"],
        )
