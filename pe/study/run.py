"""Carry out the plan of a study on Dask.

Without an address a cluster is started on this machine: one worker for each GPU, or a single
one. With one (``tcp://host:8786``, or a scheduler file) the runs go to the workers of that
cluster, which need this checkout and the same runs folder: that is all SLURM or Kubernetes add.

Runs are begun in the order of the plan, each as soon as a worker is free and its parent is done, so
that what is whole when the time runs out is whole families: no run of a later seed is begun while
one of an earlier seed could be. A worker with a GPU takes a second run, which gets ready while the
first has the device (`pe.study.turns`).

A run that is recorded with its evaluation is not run again; one that was interrupted goes on from
its checkpoint; one that fails is tried again, and if it fails for good the runs that start from it
are reported as skipped while all others go on. A complete parent whose weights are not on this
machine is trained again first (`pe.study.parents`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pe.runs import root
from pe.study.parents import everything
from pe.study.plan import Planned
from pe.study.turns import TURN, turn_of
from pe.study.worker import execute
from pe.training.start import start_of

if TYPE_CHECKING:
    from distributed import Client, Future, Worker

POLL = 1.0


class StudyFailed(RuntimeError):
    """Some runs of a study failed for good; names each with its reason."""


def run_study(
    plan: Sequence[Planned],
    *,
    address: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    notebooks: bool = True,
    show: Callable[[dict[str, str]], None] | None = None,
) -> None:
    """Run everything in ``plan`` that is not done.

    Args:
        address: of a Dask scheduler, or a scheduler file; None starts workers here.
        workers: how many to start here; None: one a GPU, or one.
        retries: how often a failed run is tried again.
        notebooks: run each by the notebook command, which leaves the executed page in its folder.
        show: called about once a second with run name -> state ("waiting", "running", "done",
            "failed", "skipped"); running is what a worker carries out at this moment. Parents that
            are trained again are ``.parents/NAME``.

    Raises:
        StudyFailed: runs failed for good; all others are done.
        RunError: runs start from a run of another study that is not there yet.
    """
    listed = everything(plan)
    todo = [p for p in listed if not p.done()]
    states = {p.name: "waiting" if p in todo else "done" for p in listed}
    show = show or (lambda states: None)
    show(states)
    if not todo:
        return
    for planned in todo:
        if "/" in planned.recipe.start_from and not planned.parent:  # nothing here will make it
            start_of(planned.recipe, planned.run().directory.parent)
    with connect(address, workers) as (client, devices):
        queue = _Queue(client, devices, todo, retries=retries, notebooks=notebooks)
        while queue.fill():
            _update(states, queue.futures, _executing(client))
            show(states)
            time.sleep(POLL)
        _update(states, queue.futures, set())
        failed = queue.failed()
    failures = _explain(todo, states, failed)
    show(states)
    if failures:
        raise StudyFailed(f"{len(failures)} of {len(plan)} runs failed: " + "; ".join(failures))


@dataclass
class _Queue:
    """Runs that are not begun yet, in order, and those that are Dask's.

    Dask gets no more of them than its workers can begin: it hands out all that it has at once, and
    would not take a run back when one that stands before it becomes possible.
    """

    client: Client
    devices: Sequence[str]
    waiting: list[Planned]
    retries: int
    notebooks: bool
    futures: dict[str, Future] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.waiting = list(self.waiting)
        self._places = {planned.name: place for place, planned in enumerate(self.waiting)}

    def fill(self) -> bool:
        """Begin what can be begun; False when nothing is left to wait for.

        At most one run a worker at once, so that of two that share a device the first is ready
        first.
        """
        self._skip()
        threads, taken = self.client.nthreads(), self.client.processing()
        free = {worker: count - len(taken.get(worker, ())) for worker, count in threads.items()}
        under_way = sum(not future.done() for future in self.futures.values())
        room = max(0, min(sum(threads.values()) - under_way, len(threads)))
        for planned in [p for p in self.waiting if self._ready(p)][:room]:
            worker = max(free, key=lambda name: free[name])
            free[worker] -= 1
            self.waiting.remove(planned)
            self.futures[planned.name] = self._submit(planned, worker)
        return bool(self.waiting) or not all(f.done() for f in self.futures.values())

    def failed(self) -> dict[str, str]:
        """Name -> reason of the runs that failed for good; of those skipped, none."""
        found = {n: str(f.exception()) for n, f in self.futures.items() if f.status == "error"}
        return found | dict.fromkeys(self.skipped, "")

    def _skip(self) -> None:
        """Leave out what starts from a run that failed, and what starts from that in turn."""
        gone = {n for n, f in self.futures.items() if f.done() and f.status != "finished"}
        for planned in list(self.waiting):  # parents stand before what starts from them
            if planned.parent in gone | self.skipped:
                self.waiting.remove(planned)
                self.skipped.add(planned.name)

    def _ready(self, planned: Planned) -> bool:
        parent = planned.parent or ""
        if parent in self.futures:
            return str(self.futures[parent].status) == "finished"
        return parent not in self._places  # it was done before

    def _submit(self, planned: Planned, worker: str) -> Future:
        """To ``worker`` where GPUs are shared out: Dask's choice would follow guesses of durations.

        Another takes it over when that one dies; a run with a preference that finds no worker at
        all would wait for ever, so a single worker is no preference.
        """
        several = self.devices and len(self.client.nthreads()) > 1
        task = {
            "directory": str(planned.run().directory),
            "recipe": planned.recipe.to_dict(),
            "study": planned.study,
            "notebook": self.notebooks,
            "zero_shot": planned.zero_shot.to_dict() if planned.zero_shot else None,
        }
        return self.client.submit(
            _task, task, {"PE_RUNS": str(root())}, list(self.devices),
            key=f"{planned.study}-{planned.name}", retries=self.retries,
            priority=-self._places[planned.name], pure=False,
            workers=[worker] if several else None, allow_other_workers=bool(several),
        )  # fmt: skip


def _task(task: dict[str, Any], environment: dict[str, str], devices: list[str]) -> str:
    """On the worker: one run, on the worker's device when it is this run's turn."""
    from distributed import get_worker

    if devices:
        device = devices[int(get_worker().name)]
        environment = environment | {"CUDA_VISIBLE_DEVICES": device, TURN: turn_of(device)}
    return execute(task, environment)


def _update(states: dict[str, str], futures: dict[str, Future], executing: set[str]) -> None:
    words = {"finished": "done", "error": "failed", "lost": "failed", "cancelled": "failed"}
    for name, future in futures.items():
        states[name] = words.get(str(future.status), states[name])
        if states[name] in ("waiting", "running"):
            states[name] = "running" if future.key in executing else "waiting"


def _executing(client: Client) -> set[str]:
    """Keys that workers carry out now; Dask's own "processing" counts those in their queues."""
    found = client.run(_keys_of_worker, on_error="ignore")  # a worker that just died has none
    return {key for keys in found.values() for key in keys}


