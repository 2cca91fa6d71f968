"""Token files: one memory-mapped array a split, the starts and names of its documents.

A split is one long row of token numbers. Every document is followed by an end token, which
belongs to it; ``starts`` holds the offset of every document's first token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pe.data import tokenizer as tokenizers_
from pe.data.cache import log
from pe.data.documents import Documents
from pe.data.splits import SPLITS, TRAIN
from pe.data.tokenizer import TokenizerPlan

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

ENCODE_BYTES = 16_000_000
"""Text handed to the tokenizer at once: enough for every core, little enough for memory."""


@dataclass
class Split:
    """The tokens of one split.

    tokens: (N,) uint16 or uint32, memory-mapped; starts: (D,) int64, ascending, starts[0] = 0;
    names: D document names.
    """

    tokens: npt.NDArray[Any]
    starts: npt.NDArray[np.int64]
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Tokens of every document, its end token included, (D,)."""
        return np.diff(self.starts, append=len(self.tokens))


@dataclass
class TokenData:
    """A corpus, split and tokenised: what training and evaluation read.

    ``fingerprint`` stands for the texts and their division, ``tokenizer_fingerprint`` for the
    tokenizer's files; ``tokenizer_trained``: whether it was trained on these texts;
    ``notes`` say what was left out while reading.
    """

    train: Split
    validation: Split
    test: Split
    corpus: str
    fingerprint: str
    tokenizer_name: str
    tokenizer_fingerprint: str
    tokenizer_trained: bool
    vocab_size: int
    end_token: str
    end_id: int
    directory: Path
    notes: list[str] = field(default_factory=list)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer in transformers' form, with an end and a pad token."""
        return self.load_tokenizer()

    def load_tokenizer(self) -> PreTrainedTokenizerFast:
        """Read the tokenizer from its files; imports transformers."""
        return tokenizers_.load_tokenizer(self.directory / "tokenizer", self.tokenizer_trained)

    def difference(self, recorded: Mapping[str, Any]) -> str | None:
        """What differs from the data of a run's record, in words; None: nothing does.

        Args:
            recorded: what `summary` gave when the run was trained. Records from before
                tokenizers were fingerprinted are compared by their text alone.
        """
        changed = []
        for name, noun in (("fingerprint", "text"), ("tokenizer_fingerprint", "tokenizer")):
            then, now = recorded.get(name), getattr(self, name)
            if then is not None and then != now:
                changed.append(f"the {noun} was {then} and is now {now}")
        return "; ".join(changed) or None

    def summary(self) -> dict[str, str | int]:
        """Return what a run's record says about its data."""
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
        }


def write_shards(
    documents: Documents, split: npt.NDArray[np.int8], plan: TokenizerPlan, directory: Path
) -> None:
    """Train or read the tokenizer and write every split's tokens into ``directory``."""
    trained: Tokenizer | None = None
    if plan.source is None:
        chosen = _training_sample(documents, np.flatnonzero(split == TRAIN))
        log.info("training the tokenizer on %s documents", f"{len(chosen):,}")
        trained = tokenizers_.train_bpe(documents.texts(chosen), plan.vocab_size)
        end_token = tokenizers_.END
        encoder = trained
    else:
        end_token = str(plan.source.eos_token)
        encoder = plan.source.backend_tokenizer
        encoder.no_truncation()
        encoder.no_padding()
    tokenizers_.save_tokenizer(plan, trained, directory / "tokenizer")
    end_id = encoder.token_to_id(end_token)
    # Text that happens to spell a special token is text: it must not end a document.
    encoder.encode_special_tokens = True
    dtype = np.dtype(np.uint16 if plan.vocab_size <= 2**16 else np.uint32)
    for index, name in enumerate(SPLITS):
        members = np.flatnonzero(split == index)
        log.info("tokenising %s documents for %s", f"{len(members):,}", name)
        starts, position = [], 0
        with (directory / f"{name}.bin").open("wb") as out:
            for batch in _batches(documents, members):
                for ids in encode(encoder, batch):
                    starts.append(position)
                    position += len(ids) + 1
                    np.array([*ids, end_id], dtype=dtype).tofile(out)
        np.save(directory / f"{name}.starts.npy", np.array(starts, dtype=np.int64))
        names = "\n".join(documents.names[i] for i in members)
        (directory / f"{name}.names.txt").write_bytes(names.encode("utf-8", "replace"))
    meta = {
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
    """Yield the token numbers of every text; the tokenizer uses every core."""
    for encoding in encoder.encode_batch_fast(texts, add_special_tokens=False):
        yield encoding.ids


def _training_sample(documents: Documents, members: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the training documents, or every k-th if they are too much text for BPE training."""
    total = int(documents.sizes[members].sum())
    return members[:: -(-total // tokenizers_.TRAINING_BYTES)]


def _batches(documents: Documents, members: npt.NDArray[np.int64]) -> Iterable[list[str]]:
    batch: list[str] = []
    size = 0
    for i, text in zip(members, documents.texts(members), strict=True):
        batch.append(text)
        size += int(documents.sizes[i])
        if size >= ENCODE_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def read_shards(
    directory: Path, corpus: str, fingerprint: str, tokenizer: str, notes: list[str]
) -> TokenData:
    """Map an undamaged cache entry; nothing is read but the starts and the names."""
    meta = json.loads((directory / "meta.json").read_text())

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
        corpus=corpus,
        fingerprint=fingerprint,
        tokenizer_name=tokenizer,
        tokenizer_fingerprint=meta["tokenizer_fingerprint"],
        tokenizer_trained=meta["tokenizer_trained"],
        vocab_size=meta["vocab_size"],
        end_token=meta["end_token"],
        end_id=meta["end_id"],
        directory=directory,
        notes=notes,
    )
