"""One measurement: build a system, compile it, warm it up, time it, and free it.

Memory is the peak of a step after warm-up, without what was allocated before the model was built:
weights, gradients, optimizer state and activations. If nothing can be measured, the row has the
reason. There are two such reasons: too little memory, and a refusal by this package (no such
position, or only a quadratic path). Any other error is raised.
"""

from __future__ import annotations

import gc
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pe
from pe.devices import autocast, deterministic, free_memory, synchronize
from pe.recipes.recipe import Recipe
from pe.speed.names import library, spelled
from pe.speed.record import Settings
from pe.training.build import build_optimizer, parameter_counts
from pe.training.flops import flops_per_token, peak_flops

from .plan import Cell
from .systems import System, build

PACKAGE = Path(pe.__file__).resolve().parent
TARGET_SECONDS = 0.25
"""A repeat has as many steps as fit in this, 1 to 20, so that starting the clock does not count."""
PATIENCE_SECONDS = 20.0
"""Once this time is over and two repeats are done, no other begins. A step that takes longer is
timed once."""
NOTHING = {
    "tokens_per_second": None, "least": None, "most": None, "repeats": 0, "steps_a_repeat": 0,
    "mfu": None, "peak_memory_gib": None, "first_step_seconds": None, "parameters": None,
    "compiled": None, "path": None,
}  # fmt: skip


def measure_cell(cell: Cell, chosen: Settings, device: torch.device) -> dict[str, Any]:
    """Measure a cell and return its row, with the reason if nothing could be measured.

    A peer's batch is halved until it fits; that of our encodings is not.
    """
    begun = time.perf_counter()
    batch, reason, values = cell.batch, None, dict(NOTHING)
    while True:
        free(device)
        try:
            with deterministic(chosen.deterministic):
                values, reason = _measured(cell, batch, chosen, device), None
        except torch.OutOfMemoryError as error:
            reason = _shortage(error, batch)
        except ValueError as error:
            if not _own(error):
                raise
            reason = " ".join(str(error).split())
            break
        if reason is None or not library(cell.system) or batch == 1:
            break
        batch //= 2
    row = cell._asdict() | {"batch": batch} | values | {"reason": reason}
    return row | {"seconds": round(time.perf_counter() - begun, 2)}


def _prepared(
    cell: Cell, batch: int, chosen: Settings, device: torch.device
) -> tuple[System, Callable[[], Any], Recipe]:
    """Return the system, which compiles in its first step, a function for a step, the recipe."""
    own: dict[str, Any] = {}
    if not library(cell.system):
        own["pe"], own["pe_options"] = spelled(cell.system)
    recipe = pe.recipe(chosen.recipe, context_length=cell.length, batch_size=batch, **own)
    with autocast(recipe.precision, device):
        dtype = torch.get_autocast_dtype(device.type) if device.type == "cuda" else torch.float32
    system = build(cell.system, recipe, device, dtype)
    step = (_prefill if cell.mode == "prefill" else _training)(system, recipe, device)
    compiled = chosen.compiled and system.compilable
    if library(cell.system) and compiled and device.type == "cuda" and batch > 1:
        step()  # whether the batch fits shows without the compiler too, and sooner
    if compiled:
        system.model.compile()
    return system, step, recipe


def _measured(cell: Cell, batch: int, chosen: Settings, device: torch.device) -> dict[str, Any]:
    before = _allocated(device)
    system, step, recipe = _prepared(cell, batch, chosen, device)
    first = _timed(step, 1, device)
    if first < PATIENCE_SECONDS:
        step()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    warm = _timed(step, 1, device)
    steps = max(1, min(20, round(TARGET_SECONDS / warm)))
    times = [warm]
    if warm <= PATIENCE_SECONDS:
        times, begun = [], time.perf_counter()
        while len(times) < chosen.repeats:
            times.append(_timed(step, steps, device))
            if len(times) > 1 and time.perf_counter() - begun > PATIENCE_SECONDS:
                break
    counted = parameter_counts(system.model)["parameters"]
    return numbers(times, batch * cell.length) | {
        "steps_a_repeat": steps,
        "mfu": None if cell.mode == "prefill" else _mfu(times, batch, counted, recipe, device),
        "peak_memory_gib": _peak(before, device),
        "first_step_seconds": round(first, 3),
        "parameters": counted,
        "compiled": chosen.compiled and system.compilable,
        "path": system.path,
    }


def numbers(times: list[float], tokens: int) -> dict[str, Any]:
    """Return median, least and most tokens/s of repeats that took ``times`` seconds per step."""
    return {
        "tokens_per_second": round(tokens / statistics.median(times), 1),
        "least": round(tokens / max(times), 1),
        "most": round(tokens / min(times), 1),
        "repeats": len(times),
    }


def _mfu(
    times: list[float], batch: int, parameters: int, recipe: Recipe, device: torch.device
) -> float | None:
    peak = peak_flops(torch.cuda.get_device_name()) if device.type == "cuda" else None
    if peak is None:
        return None
    layers, hidden, length = recipe.num_hidden_layers, recipe.hidden_size, recipe.context_length
    flops = flops_per_token(parameters, layers, hidden, length) * batch * length
    return round(flops / statistics.median(times) / peak, 4)


def _training(system: System, recipe: Recipe, device: torch.device) -> Callable[[], Any]:
    system.model.train()
    optimizer = build_optimizer(system.model, recipe)
    parameters = list(system.model.parameters())
    draw = _tokens(recipe, device)

    def step() -> None:
        text = draw()
        tokens, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        with autocast(recipe.precision, device):
            loss = system.loss(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, recipe.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _prefill(system: System, recipe: Recipe, device: torch.device) -> Callable[[], Any]:
    system.model.eval()
    draw = _tokens(recipe, device)

    def step() -> None:
        with torch.no_grad(), autocast(recipe.precision, device):
            system.last(draw()[:, 1:].contiguous())

    return step


def _tokens(recipe: Recipe, device: torch.device) -> Callable[[], Tensor]:
    """Return a function that draws new random tokens, (B, T + 1), in each call."""
    generator = torch.Generator(device=device).manual_seed(0)
    shape = (recipe.batch_size, recipe.context_length + 1)
    return lambda: torch.randint(0, recipe.vocab_size, shape, device=device, generator=generator)


def _timed(step: Callable[[], Any], steps: int, device: torch.device) -> float:
    """Return the seconds per step, averaged over ``steps``."""
    synchronize(device)
    begun = time.perf_counter()
    for _ in range(steps):
        step()
    synchronize(device)
    return (time.perf_counter() - begun) / steps


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated() if device.type == "cuda" else 0


def _peak(before: int, device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    return round((torch.cuda.max_memory_allocated() - before) / 2**30, 3)


def free(device: torch.device) -> None:
    """Free earlier models and the graphs compiled for them."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    gc.collect()
    free_memory(device)


def _shortage(error: BaseException, batch: int) -> str:
    asked = re.search(r"Tried to allocate ([\d.]+ \w+)", str(error))
    return f"out of memory at batch {batch}" + (f" ({asked[1]} more asked for)" if asked else "")


def _own(error: BaseException) -> bool:
    """Return whether an error was raised by this package's own code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and Path(trace.tb_frame.f_code.co_filename).is_relative_to(PACKAGE)
