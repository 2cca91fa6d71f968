"""The documents of a corpus, read once into a plain text file with an index.

A corpus may be compressed or come over a network, and the division into splits needs the length and
the digest of every document before the first token is made. So all text is first written to
``text.bin`` (UTF-8), and every later step reads it from there, in any order. Texts are written and
read in pieces, so memory grows with the number of documents (some 200 bytes each) and not with
their length.
"""

from __future__ import annotations

import codecs
import hashlib
import itertools
import json
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from pe._errors import GUIDE
from pe.data.cache import OnProgress, progress_bar
from pe.data.corpora import BYTES_PER_TOKEN, HELD_OUT_SHARE, Budget, Corpus
from pe.data.splits import SPLITS, TEST, TRAIN, VALIDATION

Array = npt.NDArray[np.int64]
_PRIORITY = {"test": 3, "validation": 2, "train": 1, None: 0}
"""A text that is in several splits stays in the one with the largest number."""
PIECE = 1 << 18
"""The bytes of a longer text that are in memory at once."""
_WORD_END = re.compile(r"\S(?=[ \n])")
_NEAR, _CANDIDATES = 1 << 16, 64
"""A piece is shortened by at most `_NEAR` characters, and the last `_CANDIDATES` places in these
are tried."""
CONTEXT = 200
"""The number of characters before and after a place that decide whether a text may be cut there."""
Joins = Callable[[str, int], bool]
"""Given a text and a place in it, whether the text may be cut there."""


@dataclass
class Documents:
    """Every distinct text of a corpus, in reading order."""

    directory: Path
    """The folder that holds text.bin."""
    offsets: Array
    """(N + 1,) byte offsets into text.bin."""
    digests: npt.NDArray[np.uint8]
    """(N, 16), the first bytes of each text's SHA-256."""
    source_split: npt.NDArray[np.int8]
    """(N,) index into `SPLITS` of each document in the corpus; -1 if the corpus has no splits."""
    names: list[str]
    notes: list[str]
    """Sentences about documents that were left out or cut."""

    def __len__(self) -> int:
        return len(self.names)

    @property
    def sizes(self) -> Array:
        """The bytes of every document, (N,)."""
        return np.diff(self.offsets)

    def texts(self, indices: Array) -> Iterator[str]:
        """Yield the documents with these indices; one is in memory at a time."""
        return ("".join(self.pieces(i)) for i in indices)

    def pieces(self, index: int, joins: Joins = lambda text, place: True) -> Iterator[str]:
        """Yield a document in pieces of about `PIECE` bytes.

        A piece ends with a word, before a space or a line end. No rule by which a byte-level
        tokenizer splits words looks across such a place, so the words of the pieces are those of
        the whole text. A text without such places is one piece.

        Args:
            joins: refuses places at which the text may not be cut.
        """
        left = int(self.offsets[index + 1] - self.offsets[index])
        decode, text = codecs.getincrementaldecoder("utf-8")().decode, ""
        with (self.directory / "text.bin").open("rb") as stream:
            stream.seek(self.offsets[index])
            while left:
                data = stream.read(min(PIECE, left))
                left -= len(data)
                text += decode(data, final=not left)
                if left:
                    within = max(len(text) - _NEAR, 0), max(len(text) - CONTEXT, 0)
                    ends = [match.end() for match in _WORD_END.finditer(text, *within)]
                    place = next((p for p in ends[: -_CANDIDATES - 1 : -1] if joins(text, p)), 0)
                    if place:
                        yield text[:place]
                        text = text[place:]
        yield text


