"""Values of records by address.

runs:STUDY/NAME.COLUMN            language models. NAME is a row of the study, an encoding (its runs
                                  from random weights) or the folder of a run. COLUMN is a column of
                                  `pe.runs.load`.
tasks:TASK/PE.SPLIT-QUANTITY      small models. QUANTITY is token, exact, loss or solved, or
                                  token@9+16-18: the mean share of right tokens at these positions.
                                  TASK may name options, as in copy@kind=repeat. Other options,
                                  except lengths, are the task's defaults. If several experiments
                                  fit, the one with most seeds is taken, then the one with most
                                  training, then the newest.
numerics:NAME/SUBJECT.QUANTITY    computed without training: runs/numerics/NAME/numerics.json
"""

from __future__ import annotations

import functools
import math
import re
import statistics
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pe import runs
from pe._errors import unknown
from pe.claims.ledger import parts
from pe.results.rows import planned
from pe.runs.models import NumericsRecord, TaskRecord
from pe.study.plan import load_plan
from pe.tasks import about
from pe.tasks.measure import record, summary

if TYPE_CHECKING:
    import pandas


QUANTITIES: dict[str, summary.Quantity] = {
    "token": summary.token, "exact": summary.exact, "loss": summary.loss,
}  # fmt: skip


POSITIONS = re.compile(r"\d+(-\d+)?(\+\d+(-\d+)?)*")


class Value(NamedTuple):
    """A value per seed, and its record."""

    by_seed: dict[int, float]
    """Computed values have the seed 0."""
    where: str
    """Folder below the folder of runs."""
    geometric: bool = False
    """Perplexities are averaged and compared in nats."""
    samples: int | None = None
    """The number of samples of a share that is computed without training; else None."""

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        mean = statistics.fmean(map(self.scale, self.by_seed.values()))
        return math.exp(mean) if self.geometric else mean

    def scale(self, value: float) -> float:
        """Return a value on the scale on which seeds are averaged and compared."""
        return math.log(value) if self.geometric else value

    def of(self, seeds: Collection[int]) -> Value:
        """Return the value of these seeds only."""
        return self._replace(by_seed={s: v for s, v in self.by_seed.items() if s in seeds})


