"""The records the book is made of: the committed reference study, and the reader's own runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
from sphinx.util import logging

import pe
from pe import runs
from pe._errors import unknown
from pe.results import rows as results
from pe.speed.record import Speed
from pe.study.plan import Planned, load_plan

LOCAL = "local"
FILES = ("run.json", "metrics.jsonl", "evaluation.json", "extension.json")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A run as it was when the build began, read and validated once.

    It has the methods of `pe.results.quantities.RunLike`.
    """

    run: runs.Run
    record: dict[str, Any]
    evaluated: dict[str, Any] | None
    table: pandas.DataFrame
    extended: dict[str, Any] | None = None
    searches: dict[float, dict[str, Any]] = field(default_factory=dict)
    """The searches for LongRoPE's factors, by the factor of the extension."""

    @classmethod
    def of(cls, run: runs.Run) -> Snapshot:
        """Read all files of a run. RunError names the one that is damaged."""
        searches = {}
        for path in sorted(run.directory.glob("longrope-*x.json")):
            search = run.part("longrope", path.stem.removeprefix("longrope"))
            assert search is not None
            searches[search["settings"]["factor"]] = search
        parts = (run.read(), run.evaluation(), run.metrics(), run.part("extension"))
        return cls(run, *parts, searches)

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def study(self) -> str:
        return self.run.study

    @property
    def directory(self) -> Path:
        return self.run.directory

    def read(self) -> dict[str, Any]:
        return self.record

    def evaluation(self) -> dict[str, Any] | None:
        return self.evaluated

    def metrics(self) -> pandas.DataFrame:
        return self.table


@dataclass(frozen=True)
class Speeds:
    """All records of speed, the one that pages show, and the files of all."""

    all: list[Speed]
    best: Speed | None
    files: list[Path]


@dataclass
class Studies:
    """All studies by name. Only complete runs are shown; the others are named with their reason."""

    reference: str
    runs: dict[str, list[Snapshot]] = field(default_factory=dict)
    incomplete: dict[str, list[Snapshot]] = field(default_factory=dict)
    _rows: dict[str, dict[str, results.Row]] = field(default_factory=dict)
    _plans: dict[str, list[Planned]] = field(default_factory=dict)

    def rows(self, study: str) -> dict[str, results.Row]:
        """Return the rows of a study by name. They are computed once.

        Raises:
            ValueError: no such study.
        """
        if study not in self.runs:
            raise unknown("study", study, self.runs)
        if study not in self._rows:
            planned = self.plan(study) if results.planned(study) else []
            found = results.rows(study, self.runs[study], planned)
            self._rows[study] = {row.label: row for row in found}
        return self._rows[study]

    def recorded(self, study: str) -> dict[str, results.Row]:
        """Return `rows`, or none if no run of the study is complete."""
        return self.rows(study) if study in self.runs else {}

    def plan(self, study: str) -> list[Planned]:
        """Return the plan of a study's YAML. It is read once.

        Raises:
            ValueError: there is no such YAML, or it does not describe a study.
        """
        if study not in self._plans:
            self._plans[study] = load_plan(study)
        return self._plans[study]

    def row(self, study: str, label: str) -> results.Row:
        """Return one row of a study. ValueError names the nearest if there is no such row."""
        rows = self.rows(study)
        if label not in rows:
            raise unknown("row", label, rows)
        return rows[label]

    @classmethod
    def load(cls, committed: Path, own: Path, reference: str) -> Studies:
        """Read every record.

        Args:
            committed: the checkout's runs/. A damaged record in it stops the build.
            own: the folder of the reader's runs (`pe.runs.root`). Damage there is a warning.
            reference: the study that keys without a study's name refer to.

        Raises:
            RunError: the reference study is missing, or committed records are damaged.
        """
        studies = cls(reference)
        damaged = []
        found = [*committed.glob("*/*/run.json"), *own.glob(f"{LOCAL}/*/run.json")]
        for path in sorted(set(found)):
            try:
                run = Snapshot.of(runs.Run(path.parent))
            except runs.RunError as error:
                if path.parent.parent.name != LOCAL:
                    damaged.append(str(error))
                else:
                    log.warning("a run of yours is left out: %s", error, type="pe", subtype="run")
                continue
            complete = run.read()["status"] == "complete"
            group = studies.runs if complete else studies.incomplete
            group.setdefault(run.study, []).append(run)
        if damaged:
            raise runs.RunError("these are damaged:\n" + "\n".join(damaged))
        if not studies.runs.get(reference):
            raise runs.RunError(
                f"there is no complete run in {committed / reference}: this is the committed "
                f"reference study; restore it with `git checkout -- runs/{reference}`"
            )
        return studies

    def complete(self) -> list[Snapshot]:
        """Return the complete runs of all studies."""
        return [run for found in self.runs.values() for run in found]


def fingerprint(root: Path, own: Path) -> str:
    """Return a hash of all records, of the code of the package and the book, and of all YAML.

    Every page that shows a record, or asks the package, depends on the one file that holds this
    hash. So no such page is left stale.

    Args:
        root: the checkout. own: the folder of the reader's runs.
    """
    patterns = (
        (root, "runs/*/*/*.json*"), (own, "*/*/*.json*"), (Path(pe.__file__).parent, "**/*.py"),
        (Path(__file__).parent, "book*.py"), (root, "studies/**/*.yaml"),
        (root, "book/tables/*.yaml"),
    )  # fmt: skip
    paths = {path for folder, pattern in patterns for path in folder.glob(pattern)}
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest() + "\n"
