"""What a corpus is, and the register of those that have a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

BYTES_PER_TOKEN = 4
HELD_OUT_SHARE = 0.05
"""Part of a budget that a ready-made validation or test split may use."""


@dataclass(frozen=True)
class Document:
    """One text with a name that is stable between machines (a relative path, a data set's id).

    A text that may be larger than memory comes in pieces; one that is no UTF-8 raises
    UnicodeDecodeError where that is seen.
    """

    name: str
    text: str | Iterable[str]


@dataclass(frozen=True)
class Budget:
    """How much of a corpus to read; None means no limit."""

    tokens: int | None = None
    documents: int | None = None

    def share(self, part: float) -> Budget:
        """Return this budget scaled by ``part``, at least one document."""
        return Budget(
            None if self.tokens is None else int(self.tokens * part),
            None if self.documents is None else max(1, int(self.documents * part)),
        )


class Corpus:
    """Base class: a named source of documents.

    ``skipped`` counts, by reason, the documents left out while reading; it is reported, so
    nothing is dropped silently. ``keep`` asks for the documents to be kept in the cache once
    read, which a corpus that comes over the network wants.
    """

    name: str
    keep: bool = False

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()

    def identity(self) -> object:
        """Return something JSON can hold that changes whenever the content may have changed."""
        raise NotImplementedError

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield (split, documents); split is train, validation, test, or None: not divided yet."""
        raise NotImplementedError


Factory = Callable[[], Corpus]
CORPORA: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Make a corpus known by ``name``; for a function without arguments that returns it."""

    def add(factory: Factory) -> Factory:
        CORPORA[name] = factory
        return factory

    return add
