"""Carry out the plan of a study on Dask.

Without an address a cluster is started on this machine: one worker for each GPU, or a single
one. With one (``tcp://host:8786``, or a scheduler file) the runs go to the workers of that
cluster, which need this checkout and the same runs folder: that is all SLURM or Kubernetes add.

Runs are begun in the order of the plan, each as soon as a worker is free and its parent is done: no
run of a later seed is begun while one of an earlier seed could be, so that whole families are done
when the time runs out. A worker with a GPU takes a second run, which gets ready while the first has
the device (`pe.study.devices`).

A run that is recorded with its evaluation is not run again; one that was interrupted goes on from
its checkpoint; one that fails is tried again, and if it fails for good the runs that start from it
are skipped, and all others go on. A complete parent whose weights are not on this
machine is retrained first (`pe.study.parents`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pe._errors import StudyFailed
from pe.runs import root
from pe.study.devices import MUTEX, mutex_of, visible_gpus, workers_here
from pe.study.pace import Deadline, Pace
from pe.study.parents import with_retrained_parents
from pe.study.planned import Planned
from pe.study.worker import execute
from pe.training.check import check_run
from pe.training.start import start_of

if TYPE_CHECKING:
    from distributed import Client, Future

POLL = 1.0


def run_study(
    plan: Sequence[Planned],
    *,
    address: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    notebooks: bool = True,
    until: float = math.inf,
    on_progress: Callable[[dict[str, str]], None] | None = None,
) -> None:
    """Run everything in ``plan`` that is not done.

    Args:
        address: of a Dask scheduler, or a scheduler file; None starts workers here.
        workers: how many to start here; None: one per GPU, or one.
        retries: how often a failed run is tried again.
        notebooks: run each by the notebook command, which leaves the executed page in its folder.
        until: seconds from now. A run that is expected to end later (`pe.study.pace`) is not begun
            and stays "waiting".
        on_progress: called about once per second with the state of each run, by ``STUDY/NAME``:
            "waiting", "running" (a worker has it), "done", "failed" or "skipped". Parents that are
            retrained are ``STUDY/.parents/NAME``.

    Raises:
        StudyFailed: runs failed for good; all others are done.
        ValueError: an unknown encoding or corpus, workers beside an address, more workers than
            GPUs, or an ``until`` that is no time; nothing has been run.
        RunError: runs start from a run of another study that is not there yet.
        RunError: the source of an encoding is not the one that its run was trained with, or a run
            is to keep steps that it has passed already.
    """
    if address is not None and workers is not None:
        raise ValueError(
            f"workers: {workers} has no effect with an address, where the workers are there "
            "already; leave one of the two out"
        )
    if not all(isinstance(planned, Planned) for planned in plan):
        raise TypeError(f"expected a plan, got {plan!r}; pe.load_plan makes one of a study's name")
    deadline, listed = Deadline(until), with_retrained_parents(plan)
    todo = [p for p in listed if not p.done()]
    states = {p.key: "waiting" if p in todo else "done" for p in listed}
    on_progress = on_progress or (lambda states: None)
    on_progress(states)
    if not todo:
        return
    for planned in todo:
        if not planned.zero_shot:
            check_run(planned.run())
        if "/" in planned.recipe.start_from and not planned.parent:  # nothing here will make it
            start_of(planned.recipe, planned.run().directory.parent)
    with connect(address, workers) as (client, devices):
        queue = _Queue(
            client, devices, todo, deadline=deadline, retries=retries, notebooks=notebooks
        )
        for planned in listed:
            if planned not in todo:
                queue.pace.learn_record(planned)
        while queue.advance():
            states |= queue.states()
            on_progress(states)
            time.sleep(POLL)
        late = queue.late()
        states |= {p.key: "skipped" for p in todo if p.key not in late} | queue.states()
        on_progress(states)
        failures = queue.failures()
    if failures:
        raise StudyFailed(f"{len(failures)} of {len(plan)} runs failed: " + "; ".join(failures))


class _Queue:
    """Runs in the order of the plan: those that wait, and those that are Dask's.

    Dask gets no more of them than its workers can begin: it hands out all that it has at once, and
    would not take a run back when an earlier one becomes possible.
    """

    def __init__(
        self, client: Client, devices: Sequence[str], todo: Sequence[Planned], *,
        deadline: Deadline, retries: int, notebooks: bool,
    ) -> None:  # fmt: skip
        self.client, self.devices, self.todo, self.deadline = client, devices, todo, deadline
        self.retries, self.notebooks = retries, notebooks
        self.futures: dict[str, Future] = {}
        self.pace = Pace()
        self._learned: set[str] = set()

    def advance(self) -> bool:
        """Begin what can be begun. Return False when nothing is left to wait for.

        At most one run per worker at once, so that of two that share a device the first is ready
        first. What starts from a failed run is never begun.
        """
        states = self.states()
        running = sum(state == "running" for state in states.values())
        unfinished = {planned.key for planned in self.todo if states.get(planned.key) != "done"}
        for planned in self.todo:
            if states.get(planned.key) == "done" and planned.key not in self._learned:
                self._learned.add(planned.key)
                self.pace.learn_record(planned)
        ready = [
            p
            for p in self.todo
            if p.key not in states
            and p.parent not in unfinished
            and self.deadline.allows(self.pace.expected(p))
        ]
        threads, taken = self.client.nthreads(), self.client.processing()
        free = {worker: count - len(taken.get(worker, ())) for worker, count in threads.items()}
        room = max(0, min(sum(threads.values()) - running, len(threads)))
        for planned in ready[:room]:
            worker = max(free, key=lambda name: free[name])
            free[worker] -= 1
            self.futures[planned.key] = self._submit(planned, worker)
        return bool(ready or running)

    def states(self) -> dict[str, str]:
        """Return the state of each run that was submitted."""
        words = {"pending": "running", "finished": "done"}
        return {name: words.get(of.status, "failed") for name, of in self.futures.items()}

    def late(self) -> set[str]:
        """Return the runs that were not begun for lack of time, or wait for such ones."""
        late: set[str] = set()
        states = self.states()
        for planned in self.todo:
            waits = states.get(planned.parent or "", "done") == "done"
            if planned.key not in states and (waits or planned.parent in late):
                late.add(planned.key)
        return late

    def failures(self) -> list[str]:
        """Return one line per run that failed for good, or was skipped because of one that did."""
        lines, late = [], self.late()
        for planned in self.todo:
            future = self.futures.get(planned.key)
            if planned.key in late:
                continue
            if future is None:
                lines.append(f"{planned.label}: skipped, since {planned.parent} failed")
            elif future.status != "finished":
                reason = future.exception() if future.status == "error" else future.status
                lines.append(f"{planned.label}: {reason}")
        return lines

    def _submit(self, planned: Planned, worker: str) -> Future:
        """Submit to ``worker`` where GPUs are shared out: Dask would follow guesses of durations.

        Another takes it over when that one dies; a run with a preference that finds no worker at
        all would wait without end, so a single worker is no preference.
        """
        several = self.devices and len(self.client.nthreads()) > 1
        return self.client.submit(
            _task, planned.task(self.notebooks), {"PE_RUNS": str(root())}, list(self.devices),
            key=planned.key, retries=self.retries,
            priority=-self.todo.index(planned), pure=False,
            workers=[worker] if several else None, allow_other_workers=bool(several),
        )  # fmt: skip


def _task(task: dict[str, Any], environment: dict[str, str], devices: list[str]) -> str:
    """Carry out one run on the worker's device, once no other run is on it."""
    from distributed import get_worker

    if devices:
        device = devices[int(get_worker().name)]
        environment = environment | {"CUDA_VISIBLE_DEVICES": device, MUTEX: mutex_of(device)}
    return execute(task, environment)


@contextmanager
def connect(address: str | None, workers: int | None) -> Iterator[tuple[Client, list[str]]]:
    """Connect to Dask, and name the GPUs that the workers share if they were started here."""
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
        silence_logs=logging.CRITICAL,  # failures are reported once, at the end
    )  # fmt: skip
    with cluster, Client(cluster) as client:
        yield client, devices
