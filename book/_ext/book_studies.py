"""The records the book is made of: the committed reference study, and the reader's own runs."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas
from sphinx.util import logging

from pe import results as results_package
from pe import runs
from pe._errors import unknown
from pe.results import rows as results
from pe.speed.record import Speed

LOCAL = "local"
FILES = ("run.json", "metrics.jsonl", "evaluation.json", "extension.json")
SEARCH = "longrope-*x.json"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Snapshot:
    """A run as it stood when the build began, read and validated once. See
    `pe.results.quantities.RunLike`."""

    run: runs.Run
    record: dict[str, Any]
    evaluated: dict[str, Any] | None
    table: pandas.DataFrame
    extended: dict[str, Any] | None = None
    searches: dict[float, dict[str, Any]] = field(default_factory=dict)
    """By factor: what was searched for LongRoPE."""

    @classmethod
    def of(cls, run: runs.Run) -> Snapshot:
        """Read everything; RunError names what is damaged."""
        searches = {}
        for path in sorted(run.directory.glob(SEARCH)):
            suffix = re.sub(r"^longrope", "", path.stem)
            found = run.part("longrope", suffix)
            assert found is not None
            searches[found["settings"]["factor"]] = found
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
    """All records of speed, and the one that pages show."""

    all: list[Speed]
    best: Speed | None


@dataclass
class Studies:
    """All studies by name. Only complete runs are shown; the others are named with their reason."""

    reference: str
    runs: dict[str, list[Snapshot]] = field(default_factory=dict)
    incomplete: dict[str, list[Snapshot]] = field(default_factory=dict)
    _rows: dict[str, dict[str, results.Row]] = field(default_factory=dict)

    def rows(self, study: str) -> dict[str, results.Row]:
        """The rows of a study by name; worked out once.

        Raises:
            ValueError: no such study.
        """
        if study not in self.runs:
            raise unknown("study", study, self.runs)
        if study not in self._rows:
            found = results.rows(study, self.runs[study])
            self._rows[study] = {row.label: row for row in found}
        return self._rows[study]

    def row(self, study: str, label: str) -> results.Row:
        """One of them. ValueError names the nearest if there is none."""
        rows = self.rows(study)
        if label not in rows:
            raise unknown("row", label, rows)
        return rows[label]

    @classmethod
    def load(cls, committed: Path, own: Path, reference: str) -> Studies:
        """Read every record.

        Args:
            committed: the checkout's runs/; a damaged record in it stops the build.
            own: where the reader's runs are (``pe.runs.root()``); damage there is a warning.
            reference: name of the study that the prose speaks of.

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
        """Every complete run of every study."""
        return [run for found in self.runs.values() for run in found]

    def fingerprint(self) -> str:
        """JSON of every record's hash, and of the code that shows records.

        Pages that read records depend on the one file that holds this, so none is left stale.
        """
        here = Path(__file__).resolve().parent
        package = Path(results_package.__file__ or "").resolve().parents[1]
        code = [*here.glob("book*.py"), *package.glob("results/*.py"), *package.glob("study/*.py")]
        code += (here.parents[1] / "studies").glob("*.yaml")
        shown = b"".join(path.read_bytes() for path in sorted(code))
        result = {"code": hashlib.sha256(shown).hexdigest()}
        for study in (self.runs, self.incomplete):
            for run in (run for found in study.values() for run in found):
                files = [run.directory / name for name in FILES]
                for path in [*files, *sorted(run.directory.glob(SEARCH))]:
                    if path.exists():
                        digest = hashlib.sha256(path.read_bytes()).hexdigest()
                        result[f"{run.study}/{run.name}/{path.name}"] = digest
        return json.dumps(result, indent=1, sort_keys=True) + "\n"
