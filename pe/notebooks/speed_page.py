"""What the speed notebook does and shows: the plan, the measuring, the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pe.speed import rig, tables
from pe.speed.record import Settings, Speed, SpeedRun
from pe.training.progress import Progress

if TYPE_CHECKING:
    from IPython.display import Markdown
    from matplotlib.figure import Figure


def plan(run: SpeedRun, minutes: float | None = None) -> Markdown:
    """What will be measured, and where it goes."""
    chosen = _settings(run)
    systems = ", ".join(chosen.systems)
    limit = f"nothing is begun after {minutes:g} minutes" if minutes else "no limit"
    rows = {
        "sizes": f"recipe `{chosen.recipe}`",
        "tokens in a step": f"{chosen.tokens:,}",
        "lengths": ", ".join(f"{n:,}" for n in chosen.lengths) + " tokens",
        "modes": ", ".join(tables.MODES[mode] for mode in chosen.modes),
        "systems": systems,
        "cells": f"{len(rig('plan').order(chosen))}",
        "repeats of each": f"{chosen.repeats}",
        "compiled": "yes" if chosen.compiled else "no",
        "time": limit,
        "recorded in": f"`{run.records.name}/{run.study}/{run.name}`",
    }
    lines = [f"| {key} | {value} |" for key, value in rows.items()]
    return _markdown("| | |\n|---|---|\n" + "\n".join(lines))


def carry_out(run: SpeedRun, minutes: float | None = None) -> Speed:
    """Measure what is not recorded, with a progress line."""
    rigged, chosen = rig("measure"), _settings(run)
    total, progress = len(rigged.order(chosen)), Progress()

    def on_row(row: dict[str, Any], speed: Speed) -> None:
        done = len({(r["system"], r["mode"], r["length"]) for r in speed.record["cells"]})
        progress.show(f"{done}/{total} {rigged.line(row, speed)}", last=done == total)

    return Speed(rigged.measure(run, chosen, minutes=minutes or 0.0, on_row=on_row))


def machine(speed: Speed) -> Markdown:
    """Where, when and with what."""
    return _markdown(tables.machine(speed))


def figure(speed: Speed) -> Figure:
    """Throughput and memory of a training step by length."""
    from pe.figures import speed as figures_speed

    return figures_speed.training(speed)


def overview(speed: Speed) -> Markdown:
    """Encodings by lengths, one table per mode."""
    texts = [f"{_title(mode)}\n\n{tables.overview(speed, mode)}" for mode in _modes(speed)]
    return _markdown("\n\n".join(texts))


def everything(speed: Speed) -> Markdown:
    """A table for each mode and length."""
    return _markdown(
        "\n\n".join(
            f"{_title(mode)}, {length:,} tokens\n\n{tables.details(speed, mode, length)}"
            for mode in _modes(speed)
            for length in tables.known_lengths(speed, mode)
        )
    )


def peers(speed: Speed) -> Markdown:
    """How many times as fast ours are."""
    found = tables.peers(speed)
    return _markdown(found if found.count("\n") > 1 else "No other library was measured.")


def drift(speed: Speed) -> Markdown:
    """The rounds of NoPE."""
    return _markdown(tables.drift(speed))


def _modes(speed: Speed) -> list[str]:
    return [str(mode) for mode in speed.settings["modes"]]


def _title(mode: str) -> str:
    text = tables.MODES[mode]
    return f"**{text[0].upper()}{text[1:]}**"


def _settings(run: SpeedRun) -> Settings:
    assert run.settings is not None, "made by configure_speed"
    return run.settings


def _markdown(text: str) -> Markdown:
    from IPython.display import Markdown

    return Markdown(text)
