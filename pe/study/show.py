"""The state of a study, and how long the rest of it takes: as rows, as text, as a live view."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pe.recipes.recipe import Recipe
from pe.runs import Run, RunError, find, root
from pe.study.parents import with_retrained_parents
from pe.study.plan import Planned
from pe.study.zero_shot import ZeroShot
from pe.training.progress import Progress, duration

SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size",
    "context_length", "batch_size",
)  # fmt: skip


class Row(NamedTuple):
    """One run of a study."""

    label: str
    seed: int
    name: str
    state: str
    step: int
    steps: int
    tokens: int
    loss: float | None
    tokens_per_second: float | None
    """Measured in this run, or in recorded runs of the same sizes."""
    seconds_left: float | None
    """Of training; None where no speed is known."""
    parent: str | None = None
    """Name of the run that it waits for."""


def rows(plan: Sequence[Planned], states: dict[str, str] | None = None) -> list[Row]:
    """The plan with the state that the records show; parents to retrain come before their children.

    ``states`` come from `pe.study.run_study`.
    """
    speeds = _speeds()
    found = []
    for planned in with_retrained_parents(plan):
        r, run = planned.recipe, planned.run()
        if planned.zero_shot:
            found.append(_zero_shot(planned, planned.zero_shot, states or {}))
            continue
        line = _last_line(run)
        done = planned.done()
        step = r.steps if done else int(line.get("step", 0))
        speed = line.get("tokens_per_second") or _known(speeds, r)
        left = (r.steps - step) * r.batch_size * r.context_length
        state = "done" if done else (states or {}).get(planned.name, _state(run))
        found.append(
            Row(
                planned.label, r.seed, planned.name, state, step, r.steps,
                r.steps * r.batch_size * r.context_length, line.get("loss"), speed,
                0.0 if done else left / speed if speed else None, planned.parent,
            )
        )  # fmt: skip
    return found


def _zero_shot(planned: Planned, wanted: ZeroShot, states: dict[str, str]) -> Row:
    """Cells in place of steps; evaluation counts as no training time."""
    cells, missing = len(wanted.cells()), len(wanted.missing(planned.run()))
    state = "done" if not missing else states.get(planned.name, "planned")
    return Row(
        planned.label, planned.recipe.seed, planned.name, state, cells - missing, cells, 0, None,
        None, 0.0, planned.parent,
    )  # fmt: skip


def text(plan: Sequence[Planned], states: dict[str, str] | None = None, workers: int = 1) -> str:
    """The rows as aligned text, their sum, and the time that ``workers`` take together."""
    found = rows(plan, states)
    width = max(len(r.label) for r in found)
    lines = []
    for r in found:
        loss = f"loss {r.loss:.3f}" if r.loss is not None else ""
        speed = f"{r.tokens_per_second:,.0f} tokens/s" if r.tokens_per_second else "speed not known"
        speed = speed if r.tokens else "no training"
        left = duration(r.seconds_left) + " left" if r.seconds_left else ""
        lines.append(
            f"{r.label:{width}}  s{r.seed}  {r.state:8}  {r.step:>6}/{r.steps:<6} "
            f"{r.tokens / 1e6:7.1f}M tokens  {speed:>18}  {loss:10}  {left}".rstrip()
        )
    own = {planned.name for planned in plan}
    done = sum(r.state == "done" and r.name in own for r in found)
    again = sum(r.state != "done" and r.name not in own for r in found)
    second = f"{again} to retrain for lost weights; " if again else ""
    now = ", ".join(
        f"{r.label} s{r.seed} {r.step}/{r.steps}" for r in found if r.state == "running"
    )
    running = f"running {now}; " if now else ""
    lines.append(
        f"{done} of {len(plan)} runs done; {second}{running}"
        f"{sum(r.tokens for r in found) / 1e6:,.1f}M tokens; {time_left(found, workers)}"
    )
    return "\n".join(lines)


def time_left(found: Sequence[Row], workers: int = 1) -> str:
    """``2:05:00 of training left on one device, 35:00 with 4 workers``; evaluation not counted."""
    missing = sum(r.seconds_left is None for r in found)
    if missing and not any(r.seconds_left for r in found):
        return "time left not known: no run of these sizes is recorded on this kind of device"
    alone = duration(sum(r.seconds_left or 0.0 for r in found))
    together = f", {duration(_together(found, workers))} with {workers} workers"
    unknown = f", {missing} runs of unknown speed not counted" if missing else ""
    return f"{alone} of training left on one device{together if workers > 1 else ''}{unknown}"


def _together(found: Sequence[Row], workers: int) -> float:
    """Seconds until the last run ends, each taken by the first free worker once its parent is done.

    Of the runs that could begin first, the first in order does.
    """
    free, ends = [0.0] * workers, dict[str, float]()
    waiting = [r for r in found if r.seconds_left]
    names = {r.name for r in waiting}
    while waiting:
        earliest = min(free)
        ready = [r for r in waiting if r.parent not in names or r.parent in ends]
        begins = {r.name: max(earliest, ends.get(r.parent or "", 0.0)) for r in ready}
        run = min(ready, key=lambda r: begins[r.name])
        ends[run.name] = begins[run.name] + (run.seconds_left or 0.0)
        free[free.index(earliest)] = ends[run.name]
        waiting.remove(run)
    return max(free)


def live(plan: Sequence[Planned], workers: int = 1) -> Callable[[dict[str, str]], None]:
    """A callback for `run_study` that keeps the text up to date in a terminal or a notebook."""
    progress = Progress(every_seconds=30.0)
    last: dict[str, str] = {}

    def show(states: dict[str, str]) -> None:
        changed = states != last
        last.clear()
        last.update(states)
        progress.show(text(plan, states, workers), last=changed)

    return show


def _state(run: Run) -> str:
    if not run.exists():
        return "planned"
    status = str(run.read()["status"])
    return "trained" if status == "complete" else status


def _last_line(run: Run) -> dict[str, Any]:
    try:
        lines = run.metric_lines(drop_torn_end=True)
    except RunError:
        return {}  # being written this moment; the record itself is checked where it is read
    return next((line for line in reversed(lines) if "loss" in line), {})


def _speeds() -> dict[tuple[Any, ...], list[float]]:
    """(encoding, sizes...) -> tokens/s of complete runs on this kind of device."""
    from pe.runs.provenance import hardware

    here = hardware()["name"]
    found: dict[tuple[Any, ...], list[float]] = {}
    for run in find() if root().is_dir() else []:
        record = run.read()
        speed = (record["training"] or {}).get("tokens_per_second")
        if speed and record["hardware"]["name"] == here:
            sizes = tuple(record["recipe"][name] for name in SIZES)
            found.setdefault((record["pe"], *sizes), []).append(speed)
            found.setdefault(("", *sizes), []).append(speed)
    return found


def _known(speeds: dict[tuple[Any, ...], list[float]], recipe: Recipe) -> float | None:
    sizes = tuple(getattr(recipe, name) for name in SIZES)
    same = speeds.get((recipe.pe, *sizes)) or speeds.get(("", *sizes))
    return statistics.median(same) if same else None
