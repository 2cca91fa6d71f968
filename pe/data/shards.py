"""Token files: a memory-mapped array per split, and the starts and names of its documents.

A split is one long sequence of token ids. Every document ends with an end token, and ``starts``
holds the offset of every document's first token.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pe.data import tokenizer as tokenizers_
from pe.data.cache import OnProgress, progress_bar
from pe.data.documents import CONTEXT, Documents, Joins
from pe.data.splits import SPLITS, TRAIN
from pe.data.tokenizer import TokenizerPlan

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tqdm import tqdm
    from transformers import PreTrainedTokenizerFast

_RECORDED = (
    "tokenizer_fingerprint", "tokenizer_trained", "vocab_size", "end_token", "end_id",
)  # fmt: skip
"""Entries of meta.json that are fields of `TokenData`."""
ENCODE_BYTES = 2_000_000
"""Bytes of text that the tokenizer gets at once. It is enough to keep every core busy, and not too
much for the memory, of which the tokenizer uses a hundred times as many bytes."""


@dataclass
class Split:
    """The tokens of one split."""

    tokens: npt.NDArray[Any]
    """(N,) uint16 or uint32, memory-mapped."""
    starts: npt.NDArray[np.int64]
    """(D,) offsets of the first token of each document, ascending; starts[0] = 0."""
    names: Sequence[str]
    """The names of the D documents."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The number of tokens of every document, its end token included, (D,)."""
        return np.diff(self.starts, append=len(self.tokens))


@dataclass
class TokenData:
    """A corpus that is split and tokenised, as training and evaluation read it."""

    train: Split
    validation: Split
    test: Split
    corpus: str
    """The corpus as the recipe names it."""
    fingerprint: str
    """A hash of the texts and of their division into splits."""
    tokenizer_name: str
    tokenizer_fingerprint: str
    """A hash of the tokenizer's files."""
    tokenizer_trained: bool
    """Whether the tokenizer was trained on these texts."""
    vocab_size: int
    end_token: str
    end_id: int
    directory: Path
    notes: list[str] = field(default_factory=list)
    """Sentences about what was left out, cut or moved when the corpus was read."""

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer, as one of transformers, with an end and a padding token."""
        return self.load_tokenizer()

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """Read the tokenizer from its files. This imports transformers."""
        return tokenizers_.load_tokenizer(self.directory / "tokenizer", self.tokenizer_trained)

    def difference(self, recorded: Mapping[str, Any]) -> str | None:
        """Say how this data differs from that on which a run was trained; None if it does not.

        Args:
            recorded: the `summary` of that data. Old records have no fingerprint of the tokenizer,
                and then only the text is compared.
        """
        changed = []
        for name, noun in (("fingerprint", "text"), ("tokenizer_fingerprint", "tokenizer")):
            old, new = recorded.get(name), getattr(self, name)
            if old is not None and old != new:
                changed.append(f"the {noun} was {old} and is now {new}")
        return "; ".join(changed) or None

    def summary(self) -> dict[str, str | int | list[str]]:
        """Return the entry ``data`` of a run's record."""
        return {
            "corpus": self.corpus,
            "fingerprint": self.fingerprint,
            "documents": sum(len(getattr(self, name).starts) for name in SPLITS),
            "train_tokens": len(self.train),
            "validation_tokens": len(self.validation),
            "test_tokens": len(self.test),
            "tokenizer": self.tokenizer_name,
            "tokenizer_fingerprint": self.tokenizer_fingerprint,
            "vocab_size": self.vocab_size,
            "notes": list(self.notes),
        }


