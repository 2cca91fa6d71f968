"""Show the state of a study and the time that it still takes, as rows, as text and live."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from pe.recipes.recipe import Recipe
from pe.runs import Run, RunError, find, root
from pe.study.parents import with_retrained_parents
from pe.study.planned import Planned
from pe.training import memory, processes
from pe.training.flops import flops_per_token, peak_flops
from pe.training.progress import Progress, duration

SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "context_length", "batch_size",
)  # fmt: skip
HEADS = (
    "run", "seed", "begins with", "state", "steps", "tokens", "loss", "tokens/s", "time left",
)  # fmt: skip

USUAL_MFU = 0.4
"""The model FLOPs utilisation that is assumed if no recorded run gives a speed."""


class Row(NamedTuple):
    """One run of a study. The steps of a zero-shot task are its cells, and it has no tokens."""

    label: str
    seed: int
    key: str
    """`pe.study.planned.Planned.key`."""
    begins: str
    state: str
    step: int
    steps: int
    tokens: int = 0
    loss: float | None = None
    tokens_per_second: float | None = None
    """Measured in this run or in recorded runs, or estimated."""
    seconds_left: float | None = 0.0
    """Seconds of training; None if no speed is known."""
    parent: str | None = None
    """Key of the run that it waits for."""
    estimated: bool = False
    """Whether the speed is derived from the FLOPs of runs of other sizes."""

    def cells(self) -> list[str]:
        """Return the texts of the columns `HEADS`."""
        left = "not known" if self.seconds_left is None else duration(self.seconds_left)
        about = "about " if self.estimated else ""
        return [
            self.label, str(self.seed), self.begins, self.state, f"{self.step:,} of {self.steps:,}",
            f"{self.tokens / 1e6:,.1f} M", "" if self.loss is None else f"{self.loss:.3f}",
            f"{about}{self.tokens_per_second:,.0f}" if self.tokens_per_second else "",
            left if self.seconds_left != 0 else "",
        ]  # fmt: skip


def rows(plan: Sequence[Planned], states: dict[str, str] | None = None) -> list[Row]:
    """Return a row for each run of the plan and each parent that must be retrained, in order.

    Args:
        states: those that `pe.study.run_study` reports. None: only the records decide.
    """
    speeds, states = _speeds(), states or {}
    rate = _flops_per_second(speeds)
    listed = []
    for planned in with_retrained_parents(plan):
        r, run, done = planned.recipe, planned.run(), planned.done()
        names = planned.label, r.seed, planned.key, _begins(r)
        if planned.zero_shot:
            cells, missing = len(planned.zero_shot.cells()), len(planned.zero_shot.missing(run))
            state = "done" if done else states.get(planned.key, "planned")
            listed.append(Row(*names, state, cells - missing, cells, parent=planned.parent))
            continue
        line = _last_line(run)
        step = r.steps if done else int(line.get("step", 0))
        speed = line.get("tokens_per_second") or _known(speeds, r)
        estimated = False
        if not r.steps:
            speed = None
        elif not speed and rate is not None:
            speed, estimated = _together() * rate / _flops(r), not done
        window = r.batch_size * r.context_length
        left = (r.steps - step) * window
        listed.append(
            Row(
                *names, "done" if done else states.get(planned.key, _state(run)), step, r.steps,
                r.steps * window, line.get("loss"), speed,
                0.0 if not left else left / speed if speed else None, planned.parent, estimated,
            )
        )  # fmt: skip
    return listed


def text(
    plan: Sequence[Planned],
    states: dict[str, str] | None = None,
    workers: int = 1,
    tablefmt: str = "plain",
) -> str:
    """Return the rows as a table, their sums, and the time that ``workers`` need together."""
    listed = rows(plan, states)
    table = tabulate(
        [row.cells() for row in listed], HEADS, tablefmt, disable_numparse=True,
        colalign=("left", "right", "left", "left", *["right"] * 5),
    )  # fmt: skip
    return f"{table}\n\n{summary(plan, listed, workers)}"


def summary(plan: Sequence[Planned], listed: Sequence[Row], workers: int = 1) -> str:
    """Say in one line how many runs are done, which run or failed, and the time that is left."""
    own = {planned.key for planned in plan}
    done = sum(r.state == "done" and r.key in own for r in listed)
    retrained = sum(r.state != "done" and r.key not in own for r in listed)
    running = [f"{r.label} s{r.seed} {r.step}/{r.steps}" for r in listed if r.state == "running"]
    failed = [f"{r.label} s{r.seed}" for r in listed if r.state == "failed"]
    parts = [
        f"{done} of {len(plan)} runs done",
        f"{retrained} to retrain for lost weights" if retrained else "",
        f"running {', '.join(running)}" if running else "",
        f"failed {', '.join(failed)}" if failed else "",
        f"{sum(r.tokens for r in listed) / 1e6:,.1f} M tokens",
        time_left(listed, workers),
    ]
    return "; ".join(part for part in parts if part)


def time_left(listed: Sequence[Row], workers: int = 1) -> str:
    """Say how much training is left on one device and with several workers, without evaluation."""
    missing = sum(r.seconds_left is None for r in listed)
    alone = sum(r.seconds_left or 0.0 for r in listed)
    if missing and not alone:
        return "time left not known: no run is recorded on this kind of device"
    ends: dict[str, float] = {}  # when each run would end if every run had its own worker
    for r in listed:
        ends[r.key] = ends.get(r.parent or "", 0.0) + (r.seconds_left or 0.0)
    together = duration(max(alone / workers, *ends.values()))
    several = f", {together} with {workers} workers" if workers > 1 else ""
    unknown = f", {missing} runs of unknown speed not counted" if missing else ""
    about = "about " if any(r.estimated and r.seconds_left for r in listed) else ""
    count = _together()
    where = "one device" if count == 1 else f"{count} devices that train each run together"
    return f"{about}{duration(alone)} of training left on {where}{several}{unknown}"


def memory_needed(plan: Sequence[Planned]) -> str:
    """Say how much memory of each GPU the largest run needs, and what to set if it is too much.

    It is empty if nothing is left to train.
    """
    from pe.devices import gpu_memory

    left = [
        planned.recipe
        for planned in plan
        if planned.recipe.steps and not planned.zero_shot and not planned.done()
    ]
    if not left:
        return ""
    count, gib = processes.wanted(), gpu_memory()
    largest = max(left, key=lambda r: memory.estimate(r, count).total)
    if gib is None:
        needed = memory.estimate(largest, count).total
        gpus = "a GPU" if count == 1 else f"each of {count} GPUs"
        return f"memory: about {needed:.1f} GiB of {gpus}; this machine has none"
    return f"memory: {memory.sentence(largest, count, gib, where='the set of the study')}"


def live(plan: Sequence[Planned], workers: int = 1) -> Callable[[dict[str, str]], None]:
    """Return a callback for `run_study` that shows the state of the study.

    A notebook shows the whole table and updates it in place. A terminal shows the table once, and
    then only the sum.
    """
    progress = Progress(every_seconds=30.0)
    last: dict[str, str] = {}

    def show(states: dict[str, str]) -> None:
        changed, whole = states != last, not last or progress.in_kernel
        last.clear()
        last.update(states)
        progress.show(
            lambda: (
                text(plan, states, workers) if whole else summary(plan, rows(plan, states), workers)
            ),
            last=changed,
        )

    return show


def _begins(r: Recipe) -> str:
    if not r.start_from:
        return "drawn weights"
    branch = ", a branch" if r.start_state == "all" else ""
    return f"{r.start_from}, step {r.start_step:,}{branch}"


def _state(run: Run) -> str:
    if not run.exists():
        return "planned"
    status = str(run.read()["status"])
    return "trained" if status == "complete" else status


def _last_line(run: Run) -> dict[str, Any]:
    try:
        lines = run.metric_lines(drop_torn_end=True)
    except RunError:
        return {}  # a line is being written at this moment
    return next((line for line in reversed(lines) if "loss" in line), {})


def _speeds() -> list[tuple[dict[str, Any], float]]:
    """Return recipe and tokens/s per device of each complete run on this kind of device."""
    from pe.runs.provenance import hardware

    here = hardware()["name"]
    records = [run.read() for run in find()] if root().is_dir() else []
    return [
        (
            record["recipe"],
            record["training"]["tokens_per_second"] / record["hardware"].get("count", 1),
        )
        for record in records
        if record["training"]
        and record["training"].get("tokens_per_second")
        and record["hardware"]["name"] == here
    ]


def _known(speeds: Sequence[tuple[dict[str, Any], float]], recipe: Recipe) -> float | None:
    """Return the median speed of runs with the same sizes, and the same encoding if there are any.

    N devices that train a run together count as N times as fast as one.
    """
    sizes = [getattr(recipe, name) for name in SIZES]
    same = [(r["pe"], speed) for r, speed in speeds if [r[name] for name in SIZES] == sizes]
    own = [speed for pe, speed in same if pe == recipe.pe] or [speed for _, speed in same]
    return _together() * statistics.median(own) if own else None


def _flops_per_second(speeds: Sequence[tuple[dict[str, Any], float]]) -> float | None:
    """Return the highest rate of a recorded run on one device, or else a share of the GPU's peak.

    Small models and runs that shared their device reach less. None if neither is known.
    """
    from pe.runs.provenance import hardware

    rates = [speed * _flops(Recipe.from_dict(r)) for r, speed in speeds]
    if rates:
        return max(rates)
    peak = peak_flops(hardware()["name"])
    return None if peak is None else USUAL_MFU * peak


def _flops(r: Recipe) -> float:
    return flops_per_token(
        memory.parameters(r), r.num_hidden_layers, r.hidden_size, r.context_length
    )


def _together() -> int:
    """Return how many devices train a run together. Processes on a CPU share its cores."""
    from pe.devices import choose

    return processes.wanted() if choose().type == "cuda" else 1
