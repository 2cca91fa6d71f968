"""Run the plans of studies without Dask, several runs at a time on each GPU.

    python runner.py every/rope:0=1 extending=4 [--gpus 2] [--until 1500] [--mini] [--first 3]
    python runner.py paper/rope=1x8 'paper/rope-*=4x2' --gpus 8

A place is one run at a time. ``extending=4`` gives four places to the study `extending`. What
stands before the equals sign is as in ``pe study``: ``every/rope=2`` gives two places to the runs
of `every` with the label rope and all their seeds, and ``every/rope:0=1`` one place to the run with
seed 0. A word with ``=0`` has no place. The places are spread over the GPUs.
A place takes the first run of its word whose parent is trained; if there is none, it takes one of
another word, in the order of the command. The zero-shot part of a study is treated like a run.

``=4x2`` are four places of two GPUs each, which train a run together (``PE_PROCESSES``). Runs of
such a word are for its own places, which take no others. Evaluation and runs of zero steps use the
first GPU of a place, and runs that start from a trained run do not wait for its evaluation.

A run that would not end within ``--until`` seconds does not begin. Its time is estimated from
earlier runs, for training and evaluation separately and from runs of the same kind, so short runs
still begin near the end. Each run is a process of `pe.study.worker`. After a failure the next run
begins. If a run was trained but its evaluation failed, it is evaluated again at the end. The
weights of a complete run are deleted unless another run starts from them. Records go to
``$PE_RUNS``, or to runs/ in the present folder. Places that share a GPU slow each other down, so
their speeds are not measurements.
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
from typing import NamedTuple

from pe.runs import Run, root
from pe.study.pace import Deadline, Pace
from pe.study.plan import load_part
from pe.study.planned import Planned, complete
from pe.study.worker import RunFailed, execute
from pe.training.processes import PROCESSES

BEGUN = time.monotonic()
LOCK = threading.Lock()


def log(text: str) -> None:
    """Print one line with the seconds since the start."""
    print(f"{time.monotonic() - BEGUN:6.0f} s  {text}", flush=True)


class Places(NamedTuple):
    """What follows the equals sign of a word: ``4`` or ``4x2``."""

    count: int
    gpus: int = 1
    """How many train a run together."""

    @classmethod
    def of(cls, text: str) -> Places:
        """Parse ``4`` or ``4x2``; an empty text is one place.

        Raises:
            ValueError: it is neither ``PLACES`` nor ``PLACESxGPUS``.
        """
        count, _, gpus = (text or "1").partition("x")
        if not count.isdecimal() or not (gpus or "1").isdecimal() or gpus == "0":
            raise ValueError(f"expected PLACES or PLACESxGPUS, such as 4 or 4x2, got {text!r}")
        return cls(int(count), int(gpus or 1))


@dataclasses.dataclass
class Queue:
    """The remaining runs of all places."""

    left: dict[str, list[Planned]]
    """By the word of the command line that names them."""
    deadline: Deadline
    gpus: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many train a run of a word together, where it is more than one."""
    running: set[str] = dataclasses.field(default_factory=set)
    again: list[Planned] = dataclasses.field(default_factory=list)
    pace: Pace = dataclasses.field(default_factory=Pace)

    def __post_init__(self) -> None:
        planned = [p for plan in self.left.values() for p in plan]
        self.parents = {Path(p.recipe.start_from).name for p in planned}
        self.tasks = {p.key: p for p in planned if p.zero_shot}

    def take(self, study: str) -> Planned | None:
        """Return the next run for a place of ``study``; None while all that are left wait."""
        others = [n for n in self.left if n != study and not {n, study} & self.gpus.keys()]
        with LOCK:
            for name in (study, *others):
                for planned in self.left[name]:
                    if self._ready(planned) and self._in_time(planned, name):
                        self.left[name].remove(planned)
                        self.running.add(planned.key)
                        return planned
        return None

    def over(self) -> bool:
        """Return whether no run is left, or none of those left can become ready."""
        with LOCK:
            left = [p for name in self.left for p in self.left[name] if self._in_time(p, name)]
            return not left or not (self.running or any(self._ready(p) for p in left))

    def ended(self, planned: Planned, whole: bool, seconds: float, gpus: int = 1) -> None:
        """Note that a run has ended."""
        with LOCK:
            self.running.remove(planned.key)
            if whole:
                training = planned.run().read()["training"]["wall_seconds"] or 0.0
                training = 0.0 if planned.zero_shot else training
                self.pace.learn(planned, seconds, training, gpus)

    def _ready(self, planned: Planned) -> bool:
        start, task = planned.recipe.start_from, self.tasks.get(planned.parent or "")
        if task is not None and not task.done():
            return False
        if not start:
            return True
        parent = Run(root() / (start if "/" in start else f"{planned.study}/{start}"))
        if planned.zero_shot:  # it writes into the folder of its parent
            return f"{parent.study}/{parent.name}" not in self.running and complete(parent)
        return parent.exists() and parent.read()["status"] == "complete"

    def _in_time(self, planned: Planned, word: str) -> bool:
        return self.deadline.allows(self.pace.expected(planned, self.gpus.get(word, 1)))


