"""The record of a speed run, with medians and ratios. Imports no torch.

    runs/speed/<name>/speed.json     settings, sessions, cells (`pe.runs.models`)

A record may be made in several sessions, on the same kind of machine. NoPE is measured repeatedly,
so that a drift of the machine is visible. It has no influence on ratios to NoPE, because these
compare with the rounds of NoPE just before and just after, in the same session, mode and length.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pe.runs import Folder, RunError, root
from pe.runs.models import Mode
from pe.runs.models import SpeedSettings as Settings

MODES: tuple[Mode, ...] = get_args(Mode)
SMALL = 128
"""The mode ``small`` has one window of so many tokens."""
MAIN = (1024, 16384)
"""The lengths at which encodings are compared."""
STUDY = "speed"
TIME_UP = "not measured: time was up"
MISSING = "not measured"


class SpeedRun(Folder):
    """The folder of a speed run, whose record is speed.json."""

    notebook = "speed.ipynb"
    settings: Settings | None = None
    """The settings to measure, made by the rig's `settings`; None if the record is only read."""

    @property
    def file(self) -> Path:
        """The record."""
        return self.directory / "speed.json"

    def exists(self) -> bool:
        return self.file.exists()

    def read(self) -> dict[str, Any]:
        """Read and validate speed.json. RunError names the file if it is missing or damaged."""
        record = self.part("speed")
        if record is None:
            raise RunError(f"{self.file}: there is no such record")
        return record

    def write(self, record: dict[str, Any]) -> None:
        """Validate and replace speed.json."""
        self.write_part("speed", record)


def speed_run(name: str) -> SpeedRun:
    """Return the run of this name below runs/speed/."""
    return SpeedRun(root() / STUDY / name)


def default_name(recipe: str) -> str:
    """Name the machine and the sizes: ``nvidia-h100-80gb-hbm3-tiny``, ``cpu-demo``."""
    from pe.runs.provenance import hardware

    machine = hardware()
    name = "cpu" if machine["device"] == "cpu" else machine["name"].lower()
    return re.sub(r"[^a-z0-9]+", "-", f"{name} {recipe}").strip("-")


def find(folder: Path | None = None) -> list[SpeedRun]:
    """Return all speed runs below a folder of runs, by name."""
    base = root() if folder is None else folder
    return [SpeedRun(path.parent) for path in sorted(base.glob(f"{STUDY}/*/speed.json"))]


@dataclass(frozen=True)
class Result:
    """All rounds of one system in one mode at one length."""

    rows: tuple[dict[str, Any], ...]

    def __getitem__(self, key: str) -> Any:
        """Return a field of the first row that was measured; None if none was."""
        return self._measured[0][key] if self._measured else None

    @property
    def _measured(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if row["tokens_per_second"] is not None]

    @property
    def tokens_per_second(self) -> float | None:
        """The median over the rounds."""
        rates = [row["tokens_per_second"] for row in self._measured]
        return statistics.median(rates) if rates else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The least and the most tokens/s of any repeat of any round."""
        rows = self._measured
        return (min(r["least"] for r in rows), max(r["most"] for r in rows)) if rows else None

    @property
    def reason(self) -> str | None:
        """The reason why nothing was measured; None if something was."""
        if self._measured:
            return None
        return str(self.rows[-1]["reason"]) if self.rows else MISSING


class Speed:
    """The numbers of a record."""

    def __init__(self, record: dict[str, Any]) -> None:
        self.record = record
        self.settings = record["settings"]
        self._rows: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
        self._index = {id(row): index for index, row in enumerate(record["cells"])}
        for row in record["cells"]:
            self._rows.setdefault((row["system"], row["mode"], row["length"]), []).append(row)

    @property
    def hardware(self) -> dict[str, Any]:
        """The machine of the first session; later ones have the same kind."""
        return self.record["sessions"][0]["hardware"]  # type: ignore[no-any-return]

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU was measured."""
        return bool(self.hardware["device"] == "cuda")

    def lengths(self, mode: str = "train") -> list[int]:
        """Return the lengths that a mode was asked for, in order."""
        return [SMALL] if mode == "small" else sorted(self.settings["lengths"])

    def systems(self, mode: str | None = None) -> Iterator[str]:
        """Return the systems with a row, in the order of the settings."""
        there = {system for system, of, _ in self._rows if mode in (None, of)}
        return (system for system in self.settings["systems"] if system in there)

    def result(self, system: str, mode: str, length: int) -> Result:
        """Return all rounds of a cell; empty if there is none."""
        return Result(tuple(self._rows.get((system, mode, length), ())))

    def ratio(self, system: str, mode: str, length: int, to: str = "nope") -> float | None:
        """Return the speed of a system divided by that of ``to``; None if one was not measured.

        Both are first divided by the speed of NoPE, measured just before and after.
        """
        one, other = (self._over_nope(name, mode, length) for name in (system, to))
        return one / other if one and other else None

    def _over_nope(self, system: str, mode: str, length: int) -> float | None:
        """Return the median over rounds of tokens/s divided by NoPE's just before and after."""
        if system == "nope":
            return 1.0 if self.result("nope", mode, length).tokens_per_second else None
        ratios = []
        for row in self.result(system, mode, length).rows:
            beside = self._beside(row)
            if row["tokens_per_second"] is not None and beside:
                ratios.append(row["tokens_per_second"] / statistics.fmean(beside))
        return statistics.median(ratios) if ratios else None

    def _beside(self, row: dict[str, Any]) -> list[float]:
        """Return NoPE's tokens/s just before and after a row, of its session, mode and length."""
        same = [
            (self._index[id(r)], r["tokens_per_second"])
            for r in self.result("nope", row["mode"], row["length"]).rows
            if r["session"] == row["session"] and r["tokens_per_second"] is not None
        ]
        here = self._index[id(row)]
        before = [rate for index, rate in same if index < here]
        return before[-1:] + [rate for index, rate in same if index > here][:1]
