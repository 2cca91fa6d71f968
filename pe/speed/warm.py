"""Compile cells in several processes at once, before one process measures them.

Most of a cell's time is compiling, which uses one core and next to nothing of the GPU. A helper
builds a cell's system, compiles it, does one step, and leaves the graphs in torch's cache on disk,
where the process that measures finds them. Helpers end before anything is measured. One that runs
out of memory, or is broken by a kernel, costs no more than its share: the cell is then compiled
where it is measured, and what is wrong with it shows there.

    python -m pe.speed.warm < work.json        a helper; one line of JSON a cell
    python -m pe.speed.warm runs/speed/h100/speed.json --helpers 4 --minutes 10

The second form compiles what a record still lacks, while the GPU does other work, and leaves the
seconds beside the record for the process that measures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import pe
from pe.speed.cell import first_step, free
from pe.speed.plan import Cell, Settings

COMPILED = ".compiled.json"
"""Beside a record, until all of it is measured."""


def warm(
    cells: Sequence[Cell], chosen: Settings, processes: int, seconds: float
) -> tuple[dict[Cell, float], list[str]]:
    """Compile ``cells`` in ``processes`` helpers, for at most ``seconds``.

    Returns:
        The seconds of each first step, and what went wrong, a line a cell or helper.
    """
    deadline = time.monotonic() + seconds
    above = str(Path(pe.__file__).resolve().parent.parent)
    path = os.pathsep.join([above, *filter(None, [os.environ.get("PYTHONPATH")])])
    threads = str(max(1, (os.cpu_count() or 1) // processes))  # of each helper's own compiling
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": threads} | os.environ | {"PYTHONPATH": path}
    found: dict[Cell, float] = {}
    wrong: list[str] = []
    with contextlib.ExitStack() as stack:
        helpers = []
        for index in range(min(processes, len(cells))):
            errors = stack.enter_context(tempfile.TemporaryFile("w+"))  # a pipe could fill up
            helper = subprocess.Popen(
                [sys.executable, "-m", "pe.speed.warm"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                env=environment,
            )  # fmt: skip
            stack.callback(helper.kill)
            assert helper.stdin is not None
            json.dump(
                {"settings": chosen.to_dict(), "cells": cells[index::processes]}, helper.stdin
            )
            helper.stdin.close()
            helper.stdin = None  # or communicate() would write to it
            helpers.append((helper, errors))
        for helper, errors in helpers:
            try:
                out, _ = helper.communicate(timeout=max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                helper.kill()
                out, _ = helper.communicate()
                wrong.append("a helper was stopped, since time was up")
            else:
                if helper.returncode:
                    errors.seek(0)
                    last = errors.read().strip().splitlines()[-1:] or [""]
                    wrong.append(f"a helper ended with {helper.returncode}: {last[0][:200]}")
            _read(out, found, wrong)
    return found, wrong


def _read(out: str, found: dict[Cell, float], wrong: list[str]) -> None:
    """Sort what a helper printed into ``found`` and ``wrong``."""
    for text in out.splitlines():
        if not text.startswith('{"cell"'):
            continue  # a library's word
        line = json.loads(text)
        cell = Cell(*line["cell"])
        if line["error"] is None:
            found[cell] = line["seconds"]
        else:
            wrong.append(f"{cell.mode} {cell.length} {cell.system}: {line['error']}")


def work(text: str) -> None:
    """What a helper does; ``text`` is its work as JSON."""
    given: dict[str, Any] = json.loads(text)
    chosen = Settings.from_dict(given["settings"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for values in given["cells"]:
        cell, seconds, error = Cell(*values), 0.0, None
        free(device)
        try:
            seconds = first_step(cell, chosen, device)
        except Exception as problem:  # told to the parent, which goes on without this cell
            lines = str(problem).strip().splitlines() or [""]
            error = f"{type(problem).__name__}: {lines[0][:200]}"
        line = {"cell": cell, "seconds": round(seconds, 3), "error": error}
        print(json.dumps(line), flush=True)


def seconds_before(folder: Path) -> dict[Cell, float]:
    """First steps of cells that were compiled while nothing was measured."""
    file = folder / COMPILED
    if not file.exists():
        return {}
    return {Cell(*cell): seconds for *cell, seconds in json.loads(file.read_text())}


def main(argv: Sequence[str]) -> None:
    """Compile what a record lacks; without arguments, be a helper."""
    if not argv:
        return work(sys.stdin.read())
    from pe.speed.measure import left
    from pe.speed.record import SpeedRun

    made = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    made.add_argument("record", type=Path, help="a speed.json with cells that were not measured")
    made.add_argument("--helpers", type=int, default=4, help="how many processes")
    made.add_argument("--minutes", type=float, default=10.0, help="how long at most")
    given = made.parse_args(argv)
    folder = given.record.parent
    record = SpeedRun(folder).read()
    before = seconds_before(folder)
    chosen = Settings.from_dict(record["settings"])
    cells = [cell for cell in left(record, chosen) if cell not in before]
    found, wrong = warm(cells, chosen, given.helpers, 60 * given.minutes)
    rows = [[*cell, seconds] for cell, seconds in (before | found).items()]
    (folder / COMPILED).write_text(json.dumps(rows))
    print(f"{len(found)} of {len(cells)} cells compiled", *wrong, sep="\n")
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
