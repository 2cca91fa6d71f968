"""The parts of the speed notebook: the plan, the measuring, the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pe.notebooks.page import show, shown
from pe.results.markdown import pipe
from pe.speed import rig, tables
from pe.speed.record import Speed, SpeedRun
from pe.training.progress import Progress

if TYPE_CHECKING:
    from IPython.display import Markdown


def plan(run: SpeedRun, minutes: float | None = None) -> Markdown:
    """Show what will be measured, and where the record goes."""
    chosen = run.settings
    assert chosen is not None, "made by configure_speed"
    rows = {
        "sizes": f"recipe `{chosen.recipe}`",
        "tokens in a step": f"{chosen.tokens:,}",
        "lengths": ", ".join(f"{n:,}" for n in chosen.lengths) + " tokens",
        "modes": ", ".join(tables.MODES[mode] for mode in chosen.modes),
        "systems": ", ".join(chosen.systems),
        "cells": f"{len(rig('plan').order(chosen))}",
        "repeats of each": f"{chosen.repeats}",
        "compiled": "yes" if chosen.compiled else "no",
        "time": f"nothing is begun after {minutes:g} minutes" if minutes else "no limit",
        "recorded in": f"`{shown(run)}`",
    }
    return show(pipe(["", ""], list(rows.items()), 2))


def carry_out(run: SpeedRun, minutes: float | None = None) -> Speed:
    """Measure what is not recorded, with a progress line."""
    rigged, progress = rig("measure"), Progress()
    total = len(rigged.order(run.settings))

    def on_row(row: dict[str, Any], speed: Speed) -> None:
        done = len({(r["system"], r["mode"], r["length"]) for r in speed.record["cells"]})
        progress.show(f"{done}/{total} {rigged.line(row, speed)}", last=done == total)

    return Speed(rigged.measure(run, run.settings, minutes=minutes or 0.0, on_row=on_row))


def overview(speed: Speed) -> Markdown:
    """Show encodings by lengths, one table per mode."""
    modes = speed.settings["modes"]
    return show("\n\n".join(f"**{tables.MODES[m]}**\n\n{tables.overview(speed, m)}" for m in modes))


def everything(speed: Speed) -> Markdown:
    """Show a table for each mode and length."""
    return show(
        "\n\n".join(
            f"**{tables.MODES[mode]}, {length:,} tokens**\n\n{tables.details(speed, mode, length)}"
            for mode in speed.settings["modes"]
            for length in tables.known_lengths(speed, mode)
        )
    )
