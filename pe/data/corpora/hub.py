"""Corpora of the Hugging Face hub, read through `datasets` streaming.

One table row is one corpus. Only as much is downloaded as the budget asks for
(``fineweb@200M``), and what was read is kept in the cache, so that another vocabulary size needs
no second download. Without a network, point ``PE_HUB_DIR`` at a directory that holds a folder of
the corpus' name with its parquet or JSON files: the same loader reads those.
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
    """Where a corpus lies on the hub: repository, configuration, our split -> theirs, columns."""

    repository: str
    config: str | None
    splits: Mapping[str | None, str]
    text: str = "text"
    id: str | None = None


HUB = {
    # The 10-billion-token samples: the full sets have the same columns.
    "fineweb": HubTable("HuggingFaceFW/fineweb", "sample-10BT", {None: "train"}, id="id"),
    "fineweb-edu": HubTable("HuggingFaceFW/fineweb-edu", "sample-10BT", {None: "train"}, id="id"),
    "tinystories": HubTable(
        "roneneldan/TinyStories", None, {"train": "train", "validation": "validation"}
    ),
    # deepmind/pg19 is a loading script, which datasets 4 and later refuse; this is its parquet.
    "pg19": HubTable(
        "emozilla/pg19",
        None,
        {"train": "train", "validation": "validation", "test": "test"},
        id="url",
    ),
}


class HubCorpus(Corpus):
    """A streamed corpus; ``mirror`` is a local directory of the same files, or None for the hub."""

    keep = True

    def __init__(self, name: str, table: HubTable, mirror: Path | None = None) -> None:
        super().__init__()
        self.name, self.table = name, table
        if mirror is None and os.environ.get("PE_HUB_DIR"):
            mirror = Path(os.environ["PE_HUB_DIR"]).expanduser() / name
        self.mirror = mirror
        self.data_files = None if mirror is None else _mirror_files(name, table, mirror)

    def identity(self) -> object:
        """The table row, and what `stamp` says of the files if a mirror is read."""
        files = [stamp(path) for paths in (self.data_files or {}).values() for path in paths]
        splits = [[ours, theirs] for ours, theirs in self.table.splits.items()]
        return ["hub", self.table.repository, self.table.config, splits, files]

    def parts(self) -> Iterable[tuple[str | None, Iterator[Document]]]:
        """One part per split that the data set has; the held-out ones first."""
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
        except Exception as error:  # datasets raises a dozen kinds, most of them from aiohttp
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
    """Group a mirror's data files by the hub's split names."""
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