def _keys_of_worker(dask_worker: Worker) -> list[str]:
    return [str(task.key) for task in dask_worker.state.executing]


def _explain(todo: Sequence[Planned], states: dict[str, str], failed: dict[str, str]) -> list[str]:
    """One line a failure; runs whose parent failed are marked as skipped."""
    lines = []
    for planned in todo:
        if planned.name not in failed:
            continue
        if planned.parent in failed:
            states[planned.name] = "skipped"
            lines.append(f"{planned.label}: skipped, since {planned.parent} failed")
        else:
            lines.append(f"{planned.label}: {failed[planned.name]}")
    return lines


@contextmanager
def connect(address: str | None, workers: int | None) -> Iterator[tuple[Client, list[str]]]:
    """A client, and the GPUs its workers share out if they were started here."""
    from distributed import Client, LocalCluster

    if address is not None:
        where = {"scheduler_file": address} if address.endswith(".json") else {"address": address}
        with Client(**where) as client:
            yield client, []
        return
    devices = visible_gpus()
    count = workers_here(workers)
    if devices and count > len(devices):
        raise ValueError(f"workers: {count} were asked for and {len(devices)} GPUs are visible")
    cluster = LocalCluster(
        n_workers=count, threads_per_worker=2 if devices else 1, memory_limit=0,
        dashboard_address=":0",
        silence_logs=logging.CRITICAL,  # what failed is told once, at the end
    )  # fmt: skip
    with cluster, Client(cluster) as client:
        yield client, devices


def workers_here(workers: int | None = None) -> int:
    """How many workers `run_study` starts on this machine."""
    return workers or len(visible_gpus()) or 1


def visible_gpus() -> list[str]:
    """What CUDA_VISIBLE_DEVICES may be set to for each GPU of this machine."""
    import os

    import torch

    from pe import devices

    if devices.choose().type != "cuda":
        return []
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(i) for i in range(torch.cuda.device_count())]
