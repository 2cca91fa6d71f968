"""Carry out the plans of studies, several runs at a time on each GPU, without Dask.

    python runner.py every:4 dropping:2 [--gpus 2] [--until 1500] [--mini] [--first 3]

``every:4`` gives four of the places to the study `every`; the places are spread over the GPUs. Each
place takes the first run of its study whose parent is done, and of another study where its own has
none left. A run that would not end within ``--until`` seconds, judged by those before it, is not
begun. Each run is a process of `pe.study.worker`; a run that fails is left as its record says and
the next begins. One that was trained and could not be evaluated is evaluated once more at the end.
Weights go as soon as a run is complete, unless another run starts from them. Speeds are not
measured this way: the runs share a card.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import os
import shutil
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from pe.runs import Run
from pe.study.complete import complete
from pe.study.plan import Planned, load_plan
from pe.study.worker import RunFailed, execute

BEGUN = time.monotonic()
LOCK = threading.Lock()


def say(text: str) -> None:
    """One line, with the seconds since the start."""
    print(f"{time.monotonic() - BEGUN:6.0f} s  {text}", flush=True)


@dataclasses.dataclass
class Queue:
    """What is left to do, for all places."""

    left: dict[str, list[Planned]]
    runs: Path
    until: float
    running: set[str] = dataclasses.field(default_factory=set)
    failed: set[str] = dataclasses.field(default_factory=set)
    again: list[Planned] = dataclasses.field(default_factory=list)
    pace: float = 0.0
    """Seconds per step of the slowest run so far, evaluation included."""

    def __post_init__(self) -> None:
        planned = [p for plan in self.left.values() for p in plan]
        self.parents = {Path(p.recipe.start_from).name for p in planned}

    def directory(self, planned: Planned) -> Path:
        return self.runs / planned.study / planned.name  # relative: it is part of the command

    def take(self, study: str) -> Planned | None:
        """The next run for a place of ``study``; None while all that is left waits."""
        with LOCK:
            for name in (study, *(n for n in self.left if n != study)):
                for planned in self.left[name]:
                    if self._ready(planned) and self._in_time(planned):
                        self.left[name].remove(planned)
                        self.running.add(planned.name)
                        return planned
        return None

    def over(self) -> bool:
        """Nothing is left, or what is left will never be ready."""
        with LOCK:
            left = [p for plan in self.left.values() for p in plan if self._in_time(p)]
            return not left or not (self.running or any(self._ready(p) for p in left))

    def done(self, planned: Planned, whole: bool, seconds: float) -> None:
        with LOCK:
            self.running.remove(planned.name)
            if whole:
                self.pace = max(self.pace, seconds / max(planned.recipe.steps, 600))
            else:
                self.failed.add(planned.name)

    def _ready(self, planned: Planned) -> bool:
        start = planned.recipe.start_from
        if not start:
            return True
        parent = Run(self.runs / (start if "/" in start else f"{planned.study}/{start}"))
        return parent.name not in self.running and parent.exists() and complete(parent)

    def _in_time(self, planned: Planned) -> bool:
        left = self.until - (time.monotonic() - BEGUN)
        return self.pace * max(planned.recipe.steps, 600) < left


def one(planned: Planned, queue: Queue, gpu: int | None) -> bool:
    """Train and evaluate; returns whether the record is whole."""
    directory = queue.directory(planned)
    task = {
        "directory": str(directory), "recipe": planned.recipe.to_dict(), "study": planned.study,
        "notebook": False, "zero_shot": None,
    }  # fmt: skip
    run = Run(directory, recipe=planned.recipe)
    began = time.monotonic()
    environment = {}
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu)
    name = f"{planned.study}/{planned.label}"
    say(f"begin  {name} on {gpu}")
    try:
        execute(task, environment)
    except (RunFailed, OSError, ValueError) as error:
        say(f"FAILED {name} after {time.monotonic() - began:.0f} s: {str(error)[:300]}")
    done = complete(run)
    if done:
        record, evaluation = run.read(), run.evaluation() or {}
        cells = [f"{c['value'] or math.inf:.1f}" for c in evaluation["perplexity"].values()]
        say(
            f"done   {name} in {time.monotonic() - began:.0f} s: validation "
            f"{record['training']['validation_loss']:.3f}, {' '.join(cells)}"
        )
    if done and planned.name not in queue.parents:
        for weights in ("checkpoints", "checkpoint", "best"):
            shutil.rmtree(directory / weights, ignore_errors=True)
    return done


def place(study: str, queue: Queue, gpu: int | None) -> None:
    """Work through the queue; whatever goes wrong with one run, the others go on."""
    while not queue.over():
        planned = queue.take(study)
        if planned is None:
            time.sleep(0.5)
            continue
        began, whole = time.monotonic(), False
        try:
            whole = one(planned, queue, gpu)
        except Exception:  # said, and the next run begins
            say(f"FAILED {planned.label}: {traceback.format_exc()}")
        run = Run(queue.directory(planned), recipe=planned.recipe)
        if not whole and run.exists() and run.read()["status"] == "complete":
            queue.again.append(planned)
        queue.done(planned, whole, time.monotonic() - began)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("studies", nargs="+", metavar="STUDY:PLACES")
    parser.add_argument("--mini", action="store_true")
    parser.add_argument("--gpus", type=int, default=0, help="0: whatever the process sees")
    parser.add_argument("--until", type=float, default=math.inf)
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--first", type=int, default=10**6, help="only so many runs of each plan")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    words = [word.partition(":") for word in options.studies]
    shares = {name: int(count or 1) for name, _, count in words}
    queue = Queue(
        {name: load_plan(name, mini=options.mini)[: options.first] for name in shares},
        options.runs,
        options.until,
    )
    places = [name for name, count in shares.items() for _ in range(count)]
    threads = [
        threading.Thread(
            target=place, args=(name, queue, index % options.gpus if options.gpus else None)
        )
        for index, name in enumerate(places)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for planned in queue.again:
        one(planned, queue, 0 if options.gpus else None)
    say("the end")


if __name__ == "__main__":
    main()
