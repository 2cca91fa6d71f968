"""Measure every cell of a speed run within a time limit, and continue where an earlier one stopped.

The record is written after each cell, so a killed process loses at most one. NoPE is measured
before the first cell of each mode and length and again after every few cells. Its spread shows how
far the machine drifted.
"""

from __future__ import annotations

import gc
import importlib.metadata
import time
from collections.abc import Callable
from typing import Any

import torch

from pe.recipes.command import notebook_command
from pe.runs import SCHEMA_VERSION, RunError
from pe.runs.provenance import code, command, hardware, now, versions
from pe.speed.names import library
from pe.speed.record import TIME_UP, Settings, Speed, SpeedRun

from .cell import NOTHING, measure_cell
from .plan import Cell, order, parameters

NOPE_EVERY = 5
"""Cells of a mode and length between two rounds of NoPE."""
OnRow = Callable[[dict[str, Any], Speed], None]


def measure(
    run: SpeedRun,
    chosen: Settings,
    *,
    minutes: float = 0.0,
    on_row: OnRow | None = None,
) -> dict[str, Any]:
    """Measure the cells that are not in the record yet, and return the record.

    An earlier record may have fewer systems: the others are added to it.

    Args:
        minutes: no cell begins after this time; 0: no limit.
        on_row: called with each row and the record so far.

    Raises:
        ExceptionGroup: at the end, of errors in measurements; the record has their first lines.
        RunError: the earlier record has other settings or further systems, or is from another
            machine.
    """
    from pe import devices

    deadline = time.monotonic() + 60 * minutes if minutes else float("inf")
    device = devices.choose()
    record = _begun(run, chosen)
    todo = left(record, chosen)
    if not todo:
        return record
    record["sessions"].append(_session(run, chosen))
    record["cells"] = [row for row in record["cells"] if row["reason"] != TIME_UP]
    record["status"] = "running"
    since: dict[tuple[str, int], int] = {}
    failures: list[Exception] = []
    gc.freeze()  # what is there already need not be looked through after each cell
    try:
        for index, cell in enumerate(todo):
            for part in _with_nope(cell, since):
                if time.monotonic() >= deadline:
                    _note_rest(record, todo[index:])
                    return _end(run, record, "stopped")
                try:
                    row = _row(part, chosen, device, record, run)
                except Exception as error:
                    torch.zeros(1, device=device).item()  # after some errors a GPU needs a restart
                    failures.append(error)
                    continue
                if on_row is not None:
                    on_row(row, Speed(record))
        _end(run, record, "complete")
    except BaseException:
        _end(run, record, "stopped")
        raise
    finally:
        gc.unfreeze()
    if failures:
        raise ExceptionGroup(f"{run.file} says which measurements failed", failures)
    return record


def _begun(run: SpeedRun, chosen: Settings) -> dict[str, Any]:
    if not run.exists():
        return {
            "schema": SCHEMA_VERSION, "study": run.study, "run": run.name, "status": "running",
            "settings": chosen.model_dump(), "sessions": [], "cells": [],
        }  # fmt: skip
    start = run.read()
    began = Settings.model_validate(start["settings"]).model_dump()
    differ = [k for k, v in chosen.model_dump().items() if began[k] != v]
    if differ == ["systems"] and set(began["systems"]) <= set(chosen.systems):
        start["settings"] = chosen.model_dump()  # the same measurements of more systems
    elif differ:
        raise RunError(
            f"{run.study}/{run.name} was begun with other {', '.join(differ)}; go on with its own "
            "settings, or give this one another name"
        )
    machine, before = hardware()["name"], Speed(start).hardware["name"]
    if left(start, chosen) and machine != before:
        raise RunError(
            f"{run.study}/{run.name} was measured on {before} and this is {machine}; give the "
            "measurements of another machine another name"
        )
    return start


def left(record: dict[str, Any], chosen: Settings) -> list[Cell]:
    """Return the cells without a row, or with a row that says that the time was up."""
    done = {
        (row["system"], row["mode"], row["length"])
        for row in record["cells"]
        if row["reason"] != TIME_UP
    }
    return [cell for cell in order(chosen) if cell[:3] not in done]


def _session(run: SpeedRun, chosen: Settings) -> dict[str, Any]:
    return {
        "created": now(), "finished": None,
        "command": command() or notebook_command(parameters(chosen, run.name), "speed"),
        "code": code(),
        "versions": versions() | _more_versions(),
        "hardware": hardware(), "helpers": 0,
    }  # fmt: skip


def _more_versions() -> dict[str, str]:
    """Return the versions of the installed packages that only speed runs use."""
    installed = {}
    for package in ("triton", "x-transformers"):
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


def _with_nope(cell: Cell, since: dict[tuple[str, int], int]) -> list[Cell]:
    """Return the cell, preceded by a measurement of NoPE if one is due."""
    key = (cell.mode, cell.length)
    due = key not in since or since[key] >= NOPE_EVERY
    since[key] = 1 if due else since[key] + 1
    if cell.system == "nope" or not due:
        return [cell]
    return [cell._replace(system="nope"), cell]


def _row(
    cell: Cell,
    chosen: Settings,
    device: Any,
    record: dict[str, Any],
    run: SpeedRun,
) -> dict[str, Any]:
    session = len(record["sessions"]) - 1
    earlier = [r for r in record["cells"] if (r["system"], r["mode"], r["length"]) == cell[:3]]
    place = {"session": session, "round": len(earlier)}
    try:
        row = measure_cell(cell, chosen, device) | place
    except Exception as error:
        # A later session does not repeat it, because it would fail again.
        reason = f"failed: {type(error).__name__}: {_line(error)}"
        record["cells"].append(_empty(cell, reason) | place)
        run.write(record)
        raise
    record["cells"].append(row)
    record["sessions"][-1]["finished"] = now()
    run.write(record)
    return row


def _note_rest(record: dict[str, Any], rest: list[Cell]) -> None:
    session = len(record["sessions"]) - 1
    done = {(row["system"], row["mode"], row["length"]) for row in record["cells"]}
    for cell in rest:
        if cell[:3] not in done:
            record["cells"].append(_empty(cell, TIME_UP) | {"session": session, "round": 0})


def _empty(cell: Cell, reason: str) -> dict[str, Any]:
    return cell._asdict() | NOTHING | {"reason": reason, "seconds": 0.0}


def _line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else ""


def _end(run: SpeedRun, record: dict[str, Any], status: str) -> dict[str, Any]:
    record["status"] = status
    record["sessions"][-1]["finished"] = now()
    run.write(record)
    return record


def line(row: dict[str, Any], speed: Speed) -> str:
    """Write a row as a line for a terminal."""
    where = f"{row['mode']:7} {row['batch']:>3} x {row['length']:<6} {row['system']:22}"
    if row["reason"]:
        return f"{where} {row['reason']}"
    ratio = speed.ratio(row["system"], row["mode"], row["length"])
    peer = "peer: " if library(row["system"]) else ""
    shown = [
        f"{row['tokens_per_second']:>12,.0f} tokens/s",
        f"({row['least']:,.0f} to {row['most']:,.0f})",
        "" if ratio is None else f"{ratio:.3f} of NoPE",
        "" if row["mfu"] is None else f"MFU {row['mfu']:.1%}",
        "" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.2f} GiB",
        f"first step {row['first_step_seconds']:.1f} s",
        f"[{peer}{row['path']}]",
    ]
    return " ".join([where, *(text for text in shown if text)])
