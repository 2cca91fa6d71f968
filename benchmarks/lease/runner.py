"""Carry out a study's plan in order, several runs at a time on one GPU, without Dask.

    python runner.py STUDY [--mini] [--at-once 3] [--first N]

Each run is a process of `pe.study.worker`; a run that fails is left as its record says and the next
begins. One that was trained and could not be evaluated is evaluated once more at the end, when it
has the card to itself. Weights go as soon as a run is complete, since the disk is small. Speeds are
not measured this way: the runs share the card.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shlex
import shutil
import threading
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pe.runs import Run
from pe.study.complete import complete
from pe.study.plan import Planned, load_plan
from pe.study.worker import RunFailed, execute

BEGUN = time.monotonic()
LOCK = threading.Lock()


def say(text: str) -> None:
    """One line, with the seconds since the start."""
    with LOCK:
        print(f"{time.monotonic() - BEGUN:6.0f} s  {text}", flush=True)


def one(planned: Planned, runs: Path) -> bool:
    """Train and evaluate; returns whether the record is whole."""
    directory = runs / planned.study / planned.name  # relative: it is part of the command recorded
    task = {
        "directory": str(directory), "recipe": planned.recipe.to_dict(), "study": planned.study,
        "notebook": False, "zero_shot": None,
    }  # fmt: skip
    run = Run(directory, recipe=planned.recipe)
    began = time.monotonic()
    words = ["python", "-m", "pe.study.worker", json.dumps(task)]
    say(f"begin  {planned.label}")
    try:
        execute(task, {"PE_COMMAND": shlex.join(words)})
    except (RunFailed, OSError, ValueError) as error:
        say(f"FAILED {planned.label} after {time.monotonic() - began:.0f} s: {str(error)[:300]}")
    done = complete(run)
    if done:
        record, evaluation = run.read(), run.evaluation() or {}
        cells = [f"{c['value'] or math.inf:.1f}" for c in evaluation["perplexity"].values()]
        say(
            f"done   {planned.label} in {time.monotonic() - began:.0f} s: validation "
            f"{record['training']['validation_loss']:.3f}, {' '.join(cells)}"
        )
    if done or not run.exists() or run.read()["status"] != "complete":
        for name in ("checkpoints", "checkpoint"):
            shutil.rmtree(directory / name, ignore_errors=True)
    return done


def safely(planned: Planned, runs: Path) -> bool:
    """`one`, whatever goes wrong: the other runs go on."""
    try:
        return one(planned, runs)
    except Exception:  # said, and the next run begins
        say(f"FAILED {planned.label}: {traceback.format_exc()}")
        return False


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study")
    parser.add_argument("--mini", action="store_true")
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--first", type=int, default=10**6, help="only so many runs of the plan")
    given = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    plan = load_plan(given.study, mini=given.mini)[: given.first]
    with ThreadPoolExecutor(given.at_once) as pool:
        done = list(pool.map(lambda planned: safely(planned, given.runs), plan))
    again = []
    for planned, whole in zip(plan, done, strict=True):
        run = Run(given.runs / planned.study / planned.name, recipe=planned.recipe)
        if not whole and run.exists() and run.read()["status"] == "complete":
            again.append(planned)
    for planned in again:
        safely(planned, given.runs)
    say("the end")


if __name__ == "__main__":
    main()
