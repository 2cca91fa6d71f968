"""Corpora of the Hugging Face hub, which `datasets` streams.

A row of the table `HUB` is a corpus. Only as much is downloaded as the budget asks for
(``fineweb@200M``), and the cache keeps it, so that another vocabulary size needs no second
download. Without a network, set the environment variable ``PE_HUB_DIR`` to a directory in which a
folder with the corpus's name holds its files; they are read as any local files are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pe.data.corpora.base import Corpus, Document, register
from pe.data.corpora.local import LocalCorpus


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
    """A streamed corpus."""

    keep = True

    def __init__(self, name: str, table: HubTable) -> None:
        super().__init__()
        self.name, self.table = name, table

    def identity(self) -> object:
        """Return the row of the table."""
        splits = [[ours, theirs] for ours, theirs in self.table.splits.items()]
        return ["hub", self.table.repository, self.table.config, splits, []]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """Yield a part per split of the data set, held-out splits first."""
        order = sorted(self.table.splits, key=lambda split: split in (None, "train"))
        for split in order:
            yield split, self._documents(self.table.splits[split])

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
                f"corpus {self.name!r} ({table.repository}) could not be read "
                f"({type(error).__name__}: {reason[0]}): check the network, put its files under "
                f"PE_HUB_DIR/{self.name}, or use corpus 'stdlib', which needs no download"
            ) from error

    def _stream(self, split: str) -> Iterable[dict[str, Any]]:
        from datasets import load_dataset

        table = self.table
        stream: Iterable[dict[str, Any]] = load_dataset(
            table.repository, table.config, split=split, streaming=True
        )
        return stream


def _open(name: str, table: HubTable) -> Corpus:
    """Return the corpus: the local files below ``PE_HUB_DIR`` if it is set, else those of the hub.

    Raises:
        ValueError: ``PE_HUB_DIR`` has no folder for this corpus, or none of its files can be read.
    """
    if not os.environ.get("PE_HUB_DIR"):
        return HubCorpus(name, table)
    folder = Path(os.environ["PE_HUB_DIR"]).expanduser() / name
    if not folder.is_dir():
        raise ValueError(
            f"corpus {name!r} is to be read from {folder} (PE_HUB_DIR), and there is no such "
            "folder; put its files there, or unset PE_HUB_DIR to read it from the hub"
        )
    return LocalCorpus(folder, name)


for _name, _table in HUB.items():
    register(_name)(partial(_open, _name, _table))
