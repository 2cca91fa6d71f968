"""From the name of a corpus to memory-mapped tokens, through the cache.

Two keys keep this quick and safe. What a corpus looks like from outside (paths, sizes, times; the
row of the hub table) leads to the fingerprint of the content that it had last time, so
an unchanged gigabyte is not read again. The tokens' own key is that fingerprint with the
tokenizer and the code version.
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
    """Return the tokens of ``corpus``, made on the first call and mapped from the cache later.

    corpus: a known name (`pe.data.corpora.names`), a file or a directory, either with a budget
    (``fineweb@200M``: about 200 million tokens; ``fineweb@5000docs``).
    vocab_size: rows of the model's vocabulary, a multiple of 8.
    tokenizer: "bpe" trains one on the training split; else a tokenizer.json, a directory that
    transformers can read, or owner/name on the hub.
    cache: default $PE_CACHE, else ~/.cache/pe.
    separator: what lies between the documents of a .txt file, for example ``<|endoftext|>``, or
    ``blank-lines``; "": a file is one document.
    on_progress: gets lines of text while the work is done; default: a bar on a terminal.
    Raises ValueError for an unknown corpus or tokenizer, an unreadable file, too few documents.
    """
    plan = plan_tokenizer(tokenizer, vocab_size)
    source, budget = open_corpus(corpus, separator)
    root = cache_root(cache)
    seen = key_of(source.identity(), budget.tokens, budget.documents)
    pointer = root / "seen" / f"{seen}.json"

    def entry(content: str) -> Path:
        return root / "tokens" / key_of(content, plan.identity)

    def from_cache() -> TokenData | None:
        known = read_json(pointer)
        if known is None or not isinstance(known.get("fingerprint"), str):
            return None
        content, notes = str(known["fingerprint"]), known.get("notes")
        if not usable(entry(content)):
            return None
        kept_notes = [str(note) for note in notes] if isinstance(notes, list) else []
        return read_shards(entry(content), corpus, content, plan.name, kept_notes)

    ready = from_cache()
    if ready is not None:
        return ready
    with locked(root, key_of(seen, plan.identity)):
        # Another process may have done the work while this one waited.
        if pointer.exists() and (ready := from_cache()) is not None:
            return ready
        with _documents(source, budget, root, seen, on_progress) as documents:
            split = assign(documents.sizes, documents.digests, documents.given)
            content = fingerprint(documents.digests, split)
            directory = entry(content)
            with locked(root, directory.name):
                if not usable(directory):
                    with building(directory) as work:
                        write_shards(documents, split, plan, content, work, on_progress)
            notes = documents.notes + _moved(documents.given, split)
            write_json(pointer, {"fingerprint": content, "notes": notes})
            return read_shards(directory, corpus, content, plan.name, notes)


def _moved(given: npt.NDArray[np.int8], split: npt.NDArray[np.int8]) -> list[str]:
    """Say which documents of a divided corpus fill a split that it lacks."""
    moved = np.flatnonzero((given >= 0) & (given != split))
    moves = Counter((SPLITS[given[i]], SPLITS[split[i]]) for i in moved)
    return [
        f"{count:,} {old} documents are the {new} split, which is missing"
        for (old, new), count in moves.items()
    ]


@contextmanager
def _documents(
    source: Corpus, budget: Budget, root: Path, seen: str, on_progress: OnProgress | None
) -> Iterator[Documents]:
    """Yield the documents: read into a directory that goes away, or that the cache keeps."""
    if source.keep:
        directory = root / "documents" / seen
        with locked(root, f"documents-{seen}"):
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
