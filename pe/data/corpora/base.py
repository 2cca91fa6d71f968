"""The interface of a corpus, and the register of corpora that have a name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

BYTES_PER_TOKEN = 4
"""The bytes of text that count as one token of a budget."""
HELD_OUT_SHARE = 0.05
"""The share of a budget that a corpus's own validation split may use, and its test split too."""


@dataclass(frozen=True)
class Document:
    """A text, and a name that is the same on every machine (a relative path, a data set's id).

    A text that may be larger than memory is an iterable of pieces, which raises UnicodeDecodeError
    if the text turns out not to be UTF-8.
    """

    name: str
    text: str | Iterable[str]


@dataclass(frozen=True)
class Budget:
    """How much of a corpus is read; None means no limit."""

    tokens: int | None = None
    documents: int | None = None

    def share(self, part: float) -> Budget:
        """Return this budget times ``part``, with at least one document."""
        return Budget(
            None if self.tokens is None else int(self.tokens * part),
            None if self.documents is None else max(1, int(self.documents * part)),
        )


class Corpus:
    """The base class of all corpora: a named source of documents."""

    name: str
    keep: bool = False
    """Whether the cache keeps the documents, because reading them is slow, as over a network."""

    def __init__(self) -> None:
        self.skipped: Counter[str] = Counter()
        """The number of documents that were left out, by reason, for the user."""

    def identity(self) -> object:
        """Return a JSON value that changes whenever the content may have changed."""
        raise NotImplementedError

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield the parts of the corpus: the name of a split, and the part's documents.

        The name is None if the corpus does not divide itself into splits.
        """
        raise NotImplementedError


Factory = Callable[[], Corpus]
CORPORA: dict[str, Factory] = {}


def register(name: str) -> Callable[[Factory], Factory]:
    """Register a function without arguments, or a class, that makes the corpus called ``name``."""

    def add(factory: Factory) -> Factory:
        CORPORA[name] = factory
        return factory

    return add