def read_documents(
    corpus: Corpus, budget: Budget, directory: Path, on_progress: OnProgress | None = None
) -> Documents:
    """Read ``corpus`` into ``directory``, and leave out exact duplicates.

    If a corpus with splits has a text in several of them, it stays in the test split, or else in
    validation, so that no held-out text is trained on.

    Raises:
        ValueError: the corpus has no text.
    """
    positions: dict[bytes, int] = {}  # digest -> position among the texts written
    offsets, source_split, digests = array("q", [0]), array("b"), bytearray()
    names: list[str] = []
    dropped: list[int] = []
    skipped = corpus.skipped
    used: dict[str | None, list[int]] = {}  # split -> [bytes, documents]
    with (
        (directory / "text.bin").open("wb") as out,
        progress_bar(f"reading {corpus.name}", None, on_progress) as bar,
    ):
        for split, stream in corpus.parts():
            held_out = split in ("validation", "test")
            limit = budget.share(HELD_OUT_SHARE) if held_out else budget
            spent = used.setdefault(split, [0, 0])
            if _reached(limit, spent):
                continue
            for document in stream:
                end = offsets[-1]
                if out.tell() > end:  # overwrite a text that was left out
                    out.seek(end)
                try:
                    size, digest, blank = _write(document.text, out)
                except UnicodeDecodeError:
                    skipped["not UTF-8"] += 1
                    continue
                bar.update(size)
                if blank:
                    skipped["empty"] += 1
                    continue
                earlier = positions.get(digest)
                if earlier is not None:
                    skipped["exact duplicate of another"] += 1
                    old = source_split[earlier]
                    if _PRIORITY[split] <= _PRIORITY[SPLITS[old] if old >= 0 else None]:
                        continue
                    dropped.append(earlier)
                positions[digest] = len(names)
                offsets.append(end + size)
                digests += digest
                source_split.append(SPLITS.index(split) if split else -1)
                names.append(document.name.replace("\n", " ").replace("\r", " "))
                spent[0] += size
                spent[1] += 1
                if _reached(limit, spent):
                    break
        out.truncate(offsets[-1])
    if not names:
        reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.items())
        raise ValueError(
            f"corpus {corpus.name!r} holds no text ({reasons or 'no documents'}); documents are "
            f"text in UTF-8, {GUIDE}"
        )
    documents = Documents(
        directory,
        np.array(offsets, dtype=np.int64),
        np.frombuffer(digests, dtype=np.uint8).reshape(-1, 16),
        np.array(source_split, dtype=np.int8),
        names,
        [f"{n:,} documents left out: {reason}" for reason, n in skipped.items()],
    )
    if dropped:
        documents = _without(documents, dropped)
    return _cut_where_needed(documents)


def _write(text: str | Iterable[str], out: IO[bytes]) -> tuple[int, bytes, bool]:
    """Append a text to ``out``.

    Returns:
        The number of its bytes, the first 16 bytes of its SHA-256, and whether it is blank.
    """
    size, digest, blank = 0, hashlib.sha256(), True
    for piece in (text,) if isinstance(text, str) else text:
        data = piece.encode("utf-8", "replace")
        out.write(data)
        digest.update(data)
        size += len(data)
        blank = blank and not data.strip()
    return size, digest.digest()[:16], blank


def _reached(limit: Budget, spent: list[int]) -> bool:
    """Return whether ``spent``, bytes and documents, has used up the budget."""
    return (limit.tokens is not None and spent[0] >= limit.tokens * BYTES_PER_TOKEN) or (
        limit.documents is not None and spent[1] >= limit.documents
    )


def _without(documents: Documents, dropped: list[int]) -> Documents:
    """Remove the documents at these positions, also from the text file."""
    keep = np.setdiff1d(np.arange(len(documents)), dropped)
    text = documents.directory / "text.bin"
    with text.with_name("kept.bin").open("wb") as out:
        for index in keep:
            _write(documents.pieces(index), out)
    text.with_name("kept.bin").replace(text)
    return replace(
        documents,
        offsets=np.concatenate([[0], np.cumsum(documents.sizes[keep])]),
        digests=documents.digests[keep],
        source_split=documents.source_split[keep],
        names=[documents.names[i] for i in keep],
    )