def one(planned: Planned, queue: Queue, devices: Sequence[int], gpus: int = 1) -> bool:
    """Train and evaluate a run, and return whether its record is complete.

    Args:
        devices: the GPUs that it may use; none: whatever the process sees. gpus: how many, or
            processes on a CPU, train it together.
    """
    run, zero_shot = planned.run(), planned.zero_shot
    began = time.monotonic()
    environment = {PROCESSES: str(gpus if planned.recipe.steps and not zero_shot else 1)}
    if devices:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, devices))
    name = f"{planned.study}/{planned.label}, seed {planned.recipe.seed}"
    log(f"begin  {name} on {', '.join(map(str, devices)) or 'this machine'}")
    try:
        execute(planned.task(notebook=False), environment)
    except (RunFailed, OSError, ValueError) as error:
        log(f"FAILED {name} after {time.monotonic() - began:.0f} s: {str(error)[:300]}")
    done = planned.done()
    if done and zero_shot:
        log(f"done   {name} in {time.monotonic() - began:.0f} s: {len(zero_shot.cells())} cells")
    elif done:
        record, evaluation = run.read(), run.evaluation() or {}
        cells = [f"{c['value'] or math.inf:.1f}" for c in evaluation["perplexity"].values()]
        log(
            f"done   {name} in {time.monotonic() - began:.0f} s: validation "
            f"{record['training']['validation_loss']:.3f}, {' '.join(cells)}"
        )
    if done and not zero_shot and planned.name not in queue.parents:
        for weights in ("checkpoints", "checkpoint", "best"):
            shutil.rmtree(run.directory / weights, ignore_errors=True)
    return done


def place(study: str, queue: Queue, devices: Sequence[int]) -> None:
    """Carry out runs of the queue one after another, also after one has failed."""
    gpus = queue.gpus.get(study, 1)
    while not queue.over():
        planned = queue.take(study)
        if planned is None:
            time.sleep(0.5)
            continue
        began, whole = time.monotonic(), False
        try:
            whole = one(planned, queue, devices, gpus)
            run = planned.run()
            trained = run.exists() and run.read()["status"] == "complete"
            if not whole and trained and not planned.zero_shot:
                queue.again.append(planned)
        except Exception:  # logged, and the next run begins
            log(f"FAILED {planned.label}: {traceback.format_exc()}")
        queue.ended(planned, whole, time.monotonic() - began, gpus)


def plans(
    words: Sequence[str], *, mini: bool = False, first: int = 10**6
) -> dict[str, list[Planned]]:
    """Return the runs that each word names (`pe.study.plan.load_part`), each run once.

    Raises:
        ValueError: no such study, or no run of it that is called so.
    """
    found: dict[str, list[Planned]] = {}
    known: set[str] = set()
    for word in words:
        found[word] = [p for p in load_part(word, mini=mini)[:first] if p.key not in known]
        known |= {p.key for p in found[word]}
    return found


def split(words: Sequence[str]) -> dict[str, Places]:
    """Split each word into its name and places: ``every/rope:0=2`` has two places.

    Raises:
        ValueError: what follows the equals sign is not `Places`.
    """
    parts = [word.rpartition("=") if "=" in word else (word, "", "") for word in words]
    return {name: Places.of(text) for name, _, text in parts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("studies", nargs="+", metavar="STUDY[/RUN][:SEEDS]=PLACES[xGPUS]")
    parser.add_argument("--mini", action="store_true", help="studies in miniature, for a CPU")
    parser.add_argument("--gpus", type=int, default=0, help="how many; 0: all that are visible")
    parser.add_argument("--until", type=float, default=math.inf, help="seconds from now")
    parser.add_argument("--dry-run", action="store_true", help="only print the runs")
    parser.add_argument("--first", type=int, default=10**6, help="runs of each word; default: all")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "4")
    shares = split(options.studies)
    largest = max(share.gpus for share in shares.values())
    if options.gpus and largest > options.gpus:
        raise ValueError(f"a place of {largest} GPUs was asked for, and --gpus is {options.gpus}")
    several = {name: share.gpus for name, share in shares.items() if share.gpus > 1}
    shared = any(share.count for name, share in shares.items() if name not in several)
    for name, share in shares.items():
        if not share.count and (name in several or not shared):
            raise ValueError(
                f"{name} has no place, and no other place takes its runs; give it one, as in "
                f"{name}=1{f'x{share.gpus}' if name in several else ''}"
            )
    left = plans(list(shares), mini=options.mini, first=options.first)
    if options.dry_run:
        for word, plan in left.items():
            print(word, *(f"{p.label}#{p.recipe.seed}" for p in plan))
        return
    os.environ.setdefault("PE_RUNS", str(Path("runs").resolve()))  # not those of a checkout
    queue = Queue(left, Deadline(options.until), several)
    threads, next_gpu = [], 0
    for name, share in shares.items():
        for _ in range(share.count):
            devices = [(next_gpu + i) % options.gpus for i in range(share.gpus) if options.gpus]
            next_gpu += share.gpus
            threads.append(threading.Thread(target=place, args=(name, queue, devices)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for planned in queue.again:
        one(planned, queue, [0] if options.gpus else [])
    log("the end")


if __name__ == "__main__":
    main()
