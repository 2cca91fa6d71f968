"""Carry out the plan of a study on Dask.

By default the workers are processes of this machine: one for each GPU, or a single one without a
GPU. With the address of a Dask scheduler (``tcp://host:8786``, or a scheduler file), the runs go to
the workers of that cluster, for example on SLURM or Kubernetes. These need the same checkout and
the same folder of runs.

A run begins as soon as a worker is free and its parent is done. If several can begin, the order of
the plan decides. It lists all runs of a seed before those of the next, so that the comparison of
the first seeds is complete if the time runs out. A worker with a GPU takes a second run, which
starts up while the first one uses the GPU (`pe.study.devices`).

A run that is trained and evaluated already is not run again. An interrupted run continues from its
checkpoint. A run that fails is tried again. If it fails each time, the runs that start from it are
skipped, and all others are carried out. A complete parent whose weights are not on this machine is
retrained first (`pe.study.parents`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pe._errors import StudyFailed, one_line, whole
from pe.runs import RunError, root
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
"""Seconds between two looks at the runs."""


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
    """Carry out all runs of ``plan`` that are not done.

    Args:
        address: address of a Dask scheduler, or a scheduler file. None: workers are started here.
        workers: number of workers to start here. None: one per GPU, or one without a GPU.
        retries: how often a failed run is tried again.
        notebooks: whether runs are carried out as notebooks, which stay in their folders.
        until: seconds from now. A run does not begin if it is expected to end later
            (`pe.study.pace`); it stays "waiting".
        on_progress: called about once per second with the state of each run by `Planned.key`:
            "waiting", "running" (a worker has it), "done", "failed" or "skipped".

    Raises:
        StudyFailed: runs failed; all others are done.
        ValueError: an encoding or a corpus is unknown, workers are given together with an address,
            there are more workers than GPUs, or a number is none. Nothing has been run.
        RunError: a run starts from a run of another study that does not exist, the code of an
            encoding has changed since its run was trained, a run is to keep steps that it has
            passed already, or the workers cannot be started.
    """
    if address is not None and workers is not None:
        raise ValueError(
            f"workers: {workers} has no effect with an address, whose workers run already; leave "
            "one of the two out"
        )
    if not all(isinstance(planned, Planned) for planned in plan):
        raise TypeError(f"expected a plan, got {plan!r}; pe.load_plan makes one of a study's name")
    whole("retries", retries)
    workers = None if workers is None else whole("workers", workers, 1)
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
        if "/" in planned.recipe.start_from and not planned.parent:  # it must exist already
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
    """The runs of a plan in their order: those that wait, and those that were submitted to Dask.

    No more runs are submitted than the workers can begin. Dask assigns all of them to workers at
    once, and would not prefer an earlier run of the plan that becomes ready later.
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
        """Submit the runs that can begin; return False if there is nothing left to wait for.

        At most one run per worker is submitted at a time, so that of two runs that share a device
        the first one is ready first. A run that starts from a failed run is never submitted.
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
        """Return the keys of runs that did not begin in time, or that wait for such a run."""
        late: set[str] = set()
        states = self.states()
        for planned in self.todo:
            waits = states.get(planned.parent or "", "done") == "done"
            if planned.key not in states and (waits or planned.parent in late):
                late.add(planned.key)
        return late

    def failures(self) -> list[str]:
        """Return one line per run that failed, or was skipped because its parent failed."""
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
        """Submit a run, to ``worker`` if several workers have a GPU each.

        Without a preference Dask would distribute runs by their estimated durations. Another worker
        takes the run over if this one dies. With a single worker there is no preference, because
        the run would wait forever if that worker died.
        """
        several = self.devices and len(self.client.nthreads()) > 1
        return self.client.submit(
            _task, planned.task(self.notebooks), {"PE_RUNS": str(root())}, list(self.devices),
            key=planned.key, retries=self.retries,
            priority=-self.todo.index(planned), pure=False,
            workers=[worker] if several else None, allow_other_workers=bool(several),
        )  # fmt: skip


def _task(task: dict[str, Any], environment: dict[str, str], devices: list[str]) -> str:
    """Carry out one run on the worker's device."""
    from distributed import get_worker

    if devices:
        device = devices[int(get_worker().name)]
        environment = environment | {"CUDA_VISIBLE_DEVICES": device, MUTEX: mutex_of(device)}
    return execute(task, environment)


@contextmanager
def connect(address: str | None, workers: int | None) -> Iterator[tuple[Client, list[str]]]:
    """Yield a client of Dask, and the devices of workers that are started here, if these are GPUs.

    Raises:
        ValueError: more workers are asked for than there are GPUs.
        RunError: the workers do not start.
    """
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
    try:
        cluster = LocalCluster(
            n_workers=count, threads_per_worker=2 if devices else 1, memory_limit=0,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,  # failures are reported once, at the end
        )  # fmt: skip
    except RuntimeError as error:
        raise RunError(
            f"the workers did not start ({one_line(error)}). Each imports the script that calls "
            "pe.run_study, so a script has to make this call under `if __name__ == '__main__':`"
        ) from error
    with cluster, Client(cluster) as client:
        yield client, devices