class Values:
    """Looks up values in a folder of runs (default `pe.runs.root`).

    If ``tasks`` names a study, only small models of this study count, which all had the same
    training.
    """

    def __init__(self, folder: Path | None = None, tasks: str | None = None) -> None:
        self.folder = runs.root() if folder is None else folder
        self.tasks = tasks
        self._study = functools.cache(self._load_study)
        self._labels = functools.cache(self._load_labels)
        self._records = functools.cache(self._load_records)

    def __call__(self, key: str) -> Value | None:
        """Look a value up; None if it is not recorded yet.

        Raises:
            ValueError: an address that no record can have.
        """
        kind, place, subject, quantity = parts(key)
        look_up = {"runs": self._of_runs, "tasks": self._of_tasks, "numerics": self._of_numerics}
        return look_up[kind](place, subject, quantity)

    def _load_study(self, study: str) -> pandas.DataFrame | None:
        return runs.load(self.folder, study) if (self.folder / study).is_dir() else None

    def _load_labels(self, study: str) -> dict[str, str]:
        """Return the names of a study's runs in its plan, by folder; empty without a plan."""
        return {p.name: p.label for p in load_plan(study)} if planned(study) else {}

    def _load_records(self, task: str, pe: str) -> list[TaskRecord]:
        folders = [record.TaskRun(path) for path in sorted(self.folder.glob(f"*/{task}-*/"))]
        return [one for folder in folders if (one := folder.record(pe)) is not None]

    def _of_runs(self, study: str, subject: str, quantity: str) -> Value | None:
        table = self._study(study)
        if table is None or quantity not in table:
            return None
        labels = self._labels(study)
        if subject in labels.values():
            named = table["run"].map(labels.get) == subject
        else:
            named = table["run"] == subject
        scratch = (table["pe"] == subject) & table["start_from"].isna()
        mine = table[(named if named.any() else scratch) & (table["status"] == "complete")]
        if mine.empty or mine[quantity].isna().any():  # some of the seeds are another quantity
            return None
        if mine["seed"].duplicated().any():
            raise ValueError(
                f"{study}/{subject}: several runs of a seed; name one: {list(mine['run'])}"
            )
        by_seed = {int(s): float(v) for s, v in zip(mine["seed"], mine[quantity], strict=True)}
        names = ", ".join(f"{study}/{name}" for name in mine["run"])
        return Value(by_seed, names, geometric=quantity.startswith("ppl"))

    def _of_tasks(self, task: str, pe: str, quantity: str) -> Value | None:
        split, _, what = quantity.partition("-")
        what, _, places = what.partition("@")
        numbered = what == "token" and POSITIONS.fullmatch(places)
        if what not in (*QUANTITIES, "solved") or (places and not numbered):
            raise ValueError(
                f"{quantity!r}: expected SPLIT-token, -exact, -loss or -solved, or "
                "SPLIT-token@POSITIONS"
            )
        from pe.encodings import lookup  # brings torch
        from pe.encodings.core.spec import part_names

        name, options = _task_options(task)
        best: tuple[tuple[int, float, str], Value] | None = None
        for one in self._records(name, pe):
            if one.study == "local" or one.status != "complete":
                continue
            if self.tasks not in (None, one.study):
                continue
            if not _same_options(name, one.task_options, options):
                continue
            if split not in summary.splits(one):
                raise unknown("split", split, summary.splits(one))
            of = summary.token if what == "solved" else QUANTITIES[what]
            values = summary.by_seed(one, split, of)
            if places:
                values = _at_positions(one, split, places)
            if any(value is None for value in values):
                continue
            numbers = [float(v) for v in values if v is not None]
            if what == "solved":
                numbers = [float(v >= summary.SOLVED) for v in numbers]
            value = Value(dict(zip(one.seeds, numbers, strict=True)), f"{one.study}/{one.run}")
            trained = float(one.settings["steps"] * one.settings["batch_size"] * one.parameters)
            rank = len(one.seeds), trained, one.created
            if best is None or rank > best[0]:
                best = rank, value
        if best is None:
            for part in part_names(pe):
                lookup(part)  # raises ValueError if there is no such encoding
        return best and best[1]

    def _of_numerics(self, name: str, subject: str, quantity: str) -> Value | None:
        path = self.folder / "numerics" / name
        part = runs.Folder(path).part("numerics")
        if part is None:
            return None
        record = NumericsRecord.model_validate(part)
        values = record.values.get(subject, {})
        if quantity not in values:
            return None
        samples = record.settings.get(f"{quantity.partition('@')[0].partition('-')[2]}_samples")
        return Value({0: values[quantity]}, f"numerics/{name}", samples=samples)


def _at_positions(one: TaskRecord, split: str, places: str) -> list[float | None]:
    """Return the mean share of right tokens at positions such as ``9+16-18``, for each seed."""
    recorded = one.positions[split]
    if recorded is None:
        return [None]
    wanted: list[int] = []
    for part in places.split("+"):
        first, _, last = part.partition("-")
        wanted += range(int(first), int(last or first) + 1)
    if missing := sorted(set(wanted) - set(recorded.starts)):
        raise ValueError(f"{one.run}: positions {missing} are not recorded one by one")
    index = [recorded.starts.index(place) for place in wanted]
    return [_mean_at(shares, index) for shares in recorded.shares]


def _mean_at(shares: list[float | None], index: list[int]) -> float | None:
    known = [share for place in index if (share := shares[place]) is not None]
    return sum(known) / len(known) if len(known) == len(index) else None


def _task_options(address: str) -> tuple[str, dict[str, str]]:
    """Return a task and its options, ``copy@kind=repeat,items=50``, with defaults filled in.

    Raises:
        ValueError: the task does not have such an option, or an option has no value.
    """
    name, _, text = address.partition("@")
    defaults = {key: str(value) for key, value in about(name).options.items()}
    pairs = [pair.partition("=") for pair in text.split(",")] if text else []
    if not all(equals for _, equals, _ in pairs):
        raise ValueError(f"{address!r}: expected TASK@OPTION=VALUE, such as copy@kind=repeat")
    named = {key: value for key, _, value in pairs}
    if wrong := named.keys() - defaults.keys():
        raise unknown(f"option of the task {name!r}", min(wrong), defaults)
    return name, defaults | named


def _same_options(task: str, recorded: dict[str, Any], options: dict[str, str]) -> bool:
    """Return whether an experiment has these options, lengths aside, or their defaults."""
    there = about(task).options | recorded
    return all(
        str(value) == options[key] for key, value in there.items() if not key.endswith("_lengths")
    )
