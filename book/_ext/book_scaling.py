"""Training steps as benchmarks/scaling.py timed them.

| ```{scaling} speed      tokens/s, MFU, memory by size and number of GPUs
| ```{scaling} memory     the largest model, with the options that save memory
| ```{scaling} cost       hours that the studies of the page take, by number of GPUs
| ```{scaling} families   hours of what starts from one model, measured and estimated
| ```{scaling} profile    what each group of kernels takes of a step
| ```{scaling} agreement  how far the losses of several processes are from those of one, and what
|                         became of a run of which a process was killed

A record of scaling.py holds some parts only, so `{scaling}` shows the newest measurement of each.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from book_directives import Made

from pe._errors import unknown
from pe.results.markdown import pipe
from pe.results.quantities import whole
from pe.study.plan import load_plan
from pe.study.planned import Planned

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NOT_YET = "Not measured yet."
STUDIES = ("paper-rates", "paper")
GPUS = 1, 2, 4, 8
Record = dict[str, Any]


def records(folder: Path = RESULTS) -> list[Record]:
    """Read the records DATE-MACHINE-scaling.json, the latest date first."""
    paths = sorted(folder.glob("*-scaling.json"), reverse=True)
    return [json.loads(path.read_text()) for path in paths]


def text(part: str, known: Sequence[Record]) -> str:
    """Write a part of these records.

    Raises:
        ValueError: there is no such part.
    """
    if part not in PARTS:
        raise unknown("part of the scaling record", part, list(PARTS))
    return PARTS[part](known)


def newest(known: Sequence[Record], part: str, *kinds: str) -> list[tuple[Record, Record]]:
    """Return the newest entry of each job and number of processes, with its record.

    Args:
        part: of the records, ``rows`` or ``agreement``. kinds: what the entries measure; all of
            them if there is none. A job that was not measured is left out if another record has it.
    """
    entries = [
        (row, record)
        for record in known
        for row in record[part]
        if not kinds or row["what"] in kinds
    ]
    measured: dict[Any, tuple[Record, Record]] = {}
    for row, record in entries:
        if row.get("reason") is None:
            measured.setdefault((*_job(row), row["processes"]), (row, record))
    jobs = {_job(row) for row, _ in measured.values()}
    missing = {_job(row): (row, record) for row, record in entries if _job(row) not in jobs}
    return [*measured.values(), *missing.values()]


def _job(row: Record) -> tuple[str, str, str]:
    return row["what"], row["name"], row["options"]


def steps_of(kind: str, known: Sequence[Record]) -> str:
    """Write the table of speed, or that of memory."""
    chosen = newest(known, "rows", kind)
    if not chosen:
        return NOT_YET
    chosen.sort(key=lambda one: (one[0].get("parameters", 0), one[0]["options"],
                                 one[0].get("processes", 0)))  # fmt: skip
    heads = ["model", "options", "GPUs", "batch", "tokens/s", "of one GPU, each", "MFU", "memory"]
    return f"{pipe(heads, [line(row) for row, _ in chosen], 2)}\n\n{machines(chosen)}"


def line(row: dict[str, Any]) -> list[str]:
    """Return the cells of a row. A dash means not measured, or not applicable."""
    if row["reason"]:
        gpus = str(row.get("processes", "–"))
        return [row["name"], row["options"] or "–", gpus, "–", row["reason"], "–", "–", "–"]
    numbers = [(row["share"], "{:.0%}"), (row["mfu"], "{:.1%}")]
    return [
        f"{row['parameters'] / 1e6:,.0f} M", row["options"] or "–", str(row["processes"]),
        " × ".join(map(whole, row["batch"])), whole(row["tokens_per_second"]),
        *("–" if value is None else form.format(value) for value, form in numbers),
        memory(row["peak_memory_gib"]),
    ]  # fmt: skip


def cost(known: Sequence[Record]) -> str:
    """Write the hours of training of the large studies, by the measured speed of their model."""
    chosen = speeds(known)
    if not chosen:
        return NOT_YET
    tokens = {study: tokens_of(plan) for study, plan in plans().items()}
    lines = [
        [str(row["processes"]), whole(row["tokens_per_second"]),
         *(f"{count / row['tokens_per_second'] / 3600:.1f}" for count in tokens.values())]
        for row, _ in chosen
    ]  # fmt: skip
    heads = [f"`{study}`, {count / 1e6:,.0f} M tokens" for study, count in tokens.items()]
    return f"{pipe(['GPUs', 'tokens/s', *heads], lines, 0)}\n\n{machines(chosen)}"


def speeds(known: Sequence[Record]) -> list[tuple[Record, Record]]:
    """Return the measured steps of the model of the large studies, by ascending number of GPUs."""
    chosen = [
        (row, record)
        for row, record in newest(known, "rows", "speed")
        if row["name"] == "360M" and row["reason"] is None
    ]
    return sorted(chosen, key=lambda one: one[0]["processes"])


def plans() -> dict[str, list[Planned]]:
    """Return the planned runs of the large studies, without the zero-shot parts."""
    return {study: [p for p in load_plan(study) if not p.zero_shot] for study in STUDIES}


def tokens_of(plan: Sequence[Planned]) -> int:
    """Count the tokens that planned runs are trained on."""
    recipes = [planned.recipe for planned in plan]
    return sum(r.steps * r.batch_size * r.context_length for r in recipes)


def families(known: Sequence[Record]) -> str:
    """Write the hours of each model of the large study with all runs that start from it, by GPUs.

    A family is split where its runs do not follow one another in the plan.
    """
    chosen = speeds(known)
    if not chosen:
        return NOT_YET
    measured = {row["processes"]: row["tokens_per_second"] for row, _ in chosen}
    counts = sorted({*measured, *GPUS})
    heads = [f"{n} GPU{'s' * (n > 1)}{'' if n in measured else ', estimated'}" for n in counts]
    lines = []
    for runs in _families(plans()["paper"]):
        hours = [tokens_of(runs) / speed(measured, n) / 3600 for n in counts]
        cells = [
            f"{h:.2f}" + (f" ({n * h:.1f} GPU hours)" if n > 1 else "")
            for n, h in zip(counts, hours, strict=True)
        ]
        names = f"`{runs[0].label}`" + (f" … `{runs[-1].label}`" if len(runs) > 1 else "")
        lines.append([names, str(len(runs)), f"{tokens_of(runs) / 1e6:,.0f} M", *cells])
    return f"{pipe(['runs', '', 'tokens', *heads], lines, 1)}\n\n{machines(chosen)}"


def _families(plan: Sequence[Planned]) -> list[list[Planned]]:
    """Split the plan where the model from which runs start changes."""
    roots: dict[str, str] = {}
    for planned in plan:
        roots[planned.key] = roots.get(planned.parent or "", planned.key)
    return [list(runs) for _, runs in itertools.groupby(plan, lambda p: roots[p.key])]


def speed(measured: Mapping[int, int], gpus: int) -> float:
    """Return tokens per second of a number of GPUs: measured, or estimated from the two nearest.

    The time of a token is ``a / n + b``: a part that ``n`` GPUs share and one that they do not,
    such as the exchange of gradients and the optimizer's step. With one count measured, b is 0.
    """
    if gpus in measured:
        return measured[gpus]
    near = sorted(measured, key=lambda n: abs(n - gpus))[:2]
    times = [1 / measured[n] for n in near]
    if len(near) == 1:
        return gpus / near[0] / times[0]
    shared = (times[0] - times[1]) / (1 / near[0] - 1 / near[1])
    return 1 / (shared / gpus + times[0] - shared / near[0])


def agreement(known: Sequence[Record]) -> str:
    """Write the table of differences of losses, and what became of a run that was killed."""
    chosen = newest(known, "agreement")
    if not chosen:
        return NOT_YET
    lines = [
        [one["name"], one["options"] or "bfloat16", str(one["processes"]),
         difference(one["largest_difference"]), memory(one.get("peak_memory_gib"))]
        for one, _ in chosen
    ]  # fmt: skip
    heads = ["model", "", "GPUs", "largest difference of a loss (nats)", "memory of each GPU"]
    parts = [pipe(heads, lines, 2)]
    failed = next((record["failure"] for record in known if record.get("failure")), None)
    if failed:
        parts.append(
            f"A process was killed after a checkpoint. {failed['seconds_until_all_had_ended']:.0f} "
            f"seconds after its start the run had ended with *{failed['message']}*. In one process "
            f"it went on from step {failed['went_on_from'][-1]}. Largest difference of its losses "
            f"from those of a run that nobody killed: "
            f"{difference(failed['largest_difference_of_losses'])} nats."
        )
    return "\n\n".join([*parts, machines(chosen)])


def difference(value: float) -> str:
    """Write a difference of two losses, which are recorded with six decimals."""
    return f"{value:.6f}" if value else "none in six decimals"


def profile(known: Sequence[Record]) -> str:
    """Write the time of each group of kernels in a step."""
    chosen = [one for one in newest(known, "rows", "profile") if one[0]["reason"] is None]
    if not chosen:
        return NOT_YET
    parts = []
    for row, _ in chosen:
        lines = [
            [group["group"], f"{group['ms']:.1f}", f"{group['share']:.1%}",
             "–" if group["at_peak_ms"] is None else f"{group['at_peak_ms']:.1f}"]
            for group in row["groups"]
        ]  # fmt: skip
        mfu = "" if row["mfu"] is None else f", MFU {row['mfu']:.1%}"
        parts.append(
            f"A step of {' × '.join(map(whole, row['batch']))} tokens with "
            f"{row['parameters'] / 1e6:,.0f} M parameters: {row['step_ms']:.1f} ms{mfu}."
        )
        heads = ["kernels", "ms per step", "share", "ms at the card's peak"]
        parts.append(pipe(heads, lines, 1))
    return "\n\n".join([*parts, machines(chosen)])


PARTS: dict[str, Callable[[Sequence[Record]], str]] = {
    "speed": lambda known: steps_of("speed", known),
    "memory": lambda known: steps_of("memory", known),
    "cost": cost,
    "families": families,
    "profile": profile,
    "agreement": agreement,
}


def memory(gib: float | None) -> str:
    """Write GiB, or a dash."""
    return "–" if gib is None else f"{gib:.1f} GiB"


def machines(chosen: Sequence[tuple[Record, Record]]) -> str:
    """Name the machines on which the entries were measured, the newest first."""
    return " ".join(dict.fromkeys(machine(record) for _, record in chosen))


def machine(record: dict[str, Any]) -> str:
    """Name the machine, the version of torch, the commit and the date of a record."""
    hardware, commit = record["hardware"], record["code"]["commit"] or "unknown"
    return (
        f"{hardware['count']} × {hardware['name']}, torch {record['versions']['torch']}, commit "
        f"`{commit[:12]}`, {record['created'][:10]}."
    )


class Scaling(Made):
    """`text` of a part."""

    def text(self) -> str:
        return text(self.arguments[0], records())