def write_shards(
    documents: Documents,
    split: npt.NDArray[np.int8],
    plan: TokenizerPlan,
    fingerprint: str,
    directory: Path,
    on_progress: OnProgress | None = None,
) -> None:
    """Train or save the tokenizer, and write the tokens of every split into ``directory``.

    Args:
        split: (N,) index into `SPLITS` of each document.
        fingerprint: of the documents and their division, which `read_shards` compares.
    """
    trained: Tokenizer | None = None
    if plan.source is None:
        with progress_bar("training the tokenizer", None, on_progress) as bar:
            texts = _training_sample(documents, np.flatnonzero(split == TRAIN), bar)
            trained = tokenizers_.train_bpe(texts, plan.vocab_size)
        end_token = tokenizers_.END
        encoder = trained
    else:
        end_token = str(plan.source.eos_token)
        encoder = plan.source.backend_tokenizer
        encoder.no_truncation()
        encoder.no_padding()
    tokenizers_.save_tokenizer(plan, trained, directory / "tokenizer")
    end_id = encoder.token_to_id(end_token)
    # Text that happens to contain the name of a special token stays text, so that it does not end
    # a document.
    encoder.encode_special_tokens = True
    dtype = np.dtype(np.uint16 if plan.vocab_size <= 2**16 else np.uint32)
    for index, name in enumerate(SPLITS):
        members = np.flatnonzero(split == index)
        total = int(documents.sizes[members].sum())
        starts, position = array("q", [0]), 0
        with (
            (directory / f"{name}.bin").open("wb") as out,
            progress_bar(f"tokenising for {name}", total, on_progress) as bar,
        ):
            for batch in _batches(documents, members, _joins(encoder)):
                pieces, are_last = zip(*batch, strict=True)
                for ids, is_last in zip(encode(encoder, list(pieces)), are_last, strict=True):
                    np.array([*ids, end_id] if is_last else ids, dtype=dtype).tofile(out)
                    position += len(ids) + is_last
                    if is_last:
                        starts.append(position)
                bar.update(sum(map(len, pieces)))
        np.save(directory / f"{name}.starts.npy", np.array(starts[:-1], dtype=np.int64))
        names = "\n".join(documents.names[i] for i in members)
        (directory / f"{name}.names.txt").write_bytes(names.encode("utf-8", "replace"))
    meta = {
        "fingerprint": fingerprint,
        "dtype": dtype.name,
        "end_token": end_token,
        "end_id": end_id,
        "tokenizer": plan.name,
        "tokenizer_fingerprint": tokenizers_.tokenizer_fingerprint(directory / "tokenizer"),
        "tokenizer_trained": plan.source is None,
        "vocab_size": plan.vocab_size,
    }
    (directory / "meta.json").write_text(json.dumps(meta, indent=1))


def encode(encoder: Tokenizer, texts: list[str]) -> Iterator[list[int]]:
    """Yield the token ids of every text; the tokenizer uses every core."""
    for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
        yield encoding.ids


def _training_sample(
    documents: Documents, members: npt.NDArray[np.int64], bar: tqdm
) -> Iterator[str]:
    """Yield the training documents, or every k-th one if they are too much text for BPE training.

    If a single document is too much text, every k-th piece of it is yielded.
    """
    step = -(-int(documents.sizes[members].sum()) // tokenizers_.TRAINING_BYTES)
    for i in members[::step]:
        thinned = step if documents.sizes[i] > tokenizers_.TRAINING_BYTES else 1
        for piece in islice(documents.pieces(i), 0, None, thinned):
            bar.update(len(piece))
            yield piece


def _joins(encoder: Tokenizer) -> Joins:
    """Return a function that says whether cutting a text at a place leaves its tokens the same."""

    def ids(text: str) -> list[int]:
        return encoder.encode(text, add_special_tokens=False).ids

    def joins(text: str, place: int) -> bool:
        before, after = text[max(place - CONTEXT, 0) : place], text[place : place + CONTEXT]
        return ids(before + after) == ids(before) + ids(after)

    return joins


def _batches(
    documents: Documents, members: npt.NDArray[np.int64], joins: Joins
) -> Iterator[list[tuple[str, bool]]]:
    """Yield batches of pieces of text, each with whether it is the last piece of its document."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for i in members:
        pieces = documents.pieces(i, joins)
        piece: str | None = next(pieces)
        while piece is not None:
            following = next(pieces, None)
            batch.append((piece, following is None))
            size += len(piece)
            if size >= ENCODE_BYTES:
                yield batch
                batch, size = [], 0
            piece = following
    if batch:
        yield batch


def read_shards(
    directory: Path, corpus: str, fingerprint: str, tokenizer: str, notes: list[str]
) -> TokenData:
    """Map an undamaged cache entry into memory; only the starts and the names are read.

    Raises:
        ValueError: the entry holds the tokens of another text, because somebody renamed it.
    """
    meta = json.loads((directory / "meta.json").read_text())
    if meta.get("fingerprint", fingerprint) != fingerprint:  # entries before 2026-11-29 have none
        raise ValueError(
            f"{directory} holds tokens of the text {meta['fingerprint']}, not of {corpus} "
            f"({fingerprint}); remove the folder, and they are made again"
        )

    def split(name: str) -> Split:
        names = (directory / f"{name}.names.txt").read_bytes().decode("utf-8")
        return Split(
            np.memmap(directory / f"{name}.bin", dtype=meta["dtype"], mode="r"),
            np.load(directory / f"{name}.starts.npy"),
            names.split("\n"),
        )

    return TokenData(
        train=split("train"),
        validation=split("validation"),
        test=split("test"),
        **{name: meta[name] for name in _RECORDED},
        corpus=corpus,
        fingerprint=fingerprint,
        tokenizer_name=tokenizer,
        directory=directory,
        notes=notes,
    )
