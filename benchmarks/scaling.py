"""Measure training on several GPUs: tokens/s, MFU and memory, and whether the losses agree.

    python benchmarks/scaling.py --gpus 2 --minutes 5.5 --out scaling.json
    PE_DEVICE=cpu python benchmarks/scaling.py --gpus 2 --mini            # a rehearsal, with gloo

The steps are those of `pe.training.loop.Trainer` on the sources of Python's standard library. They
are measured with 1, 2, 4 ... GPUs up to ``--gpus``, always with the same batch per step:

    speed      34 M, 125 M and 360 M parameters; with 1 GPU each size has a GPU to itself
    memory     1.2 B parameters: alone, with activation checkpointing, with FSDP, with both
    losses     the 34 M model in float32, uncompiled: 1 process, several, and several with FSDP
    failure    with PE_PROCESSES, as users start it: a process is killed, and one GPU continues

The most important measurements come first. Those that do not begin within ``--minutes`` are
skipped, and the record says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tabulate import tabulate

from pe import devices
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.runs.provenance import code, hardware, now, versions

WARM, TIMED = 4, 12
TOGETHER = 4
"""Steps between two looks at the clock, for which the device has to be waited for."""
SIZES: dict[str, dict[str, Any]] = {
    "34M": {"recipe": "tiny"},
    "125M": {"recipe": "medium", "num_hidden_layers": 14},
    "360M": {"recipe": "paper"},
}
MINI: dict[str, Any] = {
    "recipe": "demo", "num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 2,
    "num_key_value_heads": 2, "intermediate_size": 64, "vocab_size": 512, "context_length": 64,
    "batch_size": 8, "micro_batch_size": 0,
}  # fmt: skip
TIME_UP = "not begun within the time"
Job = dict[str, Any]


def jobs(gpus: int, mini: bool) -> list[Job]:
    """The measurements with this number of GPUs, the most important first."""
    several = gpus > 1
    speed = [{"what": "speed", "name": name, "set": fields} for name, fields in SIZES.items()]
    largest: dict[str, Any] = {"recipe": "1200m", "batch_size": 16 * gpus}
    options: list[dict[str, bool]] = [{}, {"activation_checkpointing": True}]
    if several:
        options = [one | {"fsdp": True} for one in options]
    memory = [
        {"what": "memory", "name": "1.2B", "set": largest | some, "steps": [2, 4]}
        for some in options
    ]
    exact = {"recipe": "tiny", "precision": "float32", "compile": "off", "batch_size": 16}
    losses = [
        {"what": "losses", "name": "34M", "set": exact | some, "steps": [0, 6]}
        for some in ([{}, {"fsdp": True}] if several else [{}])
    ]
    ordered = [speed[2], losses[0], memory[0], *losses[1:], speed[0], speed[1], memory[1]]
    return [mini_job(job) if mini else job for job in ordered]


def mini_job(job: Job) -> Job:
    """A job that a CPU measures in seconds."""
    kept = ("activation_checkpointing", "fsdp", "precision", "compile")
    fields = {name: value for name, value in job["set"].items() if name in kept}
    return job | {"set": MINI | fields, "steps": [1, 3]}


def recipe_of(job: Job) -> Recipe:
    """The recipe whose steps are measured."""
    fields = dict(job["set"])
    name = fields.pop("recipe")
    length = fields.get("context_length") or named_recipe(name).context_length
    common = {
        "corpus": "stdlib", "validate_every": 0, "steps": 1000, "warmup_steps": 100,
        "evaluation_lengths": [length],
    }  # fmt: skip
    return named_recipe(name, **(common | fields))


# One process among those that measure together


def measure(job: Job, folder: Path) -> dict[str, Any]:
    """Measure a job; returns its row."""
    import torch

    from pe.data import Batches  # noqa: F401 (its import is no part of a step)
    from pe.model.rng import seed_step
    from pe.training.build import set_rate
    from pe.training.loop import Trainer
    from pe.training.schedule import learning_rate

    chosen = recipe_of(job)
    warm, timed = job.get("steps", [WARM, TIMED])
    run = Run(folder / f"job-{time.monotonic_ns()}" / "run", recipe=chosen)
    begun = time.perf_counter()
    if devices.choose().type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer = Trainer(run, quiet=True)
    trainer._prepare()
    trainer.model.train()
    losses, times, first = [], [], 0.0
    start = time.perf_counter()
    for number in range(warm + timed):
        set_rate(trainer.optimizer, learning_rate(chosen, number))
        seed_step(chosen.seed, number, trainer.accelerator.process_index)
        losses.append(trainer.step(trainer.train_batches.at(number))[0])
        done = number + 1 - warm
        if done <= 0 or done % TOGETHER == 0 or done == timed:
            trainer.synchronize()
            moment = time.perf_counter()
            first = first or moment - begun
            if done > 0:
                times.append((moment - start) / ((done - 1) % TOGETHER + 1))
            start = moment
    losses = trainer.accelerator.reduce(torch.stack(losses), "mean").tolist()
    seconds = statistics.median(times)
    tokens = chosen.batch_size * chosen.context_length
    peak = trainer.metrics.peak
    row = {
        "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
        "processes": trainer.accelerator.num_processes,
        "windows_per_pass": trainer.micro,
        "batch": [chosen.batch_size, chosen.context_length],
        "tokens_per_second": round(tokens / seconds),
        "mfu": None if peak is None else round(tokens / seconds * trainer.metrics.flops / peak, 4),
        "step_seconds": [round(one, 5) for one in times],
        "first_step_seconds": round(first, 2),
        "peak_memory_gib": devices.peak_memory(trainer.device),
        "estimated_gib": _estimated(chosen, trainer.accelerator.num_processes),
        "losses": [round(loss, 6) for loss in losses],
    }
    trainer.accelerator.free_memory()
    return row


def _estimated(chosen: Recipe, processes: int) -> float:
    from pe.training.memory import estimate

    return round(estimate(chosen, processes).total, 2)


def work(todo: Sequence[Job], folder: Path, seconds: float) -> Iterator[dict[str, Any]]:
    """Rows of all jobs. All processes of a group skip the same jobs."""
    import torch

    deadline = time.monotonic() + seconds
    for job in todo:
        late = time.monotonic() > deadline
        if torch.distributed.is_initialized():  # the first process decides
            answer = torch.tensor([float(late)], device=devices.choose())
            torch.distributed.broadcast(answer, 0)
            late = bool(answer.item())
        row: dict[str, Any] = {"what": job["what"], "name": job["name"], "options": _options(job)}
        if late:
            yield row | {"reason": TIME_UP}
            continue
        try:
            yield row | measure(job, folder) | {"reason": None}
        except torch.OutOfMemoryError as error:
            yield row | {"reason": f"out of memory: {str(error)[:100]}"}
        gc.collect()
        torch._dynamo.reset()
        devices.free_memory(devices.choose())


def _options(job: Job) -> str:
    named = {"fsdp": "FSDP", "activation_checkpointing": "checkpointing", "precision": "float32"}
    return ", ".join(word for field, word in named.items() if job["set"].get(field))


def worker(task: dict[str, Any]) -> None:
    """Measure, and let the first process write each row as a line."""
    import torch

    if devices.choose().type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    for row in work(task["jobs"], Path(task["folder"]), task["seconds"]):
        if os.environ.get("RANK", "0") == "0":
            with open(task["out"], "a") as out:
                print(json.dumps(row), file=out)
    os._exit(0)  # communicators need not be taken down one by one


# The process that starts them


def started(count: int, first_gpu: int, task: dict[str, Any], log: Path) -> list[Any]:
    """Start ``count`` processes that measure together, on consecutive GPUs."""
    import socket

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
    processes = []
    for rank in range(count):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), **together} if count > 1 else {}
        with log.with_suffix(f".{rank}").open("w") as out:
            processes.append(
                subprocess.Popen(
                    [sys.executable, __file__, "--worker", json.dumps(task)],
                    env=os.environ | common | own, stdout=out, stderr=out,
                )
            )  # fmt: skip
    return processes


def ended(processes: Sequence[Any], seconds: float) -> str | None:
    """Wait for processes and end all of them. Returns what went wrong, or None."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            codes = [process.poll() for process in processes]
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
    """The rows measured so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def phase(
    count: int, gpus: int, folder: Path, mini: bool, seconds: float
) -> tuple[list[dict[str, Any]], str | None]:
    """Measure with ``count`` GPUs. With one, the jobs are spread over all of them."""
    todo = jobs(count, mini)
    # A job that is long to compile and a short one, in turn.
    shares = [todo] if count > 1 else [todo[first::gpus] for first in range(gpus)]
    groups, files = [], []
    for number, share in enumerate(shares):
        out = folder / f"rows-{count}-{number}"
        task = {"jobs": share, "folder": str(folder), "out": str(out), "seconds": seconds}
        groups += started(count, number, task, folder / f"log-{count}-{number}")
        files.append(out)
    problem = ended(groups, seconds + 90)
    if problem:
        logs = sorted(folder.glob(f"log-{count}-*"))
        problem += "; " + " | ".join(path.read_text()[-1500:] for path in logs)
    return [row for file in files for row in rows_of(file)], problem


def failure(folder: Path, mini: bool) -> dict[str, Any]:
    """Kill one of two processes; the run continues in one and ends with the same result."""
    import pe
    from pe.training import processes

    # Long enough that a process can be killed after the first checkpoint and before the end.
    fields: dict[str, Any] = MINI | {
        "num_hidden_layers": 1, "steps": 120 if mini else 2000, "checkpoint_every": 40,
        "validate_every": 0, "log_every": 10,
    }  # fmt: skip
    name = fields.pop("recipe")
    chosen = named_recipe(name, compile="off", precision="float32", **fields)
    run = Run(folder / "failure" / chosen.run_name(), recipe=chosen)
    os.environ[processes.PROCESSES] = "2"

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
    whole = Run(folder / "whole" / chosen.run_name(), recipe=chosen)
    pe.train(whole, quiet=True)
    pairs = zip(*(_losses(one) for one in (run, whole)), strict=True)
    record = run.read()
    return {
        "message": message.replace(str(folder), "..."),
        "seconds_until_all_had_ended": round(seconds, 1),
        "devices": [session["hardware"].get("devices") for session in record["sessions"]],
        "went_on_from": [session["step"] for session in record["sessions"]],
        "largest_difference_of_losses": max(abs(a - b) for a, b in pairs),
    }


def _losses(run: Run) -> list[float]:
    return [line["loss"] for line in run.metric_lines() if "loss" in line]


# What is made of the rows


def with_shares(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add to each row the speed per GPU as a share of the speed of a single GPU."""
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
    """A table of speed, MFU, memory, and speed per GPU as a share of a single GPU's."""
    lines = []
    for row in sorted(rows, key=lambda r: (r["what"], r["name"], r["options"])):
        if row["reason"]:
            lines.append([row["what"], row["name"], row["options"], "", row["reason"]])
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
    """For each job the largest difference between losses of several processes and of one."""
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
            })  # fmt: skip
    return results


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=5.5)
    parser.add_argument("--mini", action="store_true", help="small models, for a CPU")
    parser.add_argument("--out", type=Path, default=Path("scaling.json"))
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(json.loads(options.worker))
        return
    from pe.data import prepare

    deadline = time.monotonic() + 60 * options.minutes
    record: dict[str, Any] = {
        "benchmark": "scaling", "created": now(), "gpus": options.gpus, "mini": options.mini,
        "code": code(), "versions": versions(), "rows": [], "problems": [],
    }  # fmt: skip
    counts = [1]
    while counts[-1] * 2 <= options.gpus:
        counts.append(counts[-1] * 2)
    with tempfile.TemporaryDirectory(prefix="scaling-") as name:
        folder = Path(name)
        vocabularies = {recipe_of(job).vocab_size for job in jobs(1, options.mini)}
        with ThreadPoolExecutor() as pool:
            list(pool.map(functools.partial(prepare, "stdlib"), sorted(vocabularies)))
        print(f"text is ready, {deadline - time.monotonic():.0f} s are left", flush=True)
        for number, count in enumerate(counts):
            left = deadline - time.monotonic()
            share = left / (len(counts) - number)
            rows, problem = phase(count, options.gpus, folder, options.mini, max(0.0, share - 30))
            record["rows"] = with_shares([*record["rows"], *rows])
            if problem:
                record["problems"].append(f"{count} GPUs: {problem}")
            record["agreement"] = agreement(record["rows"])
            _write(record, options.out)
            print(table(record["rows"]), flush=True)
        if options.gpus > 1 and deadline - time.monotonic() > (0 if options.mini else 45):
            record["failure"] = failure(folder, options.mini)
    record["hardware"] = hardware() | {"count": options.gpus}
    _write(record, options.out)
    for part in ("agreement", "failure", "problems"):
        print(f"\n{part}: {json.dumps(record.get(part), indent=1)}")


def _write(record: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
