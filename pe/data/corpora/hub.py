"""Corpora of the Hugging Face hub, which `datasets` streams.

A row of the table `HUB` is a corpus. Only as much is downloaded as the budget asks for
(``fineweb@200M``), and the cache keeps it, so that another vocabulary size needs no second
download. Without a network, set the environment variable ``PE_HUB_DIR`` to a directory in which a
folder with the corpus's name holds its parquet or JSON files. The same loader reads these.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pe.data.corpora.base import Corpus, Document, register
from pe.data.corpora.local import files_under, split_of, stamp

_BUILDERS = {
    ".parquet": "parquet",
    ".jsonl": "json",
    ".json": "json",
    ".jsonl.gz": "json",
    ".json.gz": "json",
    ".jsonl.xz": "json",
    ".jsonl.zst": "json",
}


@dataclass(frozen=True)
class HubTable:
    """Where a corpus is on the hub, and how it is laid out."""

    repository: str
    config: str | None
    """The configuration of the data set, if it has several."""
    splits: Mapping[str | None, str]
    """The data set's name of each of our splits; None stands for text that is not divided."""
    text: str = "text"
    """The column with the text."""
    id: str | None = None
    """The column with a name, if there is one."""


HUB = {
    # These are samples of 10 billion tokens; the full data sets have the same columns.
    "fineweb": HubTable("HuggingFaceFW/fineweb", "sample-10BT", {None: "train"}, id="id"),
    "fineweb-edu": HubTable("HuggingFaceFW/fineweb-edu", "sample-10BT", {None: "train"}, id="id"),
    "tinystories": HubTable(
        "roneneldan/TinyStories", None, {"train": "train", "validation": "validation"}
    ),
    # deepmind/pg19 needs a loading script, which datasets 4 refuses; this is a copy in parquet.
    "pg19": HubTable(
        "emozilla/pg19",
        None,
        {"train": "train", "validation": "validation", "test": "test"},
        id="url",
    ),
}


class HubCorpus(Corpus):
    """A streamed corpus.

    Args:
        mirror: a local directory with the data set's files. None: that below ``PE_HUB_DIR`` if the
            variable is set, else the hub.
    """

    keep = True

    def __init__(self, name: str, table: HubTable, mirror: Path | None = None) -> None:
        super().__init__()
        self.name, self.table = name, table
        if mirror is None and os.environ.get("PE_HUB_DIR"):
            mirror = Path(os.environ["PE_HUB_DIR"]).expanduser() / name
        self.mirror = mirror
        self.data_files = None if mirror is None else _mirror_files(name, table, mirror)

    def identity(self) -> object:
        """Return the row of the table, and, if a mirror is read, the `stamp` of its files."""
        files = [stamp(path) for paths in (self.data_files or {}).values() for path in paths]
        splits = [[ours, theirs] for ours, theirs in self.table.splits.items()]
        return ["hub", self.table.repository, self.table.config, splits, files]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield a part per split of the data set, held-out splits first."""
        order = sorted(self.table.splits, key=lambda split: split in (None, "train"))
        for split in order:
            theirs = self.table.splits[split]
            if self.data_files is None or theirs in self.data_files:
                yield split, self._documents(theirs)

    def _documents(self, split: str) -> Iterator[Document]:
        table = self.table
        try:
            for row, record in enumerate(self._stream(split)):
                if table.text not in record:
                    raise ValueError(
                        f"corpus {self.name!r} has no column {table.text!r}; "
                        f"its columns are {', '.join(record)}"
                    )
                name = record.get(table.id) if table.id else None
                yield Document(str(name or f"{split}:{row}"), record[table.text] or "")
        except ValueError:
            raise
        except Exception as error:  # datasets raises errors of a dozen types, most from aiohttp
            reason = str(error).strip().splitlines() or [""]
            raise ValueError(
                f"corpus {self.name!r} ({self.mirror or table.repository}) could not be read "
                f"({type(error).__name__}: {reason[0]}): check the network, put its files under "
                f"PE_HUB_DIR/{self.name}, or use corpus 'stdlib', which needs no download"
            ) from error

    def _stream(self, split: str) -> Iterable[dict[str, Any]]:
        from datasets import load_dataset

        if self.data_files is None:
            stream: Iterable[dict[str, Any]] = load_dataset(
                self.table.repository, self.table.config, split=split, streaming=True
            )
            return stream
        paths = self.data_files[split]
        stream = load_dataset(
            _builder(paths[0]),
            data_files={split: [str(path) for path in paths]},
            split=split,
            streaming=True,
        )
        return stream


def _mirror_files(name: str, table: HubTable, mirror: Path) -> dict[str, list[Path]]:
    """Return the data files of a mirror by the data set's names of splits."""
    files = files_under(mirror, _BUILDERS) if mirror.is_dir() else []
    if not files:
        raise ValueError(
            f"corpus {name!r} is to be read from {mirror} (PE_HUB_DIR), but no file ending in "
            f"{', '.join(_BUILDERS)} is there"
        )
    if len({_builder(path) for path in files}) > 1:
        raise ValueError(f"{mirror} mixes parquet and JSON files; keep one kind")
    if len(table.splits) == 1:
        return {next(iter(table.splits.values())): files}
    grouped: dict[str, list[Path]] = {}
    for path in files:
        split = split_of(path.relative_to(mirror))
        if split is None:
            raise ValueError(
                f"{path} belongs to no split of {name!r}; its name should begin with one of "
                f"{', '.join(table.splits.values())}"
            )
        grouped.setdefault(split, []).append(path)
    return grouped


def _builder(path: Path) -> str:
    return next(kind for suffix, kind in _BUILDERS.items() if path.name.endswith(suffix))


for _name, _table in HUB.items():
    register(_name)(partial(HubCorpus, _name, _table))
