"""Training speed of our decoder and of transformers' LlamaForCausalLM with the same sizes.

    python benchmarks/train_speed.py --recipe demo                    # CPU
    python benchmarks/train_speed.py --recipe tiny --compile          # one GPU

All systems run in the same process, on the same batches (random tokens, or text with ``--corpus``),
with the same full step: forward, backward, gradient clipping and fused AdamW, with bfloat16
autocast on CUDA. They take turns for several rounds, so a drift of the machine affects all of them,
and the median round counts. A JSON record has the results, the machine and the versions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speed.systems import llama
from torch import Tensor, nn

import pe
from pe import devices
from pe.data import Batches, prepare
from pe.devices import autocast
from pe.recipes.recipe import Recipe
from pe.runs.provenance import code, hardware, now, versions
from pe.training.build import build_model, build_optimizer, parameter_counts
from pe.training.flops import flops_per_token, peak_flops
from pe.training.metrics import layers_shown

Step = Callable[[], Tensor]


def source_of(corpus: str, recipe: Recipe, device: torch.device) -> Callable[[], Tensor]:
    """A function that returns new tokens (B, T + 1) from a corpus, or random tokens."""
    if not corpus:
        shape = (recipe.batch_size, recipe.context_length + 1)
        generator = torch.Generator(device=device).manual_seed(0)
        return lambda: torch.randint(
            0, recipe.vocab_size, shape, device=device, generator=generator, dtype=torch.int64
        )
    data = prepare(corpus, recipe.vocab_size)
    batches = Batches(data.train, recipe.context_length, recipe.batch_size, seed=0)
    numbers = itertools.count()

    def real() -> Tensor:
        batch = batches.at(next(numbers))
        text = np.concatenate((batch.input_ids, batch.targets[:, -1:]), axis=1)
        return torch.from_numpy(text).to(device)

    return real


def make_step(
    system: str, recipe: Recipe, device: torch.device, compiled: bool, corpus: str = ""
) -> Step:
    """A function that does one full training step of ``system`` on fresh tokens."""
    ours = system.startswith("pe:")
    if ours:
        model: nn.Module = build_model(pe.recipe(recipe.name, pe=system[3:]), recipe.vocab_size)
    else:
        model = llama(recipe)
    model = model.to(device).train()
    optimizer = build_optimizer(model, recipe)
    parameters = list(model.parameters())
    if compiled:
        model.compile()
    tokens = source_of(corpus, recipe, device)

    def step() -> Tensor:
        text = tokens()
        inputs, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        with autocast(recipe.precision, device):
            if ours:
                loss = model(
                    input_ids=inputs, shift_labels=targets, num_items_in_batch=targets.numel()
                ).loss
            else:
                loss = model(input_ids=inputs, labels=inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    step.parameters = parameter_counts(model)["parameters"]  # type: ignore[attr-defined]
    step.layers = (  # type: ignore[attr-defined]
        layers_shown(model.model, recipe.context_length) if ours else recipe.num_hidden_layers
    )
    return step


def timed(step: Step, steps: int, device: torch.device) -> float:
    """Seconds per step, averaged over ``steps``."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begun) / steps


def measure(
    systems: list[str], recipe: Recipe, compiled: bool, rounds: int, steps: int, corpus: str
) -> list[dict[str, Any]]:
    """Measure all systems; returns one row per system."""
    device = devices.choose()
    made: dict[str, Step] = {}
    memory: dict[str, float | None] = {}
    for system in systems:
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        made[system] = make_step(system, recipe, device, compiled, corpus)
        timed(made[system], 3, device)
        memory[system] = None
        if device.type == "cuda":
            memory[system] = round((torch.cuda.max_memory_allocated() - before) / 2**30, 2)
    times: dict[str, list[float]] = {system: [] for system in systems}
    for _ in range(rounds):
        for system in systems:
            times[system].append(timed(made[system], steps, device))
    tokens = recipe.batch_size * recipe.context_length
    peak = peak_flops(hardware()["name"]) if device.type == "cuda" else None
    rows = []
    for system in systems:
        rate = tokens / statistics.median(times[system])
        parameters = made[system].parameters  # type: ignore[attr-defined]
        layers = made[system].layers  # type: ignore[attr-defined]
        flops = flops_per_token(parameters, layers, recipe.hidden_size, recipe.context_length)
        rows.append(
            {
                "system": system,
                "compiled": compiled,
                "parameters": parameters,
                "tokens_per_second": round(rate),
                "fastest_round": round(tokens / min(times[system])),
                "slowest_round": round(tokens / max(times[system])),
                "mfu": None if peak is None else round(rate * flops / peak, 4),
                "peak_memory_gib": memory[system],
            }
        )
    return rows


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--systems", default="pe:nope,pe:rope,pe:yarn,pe:pope,transformers")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=0)
    parser.add_argument("--context-length", type=int, default=0)
    parser.add_argument("--corpus", default="", help="real text instead of random tokens")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    changes = {
        key: getattr(options, key)
        for key in ("batch_size", "context_length")
        if getattr(options, key)
    }
    recipe = pe.recipe(options.recipe, **changes)
    rows = measure(
        options.systems.split(","),
        recipe,
        options.compile,
        options.rounds,
        options.steps,
        options.corpus,
    )
    record = {
        "benchmark": "train_speed",
        "created": now(),
        "recipe": recipe.name,
        "batch": [recipe.batch_size, recipe.context_length],
        "tokens": options.corpus or "random",
        "rounds": options.rounds,
        "steps_a_round": options.steps,
        "code": code(),
        "hardware": hardware(),
        "versions": versions(),
        "rows": rows,
    }
    for row in rows:
        print(
            f"{row['system']:14} {row['tokens_per_second']:>10,} tokens/s "
            f"({row['slowest_round']:,} to {row['fastest_round']:,})  "
            f"MFU {row['mfu']}  {row['peak_memory_gib']} GiB"
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
