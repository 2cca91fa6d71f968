"""Measure training on several GPUs: agreement of losses, a killed process, speed and memory.

    python benchmarks/scaling.py --gpus 2 --minutes 8.5 --out scaling.json
    PE_DEVICE=cpu python benchmarks/scaling.py --gpus 2 --mini            # a rehearsal, with gloo
    python benchmarks/scaling.py --gpus 8 --parts losses 34M 125M 360M

Steps are those of `pe.training.loop.Trainer`, on text that every Python carries. The batch is the
same on 1, 2, 4 ... GPUs up to ``--gpus``. The parts, in the order of their importance:

    losses   34 M parameters in float32, uncompiled: 1 process, several, and several with FSDP
    failure  one of several processes is killed, and a single process continues the run
    profile  which kernels a step of 360 M parameters spends its time in
    125M     speed; also 34M and 360M, which are measured if asked for
    1.2B     FSDP over all GPUs, without and with activation checkpointing
    alone    1.2 B on one GPU, without and with activation checkpointing; if asked for

What needs one GPU is spread over all of them. What would not end within ``--minutes`` is left out,
and the record says so; the record is written after each measurement. `scaling_worker` measures.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tabulate import tabulate

from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.runs.provenance import code, hardware, now, versions

SIZES: dict[str, dict[str, Any]] = {
    "34M": {"recipe": "tiny"},
    "125M": {"recipe": "medium", "num_hidden_layers": 14},
    "360M": {"recipe": "paper"},
}
PARTS = ("losses", "failure", "profile", "125M", "1.2B", "34M", "360M", "alone")
WANTED = PARTS[:5]
"""What is measured if no parts are named."""
MINI: dict[str, Any] = {
    "recipe": "demo", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 512, "context_length": 64,
    "batch_size": 8, "micro_batch_size": 0,
}  # fmt: skip
NEEDED = {"losses": 10, "reference": 20, "profile": 80, "speed": 60, "memory": 75}
"""Seconds that a job takes on an H200 once its process has started; compiling is most of it."""
STARTING, ENDING = 15, 10
"""Seconds in which a process starts, and in which it may end after its last job."""
FAILING = 75
"""Seconds for the run whose process is killed, 15 of which processes have to end by themselves."""
Job = dict[str, Any]


class Stage(NamedTuple):
    """Jobs that are measured at the same time, by so many processes for each list of them."""

    processes: int
    shares: list[list[Job]]


def stages(gpus: int, parts: Sequence[str], mini: bool) -> Iterator[Stage | None]:
    """Yield the stages, which are measured one after the other; None is the part ``failure``."""
    counts = [2**power for power in range(1, gpus.bit_length()) if 2**power <= gpus]
    speed = [_speed(name) for name in parts if name in SIZES]
    alone = [_losses({})] if "losses" in parts else []
    if "failure" in parts and counts:
        alone.append({"what": "reference"})
    if "profile" in parts:
        alone.append({"what": "profile", "name": "360M", "set": SIZES["360M"]})
    alone += speed
    if "alone" in parts:
        alone += _largest({"batch_size": 16})
    if alone:
        yield _stage(1, _spread(alone, gpus), mini)
    if "losses" in parts:
        for count in counts:
            yield _stage(count, [[_losses({}), _losses({"fsdp": True})]], mini)
    if "failure" in parts and counts:
        yield None
    for count in counts:
        last = count == counts[-1] and "1.2B" in parts
        largest = _largest({"batch_size": 16 * count, "fsdp": True}) if last else []
        if speed or largest:
            yield _stage(count, [speed + largest], mini)


def _speed(name: str) -> Job:
    return {"what": "speed", "name": name, "set": SIZES[name]}


def _losses(options: dict[str, Any]) -> Job:
    exact = {"recipe": "tiny", "precision": "float32", "compile": "off", "batch_size": 16}
    return {"what": "losses", "name": "34M", "set": exact | options, "steps": [0, 6]}


def _largest(options: dict[str, Any]) -> list[Job]:
    both = options, options | {"activation_checkpointing": True}
    return [
        {"what": "memory", "name": "1.2B", "set": {"recipe": "1200m", **some}, "steps": [2, 4]}
        for some in both
    ]


def _spread(jobs: Sequence[Job], gpus: int) -> list[list[Job]]:
    """Give each job, in their order, to the GPU that has least to do so far."""
    shares: list[list[Job]] = [[] for _ in range(gpus)]
    busy = [0] * gpus
    for job in jobs:
        least = busy.index(min(busy))
        shares[least].append(job)
        busy[least] += NEEDED[job["what"]]
    return shares


def _stage(count: int, shares: list[list[Job]], mini: bool) -> Stage:
    return Stage(count, [[_timed(job, mini) for job in share] for share in shares if share])


def _timed(job: Job, mini: bool) -> Job:
    job = job | {"needs": NEEDED[job["what"]]}
    return mini_job(job) if mini else job


def mini_job(job: Job) -> Job:
    """Return a small version of a job, which takes seconds on a CPU."""
    kept = ("activation_checkpointing", "fsdp", "precision", "compile")
    fields = {name: value for name, value in job.get("set", {}).items() if name in kept}
    return job | {"set": MINI | fields, "steps": [1, 3], "needs": 0}


def recipe_of(job: Job) -> Recipe:
    """Return the recipe whose steps are measured."""
    fields = dict(job["set"])
    name = fields.pop("recipe")
    length = fields.get("context_length") or named_recipe(name).context_length
    common = {
        "corpus": "stdlib", "validate_every": 0, "steps": 1000, "warmup_steps": 100,
        "evaluation_lengths": [length],
    }  # fmt: skip
    return named_recipe(name, **(common | fields))


def interrupted_run(folder: Path, mini: bool) -> Run:
    """Return a run long enough for a process to be killed after the first checkpoint."""
    fields: dict[str, Any] = MINI | {
        "num_hidden_layers": 1, "steps": 120 if mini else 2000, "checkpoint_every": 40,
        "validate_every": 0, "log_every": 10,
    }  # fmt: skip
    name = fields.pop("recipe")
    chosen = named_recipe(name, compile="off", precision="float32", **fields)
    return Run(folder / chosen.run_name(), recipe=chosen)


# Processes that measure together


def started(count: int, first_gpu: int, task: dict[str, Any], log: Path) -> list[Any]:
    """Start ``count`` processes that measure together, on GPUs from ``first_gpu`` on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    together = {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
    }  # fmt: skip
    common = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "4"),
        "CUDA_VISIBLE_DEVICES": ",".join(str(first_gpu + i) for i in range(count)),
    }  # fmt: skip
    worker = Path(__file__).with_name("scaling_worker.py")
    processes = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **together} if count > 1 else {}
        with log.with_suffix(f".{rank}").open("w") as out:
            processes.append(
                subprocess.Popen(
                    [sys.executable, str(worker), json.dumps(task)],
                    env=os.environ | common | own, stdout=out, stderr=out,
                )
            )  # fmt: skip
    return processes


