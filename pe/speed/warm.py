"""Compile cells in several processes at once, before one process measures them.

Most of a cell's time is compiling, which uses one core and next to nothing of the GPU. A helper
builds a cell's system, compiles it, does one step, and leaves the graphs in torch's cache on disk,
where the process that measures finds them. Helpers end before anything is measured. One that runs
out of memory, or is broken by a kernel, costs no more than its share: the cell is then compiled
where it is measured, and what is wrong with it shows there.

    python -m pe.speed.warm FILE < work.json        a helper; appends one line of JSON a cell
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

import pe
from pe import devices
from pe.speed.cell import first_step, free
from pe.speed.plan import Cell, Settings

COMPILED = ".compiled.jsonl"
"""Beside a record, until all of it is measured."""


def warm(
    cells: Sequence[Cell], chosen: Settings, processes: int, seconds: float, folder: Path
) -> list[str]:
    """Compile ``cells`` in ``processes`` helpers, for at most ``seconds``.

    The seconds of each first step go to a file in ``folder`` as they come, for `compiled`.

    Returns:
        What went wrong, a line a cell or helper.
    """
    deadline = time.monotonic() + seconds
    above = str(Path(pe.__file__).resolve().parent.parent)
    path = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = str(max(1, (os.cpu_count() or 1) // processes))  # of each helper's own compiling
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": threads} | os.environ | {"PYTHONPATH": path}
    wrong: list[str] = []
    file = folder / COMPILED
    folder.mkdir(parents=True, exist_ok=True)
    before = len(_lines(file))
    with contextlib.ExitStack() as stack:
        helpers = []
        for index in range(min(processes, len(cells))):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # a pipe could fill up
            helper = subprocess.Popen(
                [sys.executable, "-m", "pe.speed.warm", str(file)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors, text=True,
                env=environment,
            )  # fmt: skip
            stack.callback(helper.kill)
            assert helper.stdin is not None
            mine = cells[index::processes]
            work = {"settings": chosen.to_dict(), "cells": mine, "processes": processes}
            json.dump(work, helper.stdin)
            helper.stdin.close()
            helpers.append((helper, errors))
        for helper, errors in helpers:
            try:
                helper.wait(timeout=max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                helper.kill()
                helper.wait()
                wrong.append("a helper was stopped, since time was up")
            else:
                if helper.returncode:
                    errors.seek(0)
                    last = errors.read().strip().splitlines()[-1:] or [""]
                    wrong.append(f"a helper ended with {helper.returncode}: {last[0][:200]}")
    told = [(Cell(*line["cell"]), line["error"]) for line in _lines(file)[before:]]
    return [f"{c.mode} {c.length} {c.system}: {e}" for c, e in told if e is not None] + wrong


class Warmed(NamedTuple):
    """A first step of a helper, and how many of them compiled side by side."""

    seconds: float
    processes: int


def compiled(folder: Path) -> dict[Cell, Warmed]:
    """The cells whose graphs helpers left in torch's cache."""
    return {
        Cell(*line["cell"]): Warmed(line["seconds"], line["processes"])
        for line in _lines(folder / COMPILED)
        if line["error"] is None
    }


def forget(folder: Path) -> None:
    """All is measured: the file has served."""
    (folder / COMPILED).unlink(missing_ok=True)


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    whole = file.read_text().rpartition("\n")[0]  # without a line that is being written
    return [json.loads(line) for line in whole.splitlines()]


def work(text: str, file: Path) -> None:
    """What a helper does; ``text`` is its work as JSON, and a line a cell goes to ``file``."""
    given: dict[str, Any] = json.loads(text)
    chosen = Settings.from_dict(given["settings"])
    device = devices.choose()
    if device.type == "cuda":  # so that one of them leaves memory to the others, and to other work
        torch.cuda.set_per_process_memory_fraction(1 / given["processes"])
    for values in given["cells"]:
        cell, seconds, error = Cell(*values), 0.0, None
        free(device)
        try:
            seconds = first_step(cell, chosen, device)
        except Exception as problem:  # told to the parent, which goes on without this cell
            lines = str(problem).strip().splitlines() or [""]
            error = f"{type(problem).__name__}: {lines[0][:200]}"
        line = {
            "cell": cell, "seconds": round(seconds, 3), "error": error,
            "processes": given["processes"],
        }  # fmt: skip
        with file.open("a") as out:
            out.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    work(sys.stdin.read(), Path(sys.argv[1]))