def _cut_where_needed(documents: Documents) -> Documents:
    """Cut one document into parts if there are too few to be divided by document.

    A corpus often is a single text file; its first 90% are for training. Another common form is a
    file for training and a file that is held out; the latter becomes validation and test.
    """
    split = documents.source_split
    train, validation, test = (np.count_nonzero(split == i) for i in range(len(SPLITS)))
    if (split < 0).all() and len(documents) < len(SPLITS):
        longest = int(np.argmax(documents.sizes))
        return _cut(documents, longest, (0.90, 0.95), (TRAIN, VALIDATION, TEST))
    if train == 1 and validation + test == 1:
        held_out = int(np.argmax(split))
        return _cut(documents, held_out, (0.5,), (VALIDATION, TEST))
    return documents


def _cut(
    documents: Documents, index: int, shares: Sequence[float], splits: Sequence[int]
) -> Documents:
    """Cut a document into one part for each of ``splits``.

    Args:
        index: of the document. shares: (parts - 1,), ascending from 0 to 1; each cut is at the
            first line end after this share of the bytes.

    Raises:
        ValueError: the document has too few lines, or two parts are equal.
    """
    start, stop = (int(x) for x in documents.offsets[index : index + 2])
    names = ["training" if split == TRAIN else SPLITS[split] for split in splits]
    parts = f"{', '.join(names[:-1])} and {names[-1]} parts"
    advice = "give more documents, or files named train, validation and test"
    marks, digests = [start], []
    with (documents.directory / "text.bin").open("rb") as text:
        for share in shares:
            text.seek(start + int((stop - start) * share))
            text.readline()
            marks.append(text.tell())
        if marks[-1] >= stop:
            raise ValueError(
                f"the corpus is {len(documents)} distinct document(s) and "
                f"{documents.names[index]!r} has too few lines to be cut into {parts}; {advice}"
            )
        marks.append(stop)
        for a, b in itertools.pairwise(marks):
            text.seek(a)
            digest = hashlib.sha256()
            for at in range(a, b, PIECE):
                digest.update(text.read(min(PIECE, b - at)))
            digests.append(np.frombuffer(digest.digest()[:16], np.uint8))
    old = np.delete(documents.digests, index, axis=0)
    if len(np.unique(np.concatenate([old, digests]), axis=0)) < len(old) + len(digests):
        raise ValueError(
            f"{documents.names[index]!r} cannot be cut into distinct {parts}; {advice}"
        )
    note = (
        f"{documents.names[index]} was cut into {parts}, as {len(documents)} document(s) cannot be "
        "split by document"
    )
    source_split = np.where(documents.source_split < 0, TRAIN, documents.source_split)
    source_split = np.insert(np.delete(source_split, index), [index] * len(splits), splits)
    names = [f"{documents.names[index]}#{SPLITS[split]}" for split in splits]
    return replace(
        documents,
        offsets=np.insert(documents.offsets, index + 1, marks[1:-1]),
        digests=np.insert(old, [index] * len(digests), digests, axis=0),
        source_split=source_split.astype(np.int8),
        names=[*documents.names[:index], *names, *documents.names[index + 1 :]],
        notes=[*documents.notes, note],
    )


def save_index(documents: Documents) -> None:
    """Write everything but the text beside text.bin, for a corpus that the cache keeps."""
    np.savez(
        documents.directory / "index.npz",
        offsets=documents.offsets,
        digests=documents.digests,
        given=documents.source_split,  # the field's earlier name, which is in existing caches
    )
    lists = {"names": documents.names, "notes": documents.notes}
    (documents.directory / "names.json").write_text(json.dumps(lists))


def load_documents(directory: Path) -> Documents:
    """Read the documents whose index `save_index` wrote into ``directory``."""
    lists = json.loads((directory / "names.json").read_text())
    with np.load(directory / "index.npz") as index:
        return Documents(directory, index["offsets"], index["digests"], index["given"], **lists)