def ended(processes: Sequence[Any], seconds: float, watch: Callable[[], None]) -> str | None:
    """Wait for processes, kill those that still run, and return what went wrong, or None."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
            watch()
            if all(code == 0 for code in codes):
                return None
            if any(code not in (None, 0) for code in codes):
                time.sleep(2)
                return f"exit codes {[process.poll() for process in processes]}"
            time.sleep(0.2)
        return f"no end after {seconds:.0f} s"
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the rows that were measured so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def measured(
    stage: Stage, number: int, folder: Path, deadline: float,
    keep: Callable[[list[dict[str, Any]]], None],
) -> str | None:  # fmt: skip
    """Measure a stage; return what went wrong, or None.

    Args:
        deadline: of `time.monotonic`. keep: is given all rows of the stage whenever there are more.
    """
    groups, files = [], []
    for place, share in enumerate(stage.shares):
        out = folder / f"rows-{number}-{place}"
        task = {
            "jobs": share, "folder": str(folder), "out": str(out), "deadline": deadline - ENDING
        }  # fmt: skip
        first = place if stage.processes == 1 else 0
        groups += started(stage.processes, first, task, folder / f"log-{number}-{place}")
        files.append(out)
    known = 0

    def watch() -> None:
        nonlocal known
        rows = [row for file in files for row in rows_of(file)]
        if len(rows) > known:
            known = len(rows)
            keep(rows)

    problem = ended(groups, deadline + ENDING - time.monotonic(), watch)
    watch()
    if problem:
        logs = sorted(folder.glob(f"log-{number}-*"))
        problem += "; " + " | ".join(path.read_text()[-1500:] for path in logs)
    return problem


def failure(gpus: int, folder: Path, mini: bool) -> dict[str, Any]:
    """Kill one of all processes, continue with one, and compare with a run that was not killed."""
    import pe
    from pe.training import processes

    run = interrupted_run(folder / "failure", mini)
    os.environ[processes.PROCESSES] = str(gpus)

    def kill() -> None:
        while not [line for line in run.metric_lines(drop_torn_end=True) if line["step"] > 50]:
            time.sleep(0.05)
        for line in os.popen("ps -eo pid,args").read().splitlines():
            if "pe.training.worker" in line and str(run.directory) in line:
                pids.append(int(line.split()[0]))
        os.kill(max(pids), 9)

    pids: list[int] = []
    threading.Thread(target=kill, daemon=True).start()
    begun = time.monotonic()
    try:
        pe.train(run, quiet=True)
        message = "it was not killed in time"
    except processes.ProcessDied as error:
        message = str(error)
    seconds = time.monotonic() - begun
    del os.environ[processes.PROCESSES]
    pe.train(run, quiet=True)
    whole = interrupted_run(folder / "reference", mini)
    pe.train(whole, quiet=True)  # nothing, if it was trained beside other measurements
    pairs = zip(*(_losses_of(one) for one in (run, whole)), strict=True)
    record = run.read()
    return {
        "message": message.replace(str(folder), "..."),
        "seconds_until_all_had_ended": round(seconds, 1),
        "devices": [session["hardware"].get("devices") for session in record["sessions"]],
        "went_on_from": [session["step"] for session in record["sessions"]],
        "largest_difference_of_losses": max(abs(a - b) for a, b in pairs),
    }


def _losses_of(run: Run) -> list[float]:
    return [line["loss"] for line in run.metric_lines() if "loss" in line]


# Tables of the rows


def with_shares(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows, each with its speed per GPU as a share of that of a single GPU."""
    alone = {_job(row): row["tokens_per_second"] for row in rows if _alone(row)}
    return [
        row if row["reason"] else row | {"share": _share(row, alone.get(_job(row)))} for row in rows
    ]


