"""One record of parts that were measured side by side: a card of one machine for each.

A machine is lent by the minute, and what it costs to measure everything on one of its cards is
often more than that. Every part has its own rounds of NoPE, and a ratio to NoPE never leaves its
session, so it means the same in the whole as in the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pe.runs import RunError
from pe.speed.measure import left
from pe.speed.plan import MODES, PEERS, Settings
from pe.speed.record import TIME_UP, SpeedRun

ALIKE = ("recipe", "tokens", "lengths", "repeats", "compiled", "deterministic")
"""Settings that parts have in common."""


def join(run: SpeedRun, parts: Sequence[SpeedRun]) -> dict[str, Any]:
    """Write the record of ``run``: the sessions and cells of all ``parts``, in their order.

    It is complete if no system lacks a mode or a length; `pe.speed.measure.measure` goes on with
    it otherwise.

    Raises:
        RunError: fewer than two parts; parts of other settings, machines or code; a record that is
            there already.
    """
    if run.exists():
        raise RunError(f"{run.file} exists; give the whole another name")
    if len(parts) < 2:
        raise RunError(f"a whole has two parts or more, got {len(parts)}")
    records = [part.read() for part in parts]
    first = records[0]
    for part, record in zip(parts[1:], records[1:], strict=True):
        _same(parts[0], first, part, record)
    chosen = _settings([record["settings"] for record in records])
    sessions: list[dict[str, Any]] = []
    cells: list[dict[str, Any]] = []
    rounds: dict[tuple[str, str, int], int] = {}
    for record in records:
        for row in record["cells"]:
            if row["reason"] == TIME_UP:
                continue
            key = (row["system"], row["mode"], row["length"])
            place = {"session": len(sessions) + row["session"], "round": rounds.get(key, 0)}
            rounds[key] = place["round"] + 1
            cells.append(row | place)
        sessions += record["sessions"]
    whole = first | {
        "run": run.name, "settings": chosen.to_dict(), "sessions": sessions, "cells": cells,
    }  # fmt: skip
    whole["status"] = "stopped" if left(whole, chosen) else "complete"
    run.write(whole)
    return whole


def _same(one: SpeedRun, first: dict[str, Any], other: SpeedRun, record: dict[str, Any]) -> None:
    begun, settings = (Settings.from_dict(r["settings"]).to_dict() for r in (first, record))
    differ = [key for key in ALIKE if begun[key] != settings[key]]
    for key, value in _made(first).items():
        if value != _made(record)[key]:
            differ.append(key)
    if differ:
        raise RunError(
            f"{other.name} and {one.name} have other {', '.join(differ)}; join records that differ "
            "in nothing but what they measured"
        )


def _made(record: dict[str, Any]) -> dict[str, Any]:
    sessions = record["sessions"]
    return {
        "hardware": {session["hardware"]["name"] for session in sessions},
        "code": {session["code"]["commit"] for session in sessions},
    }


def _settings(all_of_them: Sequence[dict[str, Any]]) -> Settings:
    """Those of the first, with every mode and system that any part asked for."""
    modes = {mode for given in all_of_them for mode in given["modes"]}
    systems = dict.fromkeys(system for given in all_of_them for system in given["systems"])
    values = all_of_them[0] | {
        "modes": [mode for mode in MODES if mode in modes],
        "systems": sorted(systems, key=lambda s: PEERS.index(s) if s in PEERS else -1),
    }
    return Settings.from_dict(values)
