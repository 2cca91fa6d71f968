"""Training steps as benchmarks/scaling.py and benchmarks/train_speed.py timed them, newest record.

| ```{step-speed} windows-step  encodings beside the first of them: tokens/s, memory
| ```{scaling} speed      tokens/s, MFU, memory by size and number of GPUs
| ```{scaling} memory     the largest model, with the options that save memory
| ```{scaling} agreement  how far the losses of several processes are from those of one, and what
|                         became of a run of which a process was killed
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from book_directives import Made
from sphinx.application import Sphinx

from pe._errors import unknown
from pe.results.markdown import pipe
from pe.results.quantities import whole

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
NOT_YET = "Not measured yet."
PARTS = ("speed", "memory", "agreement")


def newest(folder: Path = RESULTS, name: str = "scaling") -> dict[str, Any] | None:
    """The record DATE-MACHINE-``name``.json with the latest date, or None."""
    paths = sorted(folder.glob(f"*-{name}.json"))
    return json.loads(paths[-1].read_text()) if paths else None


def text(part: str, record: dict[str, Any] | None) -> str:
    """The Markdown of a part.

    Raises:
        ValueError: there is no such part.
    """
    if part not in PARTS:
        raise unknown("part of the scaling record", part, PARTS)
    if record is None:
        return NOT_YET
    if part == "agreement":
        return agreement(record)
    rows = [row for row in record["rows"] if row["what"] == part]
    lines = [
        line(row) for row in sorted(rows, key=lambda r: (r.get("parameters", 0), r["options"]))
    ]
    heads = ["model", "options", "GPUs", "batch", "tokens/s", "of one GPU, each", "MFU", "memory"]
    return f"{pipe(heads, lines, 2)}\n\n{machine(record)}"


def line(row: dict[str, Any]) -> list[str]:
    """A row as cells; a dash stands for what was not measured or does not apply."""
    if row["reason"]:
        return [row["name"], row["options"] or "–", "–", "–", row["reason"], "–", "–", "–"]
    numbers = [
        (row["share"], "{:.0%}"), (row["mfu"], "{:.1%}"), (row["peak_memory_gib"], "{:.1f} GiB"),
    ]  # fmt: skip
    return [
        f"{row['parameters'] / 1e6:,.0f} M", row["options"] or "–", str(row["processes"]),
        " × ".join(map(whole, row["batch"])), whole(row["tokens_per_second"]),
        *("–" if value is None else form.format(value) for value, form in numbers),
    ]  # fmt: skip


def agreement(record: dict[str, Any]) -> str:
    """The table of differences, and the run whose process was killed."""
    lines = [
        [one["name"], one["options"] or "bfloat16", str(one["processes"]),
         f"{one['largest_difference']:.1e}"]
        for one in record["agreement"]
    ]  # fmt: skip
    parts = [pipe(["model", "", "GPUs", "largest difference of a loss (nats)"], lines, 2)]
    failed = record.get("failure")
    if failed:
        parts.append(
            f"A process was killed after a checkpoint. {failed['seconds_until_all_had_ended']:.0f} "
            f"seconds after its start the run had ended with *{failed['message']}*. In one process "
            f"it went on from step {failed['went_on_from'][-1]}, and its losses differ by at most "
            f"{failed['largest_difference_of_losses']:.1e} from those of a run that nobody killed."
        )
    return "\n\n".join([*parts, machine(record)])


def machine(record: dict[str, Any]) -> str:
    """What it was measured on."""
    hardware, commit = record["hardware"], record["code"]["commit"] or "unknown"
    return (
        f"{hardware['count']} × {hardware['name']}, torch {record['versions']['torch']}, commit "
        f"`{commit[:12]}`, {record['created'][:10]}."
    )


def steps(record: dict[str, Any]) -> str:
    """The Markdown of a record of train_speed: each system, beside the first of them."""
    rows, first = record["rows"], record["rows"][0]["tokens_per_second"]
    lines = [
        [row["system"].removeprefix("pe:"), whole(row["tokens_per_second"]),
         f"{row['tokens_per_second'] / first:.2f}", f"{row['peak_memory_gib']:.1f} GiB"]
        for row in rows
    ]  # fmt: skip
    heads = ["encoding", "tokens/s", "times as fast", "memory"]
    batch = " × ".join(map(whole, record["batch"]))
    return (
        f"{pipe(heads, lines, 1)}\n\nRecipe `{record['recipe']}`, batches of {batch} tokens, "
        f"median of {record['rounds']} rounds, the systems in turns. {machine(record)}"
    )


class StepSpeed(Made):
    """`steps` of the newest record of a name."""

    def text(self) -> str:
        record = newest(name=self.arguments[0])
        return NOT_YET if record is None else steps(record)


class Scaling(Made):
    """`text` of a part, from the newest record."""

    def text(self) -> str:
        return text(self.arguments[0], newest())


def setup(app: Sphinx) -> None:
    """Register with Sphinx."""
    app.add_directive("scaling", Scaling)
    app.add_directive("step-speed", StepSpeed)
