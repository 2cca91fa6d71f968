"""The corpora: names and paths that the field ``corpus`` of a recipe may have.

A corpus is an object with a name, an identity and parts. The identity is cheap to compute and
changes whenever the content may have changed. Each part is a stream of documents. Every module of
this package registers its corpora with ``@register("name")``, so a new corpus is a new file here.
`local` opens everything that is a path. ``name@budget`` reads only the beginning of a corpus:
``fineweb@200M`` (tokens, counted as 4 bytes of text each) or ``fineweb@5000docs``.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

from pe._errors import GUIDE, nearest
from pe.data.corpora.base import (
    BYTES_PER_TOKEN,
    CORPORA,
    HELD_OUT_SHARE,
    Budget,
    Corpus,
    Document,
    register,
)

__all__ = [
    "BYTES_PER_TOKEN", "CORPORA", "HELD_OUT_SHARE", "Budget", "Corpus", "Document", "is_path",
    "names", "open_corpus", "register",
]  # fmt: skip

_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}
_BUDGET = re.compile(r"(?P<base>.+)@(?P<number>\d+(?:\.\d+)?)(?P<unit>[kMG]?)(?P<docs>docs)?")


def names() -> list[str]:
    """Return the known corpus names, sorted."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return sorted(CORPORA)


def _parts(spec: str) -> tuple[str, re.Match[str] | None]:
    """Return the corpus without its budget, and the budget.

    If the whole is a path that exists, an ``@`` is a part of it, and there is no budget.
    """
    match = _BUDGET.fullmatch(spec)
    if match is None or Path(spec).expanduser().exists():
        return spec, None
    return match["base"], match


def is_path(spec: str) -> bool:
    """Return whether ``spec`` is a path of files on this machine and not the name of a corpus."""
    base, _ = _parts(spec)
    return base not in names() and Path(base).expanduser().exists()


def open_corpus(spec: str, separator: str = "") -> tuple[Corpus, Budget]:
    """Return the corpus that ``spec`` names, and the budget after its ``@``.

    Args:
        spec: a known name or a path, and perhaps a budget.
        separator: the text between the documents of a .txt file; "": a file is one document.

    Raises:
        ValueError: the name is neither known nor a path, or a ``separator`` is given and no .txt
            file is read.
    """
    from pe.data.corpora.local import LocalCorpus

    known = names()
    if not spec:
        raise ValueError(f"corpus: expected a path or one of {', '.join(known)}; got ''; {GUIDE}")
    budget, (base, match) = Budget(), _parts(spec)
    if match:
        amount = int(float(match["number"]) * _UNITS[match["unit"]])
        if amount < 1:
            raise ValueError(f"corpus {spec!r} has a budget of 0: give a budget of at least 1")
        budget = Budget(documents=amount) if match["docs"] else Budget(tokens=amount)
    if base in CORPORA:
        if separator:
            raise ValueError(
                f"separator: {separator!r} has no effect on corpus {base!r}; it is for .txt files"
            )
        return CORPORA[base](), budget
    path = Path(base).expanduser()
    if path.exists():
        return LocalCorpus(path, base, separator), budget
    if "@" in base:
        raise ValueError(
            f"corpus {spec!r}: a budget is a number with k, M or G, and docs if it counts "
            f"documents, such as @200M or @5000docs; {GUIDE}"
        )
    raise ValueError(
        f"unknown corpus {base!r}{nearest(base, known)}: it is not one of {', '.join(known)}, "
        f"and no file or directory was found at {path.absolute()}; {GUIDE}"
    )
