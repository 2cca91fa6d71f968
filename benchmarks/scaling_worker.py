"""One of the processes that measure together, as benchmarks/scaling.py starts them."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import profile_step
import torch
from scaling import Job, interrupted_run, recipe_of

import pe
from pe import devices
from pe.model.rng import seed_step
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.training.build import set_rate
from pe.training.loop import Trainer
from pe.training.memory import estimate
from pe.training.schedule import learning_rate

WARM, TIMED = 4, 12
TOGETHER = 4
"""Steps between two looks at the clock, for which the device has to be waited for."""
TIME_UP = "not begun within the time"


def measure(job: Job, folder: Path) -> dict[str, Any]:
    """Measure a job and return its row."""
    chosen = recipe_of(job)
    warm, timed = job.get("steps", [WARM, TIMED])
    run = Run(folder / f"job-{time.monotonic_ns()}" / "run", recipe=chosen)
    begun = time.perf_counter()
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


def profiled(job: Job, folder: Path) -> dict[str, Any]:
    """Profile a job and return its row: the time of each group of kernels in a step."""
    chosen = recipe_of(job)
    begun = time.perf_counter()
    result = profile_step.kernels(chosen, 3, folder)
    seconds, tokens = result["step_ms"] / 1000, chosen.batch_size * chosen.context_length
    useful = tokens * result["flops_per_token"]
    peak = profile_step.peak()
    return {
        "parameters": result["parameters"],
        "batch": [chosen.batch_size, chosen.context_length],
        "tokens_per_second": round(tokens / seconds),
        "mfu": None if peak is None else round(useful / seconds / peak, 4),
        "first_step_seconds": round(time.perf_counter() - begun, 2),
        "peak_memory_gib": result["peak_memory_gib"],
        "estimated_gib": _estimated(chosen, 1),
        "step_ms": result["step_ms"],
        "groups": profile_step.groups(chosen, result),
        "kernels": result["kernels"][:40],
    }


def _estimated(chosen: Recipe, processes: int) -> float:
    return round(estimate(chosen, processes).total, 2)


def work(jobs: Sequence[Job], folder: Path, deadline: float) -> Iterator[dict[str, Any]]:
    """Yield the rows of all jobs. Processes that measure together leave out the same jobs.

    Args:
        deadline: of `time.monotonic`, which all processes of a machine share.
    """
    for job in jobs:
        late = _agreed(time.monotonic() + job["needs"] > deadline)
        if job["what"] == "reference":  # for the run of which a process is killed
            if not late:
                run = interrupted_run(folder / "reference", mini=job["needs"] == 0)
                pe.train(run, quiet=True)
            continue
        row: dict[str, Any] = {
            "what": job["what"], "name": job["name"], "options": _options(job),
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
        }  # fmt: skip
        if late:
            yield row | {"reason": TIME_UP}
            continue
        if devices.choose().type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        way = profiled if job["what"] == "profile" else measure
        try:
            yield row | way(job, folder) | {"reason": None}
        except torch.OutOfMemoryError as error:
            yield row | {"reason": f"out of memory: {str(error)[:100]}"}
        gc.collect()
        torch._dynamo.reset()
        devices.free_memory(devices.choose())


def _agreed(late: bool) -> bool:
    """Return the answer of the first process. Before their first job they are not connected."""
    if "WORLD_SIZE" not in os.environ:
        return late
    if not torch.distributed.is_initialized():
        return False
    answer = torch.tensor([float(late)], device=devices.choose())
    torch.distributed.broadcast(answer, 0)
    return bool(answer.item())


def _options(job: Job) -> str:
    named = {"fsdp": "FSDP", "activation_checkpointing": "checkpointing", "precision": "float32"}
    return ", ".join(word for field, word in named.items() if job["set"].get(field))


def main(task: dict[str, Any]) -> None:
    """Measure, and let the first process write each row as a line."""
    if devices.choose().type == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    for row in work(task["jobs"], Path(task["folder"]), task["deadline"]):
        if os.environ.get("RANK", "0") == "0":
            with open(task["out"], "a") as out:
                print(json.dumps(row), file=out)
    os._exit(0)  # communicators need not be taken down one by one


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
