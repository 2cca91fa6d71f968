"""Turn the name of a corpus into memory-mapped tokens, which a cache keeps.

The cache has two keys. The first is made of what can be known of a corpus without reading it, such
as paths, sizes and times of its files. It leads to the fingerprint of the content that was read
last time, so a large corpus that has not changed is not read a second time. The second key, that of
the tokens, is made of this fingerprint, the tokenizer and the version of the code.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pe.data.cache import (
    OnProgress,
    building,
    cache_root,
    key_of,
    locked,
    read_json,
    scratch,
    usable,
    write_json,
    written,
)
from pe.data.corpora import Budget, Corpus, open_corpus
from pe.data.documents import Documents, load_documents, read_documents, save_index
from pe.data.shards import TokenData, read_shards, write_shards
from pe.data.splits import SPLITS, assign, fingerprint
from pe.data.tokenizer import plan_tokenizer


def prepare(
    corpus: str,
    vocab_size: int,
    tokenizer: str = "bpe",
    cache: str | Path | None = None,
    *,
    separator: str = "",
    on_progress: OnProgress | None = None,
) -> TokenData:
    """Return the tokens of ``corpus``; the first call makes them, later ones map cached files.

    Args:
        corpus: a known name (`pe.data.corpora.names`), a file or a directory. A budget may follow:
            ``fineweb@200M`` (about 200 million tokens) or ``fineweb@5000docs``.
        vocab_size: entries of the model's vocabulary, a multiple of 8.
        tokenizer: "bpe" trains one on the training split. Otherwise a tokenizer.json, a directory
            that transformers can read, or owner/name on the hub.
        cache: the directory of the cache. None: $PE_CACHE if it is set, else ~/.cache/pe.
        separator: the text between the documents of a .txt file, for example ``<|endoftext|>``, or
            ``blank-lines``. "": a file is one document.
        on_progress: called with lines of text during the work. None: show a bar on a terminal.

    Raises:
        ValueError: the corpus or the tokenizer is unknown, a file cannot be read, there are too
            few documents, or the cache cannot be written.
    """
    plan = plan_tokenizer(tokenizer, vocab_size)
    source, budget = open_corpus(corpus, separator)
    root = cache_root(cache)
    outside = key_of(source.identity(), budget.tokens, budget.documents)
    pointer = root / "seen" / f"{outside}.json"

    def entry(content: str) -> Path:
        return root / "tokens" / key_of(content, plan.identity)

    def from_cache() -> TokenData | None:
        stored = read_json(pointer)
        if stored is None or not isinstance(stored.get("fingerprint"), str):
            return None
        content, notes = str(stored["fingerprint"]), stored.get("notes")
        if not usable(entry(content)):
            return None
        stored_notes = [str(note) for note in notes] if isinstance(notes, list) else []
        return read_shards(entry(content), corpus, content, plan.name, stored_notes)

    cached = from_cache()
    if cached is not None:
        return cached
    with written(root), locked(root, key_of(outside, plan.identity)):
        # Another process may have done the work while this one waited.
        cached = from_cache()
        if cached is not None:
            return cached
        with _documents(source, budget, root, outside, on_progress) as documents:
            split = assign(documents.sizes, documents.digests, documents.source_split)
            content = fingerprint(documents.digests, split)
            directory = entry(content)
            with locked(root, directory.name):
                if not usable(directory):
                    with building(directory) as work:
                        write_shards(documents, split, plan, content, work, on_progress)
            notes = documents.notes + _moved(documents.source_split, split)
            write_json(pointer, {"fingerprint": content, "notes": notes})
            return read_shards(directory, corpus, content, plan.name, notes)


def _moved(before: npt.NDArray[np.int8], after: npt.NDArray[np.int8]) -> list[str]:
    """Say which documents of a corpus with splits were moved to a split that it lacks.

    Args:
        before, after: (N,) the split of each document in the corpus, and that in which it is used.
    """
    moved = np.flatnonzero((before >= 0) & (before != after))
    moves = Counter((SPLITS[before[i]], SPLITS[after[i]]) for i in moved)
    return [
        f"{count:,} {old} documents are the {new} split, which is missing"
        for (old, new), count in moves.items()
    ]


@contextmanager
def _documents(
    source: Corpus, budget: Budget, root: Path, key: str, on_progress: OnProgress | None
) -> Iterator[Documents]:
    """Read the documents into a directory and yield them.

    The cache keeps the directory if the corpus asks for it (`Corpus.keep`); otherwise it is removed
    after the block.
    """
    if source.keep:
        directory = root / "documents" / key
        with locked(root, f"documents-{key}"):
            if not usable(directory):
                with building(directory) as work:
                    save_index(read_documents(source, budget, work, on_progress))
        yield load_documents(directory)
        return
    work = scratch(root, "reading-")
    try:
        yield read_documents(source, budget, work, on_progress)
    finally:
        shutil.rmtree(work, ignore_errors=True)