def _share(row: dict[str, Any], alone: float | None) -> float | None:
    each = row["tokens_per_second"] / row["processes"]
    return None if alone is None else round(each / alone, 4)


def _job(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["what"], row["name"], row["options"], tuple(row.get("batch", ()))


def _alone(row: dict[str, Any]) -> bool:
    return row["reason"] is None and row["processes"] == 1


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Write a table of speed, MFU, memory, and speed per GPU as a share of a single GPU's."""
    lines = []
    for row in sorted(rows, key=lambda r: (r["what"], r["name"], r["options"])):
        if row["reason"]:
            lines.append(
                [row["what"], row["name"], row["options"], row["processes"], row["reason"]]
            )
            continue
        lines.append([
            row["what"], row["name"], row["options"], row["processes"],
            f"{row['tokens_per_second']:,}",
            "" if row["share"] is None else f"{row['share']:.1%}",
            "" if row["mfu"] is None else f"{row['mfu']:.1%}",
            "" if row["peak_memory_gib"] is None else f"{row['peak_memory_gib']:.1f}",
            f"{row['estimated_gib']:.1f}", row["first_step_seconds"],
        ])  # fmt: skip
    heads = ("", "size", "options", "GPUs", "tokens/s", "of one GPU, each", "MFU", "GiB",
             "estimated", "first step (s)")  # fmt: skip
    return tabulate(lines, headers=heads, disable_numparse=True)


def agreement(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare the losses of several processes with those of one, job by job; add the memory."""
    alone = {(row["what"], row["name"], *row["batch"]): row for row in rows if _alone(row)}
    results = []
    for row in rows:
        if row["reason"] or row["processes"] == 1:
            continue
        one = alone.get((row["what"], row["name"], *row["batch"]))
        if one is not None:
            pairs = zip(one["losses"], row["losses"], strict=True)
            results.append({
                "what": row["what"], "name": row["name"], "options": row["options"],
                "processes": row["processes"],
                "largest_difference": round(max(abs(a - b) for a, b in pairs), 7),
                "peak_memory_gib": row["peak_memory_gib"],
            })  # fmt: skip
    return results


class Record:
    """What was measured, on disk after each row."""

    def __init__(self, path: Path, gpus: int, parts: Sequence[str], mini: bool) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        """Those of earlier stages."""
        self.values: dict[str, Any] = {
            "benchmark": "scaling", "created": now(), "gpus": gpus, "parts": list(parts),
            "mini": mini, "code": code(), "versions": versions(), "rows": [], "agreement": [],
            "problems": [], "seconds": [], "hardware": hardware() | {"count": gpus},
        }  # fmt: skip

    def keep(self, rows: Sequence[dict[str, Any]]) -> None:
        """Write down the rows of a stage, beside those of earlier ones."""
        every = [*self.rows, *rows]
        self.values |= {"rows": with_shares(every), "agreement": agreement(every)}
        self.write()

    def write(self) -> None:
        """Replace the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.values, indent=1) + "\n")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2, help="the most GPUs; default: 2")
    parser.add_argument("--minutes", type=float, default=8.5, help="time limit; default: 8.5")
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=WANTED, metavar="PART",
        help=f"some of {', '.join(PARTS)}; default: {', '.join(WANTED)}",
    )  # fmt: skip
    parser.add_argument("--mini", action="store_true", help="small models, for a CPU")
    parser.add_argument(
        "--out", type=Path, default=Path("scaling.json"), help="the record; default: scaling.json"
    )
    options = parser.parse_args()
    from pe.data import prepare

    deadline = time.monotonic() + 60 * options.minutes
    parts = [part for part in PARTS if part in options.parts]
    record = Record(options.out, options.gpus, parts, options.mini)
    plan = list(stages(options.gpus, parts, options.mini))
    with tempfile.TemporaryDirectory(prefix="scaling-") as name, ThreadPoolExecutor() as pool:
        folder = Path(name)
        recipes = [
            recipe_of(job)
            for stage in plan
            if stage is not None
            for share in stage.shares
            for job in share
            if "set" in job
        ]
        vocabularies = sorted({recipe.vocab_size for recipe in recipes})
        list(pool.map(functools.partial(prepare, "stdlib"), vocabularies))
        print(f"text is ready, {deadline - time.monotonic():.0f} s are left", flush=True)
        for number, stage in enumerate(plan):
            begun = time.monotonic()
            left = deadline - begun
            if stage is None:
                if options.mini or left > FAILING:
                    record.values["failure"] = failure(options.gpus, folder, options.mini)
                    print(json.dumps(record.values["failure"], indent=1), flush=True)
            elif left > STARTING + ENDING:
                problem = measured(stage, number, folder, deadline, record.keep)
                if problem:
                    record.values["problems"].append(f"{stage.processes} GPUs: {problem}")
                record.rows = record.values["rows"]
                print(table(record.rows), flush=True)
            record.values["seconds"].append(round(time.monotonic() - begun, 1))
            record.write()
    for part in ("agreement", "problems", "seconds"):
        print(f"\n{part}: {json.dumps(record.values[part], indent=1)}")


if __name__ == "__main__":
    main()
