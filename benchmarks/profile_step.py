"""Measure the time of every kernel in a training step, and compare it with the peak of the GPU.

    python benchmarks/profile_step.py --recipe paper                 # one GPU, RoPE, compiled
    python benchmarks/profile_step.py --recipe paper --pe pope --micro 16 --out profile.json

Steps are those of `pe.training.loop.Trainer` on text that every Python carries. torch.profiler
records a few of them after compilation. Kernels are grouped by their names. The FLOPs of matrix
products and of attention are known, so for these the table also has the time that they would take
at the peak of the GPU. "Nothing" is the time in which no kernel ran.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch.profiler import ProfilerActivity, profile

from pe import devices
from pe.model.rng import seed_step
from pe.recipes.named import recipe as named_recipe
from pe.recipes.recipe import Recipe
from pe.runs import Run
from pe.runs.provenance import code, hardware, now, versions
from pe.training.build import set_rate
from pe.training.flops import peak_flops
from pe.training.loop import Trainer
from pe.training.schedule import learning_rate

GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("sdpa", "flash", "fmha", "cudnn_generated", "compute_dot_do_o", "convert_dq",
                  "attention", "_forward_kernel", "_backward_kernel"),
    "matrix products": ("nvjet", "gemm", "cutlass", "cublas", "splitk", "mm_kernel", "sgemm",
                        "aten::mm", "aten::addmm"),
    "loss": ("log_softmax", "cross_entropy", "nll_loss", "online"),
    "optimizer": ("adam", "multi_tensor", "foreach", "fused_adamw", "lpnorm", "l2norm"),
    "norms": ("rms_norm", "layer_norm", "native_layer"),
    "feed-forward, between products": ("silu", "sigmoid"),
    "embedding": ("embedding", "index_put", "scatter"),
    "communication": ("nccl",),
    "rotation": ("add_cat", "cat_mul"),
    "casts of weights": ("fused__to_copy_view",),
    "copies": ("memcpy", "memset", "clone"),
}  # fmt: skip
"""Parts of kernels' names, in lower case; the first group with one of them has the kernel."""
OTHER = "other pointwise"
WARM = 4


def group_of(name: str) -> str:
    """Return the group of a kernel."""
    lower = name.lower()
    for group, parts in GROUPS.items():
        if any(part in lower for part in parts):
            return group
    return OTHER


def product_flops(recipe: Recipe, parameters: int) -> float:
    """Return the FLOPs of a step's matrix products, forward and backward, without attention."""
    return 6.0 * parameters * recipe.batch_size * recipe.context_length


def kernels(recipe: Recipe, steps: int, folder: Path) -> dict[str, Any]:
    """Return name, milliseconds and calls per step of all kernels, and the time of the step."""
    trainer = Trainer(Run(folder / "profile" / recipe.run_name(), recipe=recipe), quiet=True)
    trainer._prepare()
    trainer.model.train()
    number = 0

    def go(count: int) -> float:
        nonlocal number
        trainer.synchronize()
        begun = time.perf_counter()
        for _ in range(count):
            set_rate(trainer.optimizer, learning_rate(recipe, number))
            seed_step(recipe.seed, number, 0)
            trainer.step(trainer.train_batches.at(number))
            number += 1
        trainer.synchronize()
        return (time.perf_counter() - begun) / count

    go(WARM)
    seconds = go(3 * steps)
    cuda = trainer.device.type == "cuda"
    kind = ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU
    with profile(activities=[kind]) as watched:
        go(steps)
    times: dict[str, list[float]] = {}
    for event in watched.events():
        took = event.device_time_total if cuda else event.self_cpu_time_total
        on_device = not cuda or event.device_type == torch.autograd.DeviceType.CUDA
        if took > 0 and on_device and not event.is_user_annotation:
            times.setdefault(event.name, []).append(took)
    rows = [
        {"kernel": name, "group": group_of(name), "ms": sum(all_) / 1000 / steps,
         "calls": len(all_) / steps}
        for name, all_ in times.items()
    ]  # fmt: skip
    return {
        "step_ms": seconds * 1000,
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "flops_per_token": trainer.metrics.flops,
        "peak_memory_gib": devices.peak_memory(trainer.device),
        "kernels": sorted(rows, key=lambda row: -float(str(row["ms"]))),
    }


def peak() -> float | None:
    """Return the peak of this machine's card in bfloat16 FLOP/s; None if it is not known."""
    return peak_flops(hardware()["name"])


def groups(recipe: Recipe, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the time of each group of kernels in a step, the longest first.

    The last row is the time in which no kernel ran.

    Returns:
        Rows of ``group``, ``ms`` per step, ``share`` of the step, and ``at_peak_ms``, the time at
        the card's peak. The latter is None for groups whose arithmetic MFU does not count, and on
        a card whose peak is not known.
    """
    step, sums = result["step_ms"], dict[str, float]()
    for row in result["kernels"]:
        sums[row["group"]] = sums.get(row["group"], 0.0) + row["ms"]
    ordered = dict(sorted(sums.items(), key=lambda item: -item[1]))
    ordered["nothing"] = max(0.0, step - sum(sums.values()))
    most, products = peak(), product_flops(recipe, result["parameters"])
    useful = result["flops_per_token"] * recipe.batch_size * recipe.context_length
    counted = {"matrix products": products, "attention": useful - products}
    return [
        {"group": name, "ms": ms, "share": ms / step,
         "at_peak_ms": counted[name] / most * 1000 if most and name in counted else None}
        for name, ms in ordered.items()
    ]  # fmt: skip


def report(recipe: Recipe, result: dict[str, Any], most: int) -> str:
    """Write the tables, and what they say about MFU if the card's peak is known."""
    step, rows = result["step_ms"], groups(recipe, result)
    tokens = recipe.batch_size * recipe.context_length
    lines = []
    for row in rows:
        ideal = row["at_peak_ms"]
        lines.append([
            row["group"], f"{row['ms']:.2f}", f"{row['share']:.1%}",
            f"{row['ms'] - (ideal or 0.0):.2f}",
            "" if ideal is None else f"{ideal:.2f}, {ideal / row['ms']:.0%} of it reached",
        ])  # fmt: skip
    heads = ("group", "ms per step", "share", "lost", "at the card's peak")
    parts = [
        f"a step of {tokens:,} tokens: {step:.2f} ms, {tokens / step * 1000:,.0f} tokens/s",
        tabulate(lines, headers=heads, disable_numparse=True),
    ]
    card = peak()
    if card is not None:
        useful = result["flops_per_token"] * tokens
        half = useful / card / 0.5 * 1000
        parts.append(
            f"MFU {useful / (step / 1000) / card:.1%}. At 50% a step takes {half:.2f} ms: "
            f"{step - half:.2f} ms would have to be saved."
        )
    kernels = [
        [f"{row['ms']:.3f}", f"{row['calls']:.0f}", row["group"], row["kernel"][:90]]
        for row in result["kernels"][:most]
    ]
    parts.append(
        tabulate(kernels, headers=("ms", "calls", "group", "kernel"), disable_numparse=True)
    )
    return "\n\n".join(parts)


def main() -> None:
    """Profile, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recipe", default="paper", help="a named recipe; default: paper")
    parser.add_argument("--pe", default="rope", help="the encoding; default: rope")
    parser.add_argument("--micro", type=int, default=None, help="windows in a forward pass")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="FIELD=VALUE", help="other recipe fields"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps that are profiled; default: 3")
    parser.add_argument("--most", type=int, default=40, help="kernels to print; default: 40")
    parser.add_argument("--out", type=Path, help="a JSON file")
    options = parser.parse_args()
    from pe.cli import option_values

    changes = option_values(options.set)
    if options.micro is not None:
        changes["micro_batch_size"] = options.micro
    length = changes.get("context_length") or named_recipe(options.recipe).context_length
    common = {"corpus": "stdlib", "validate_every": 0, "evaluation_lengths": [length]}
    recipe = named_recipe(options.recipe, pe=options.pe, **(common | changes))
    with tempfile.TemporaryDirectory() as folder:
        result = kernels(recipe, options.steps, Path(folder))
    print(report(recipe, result, options.most))
    if options.out:
        record = {
            "benchmark": "profile_step", "created": now(), "recipe": recipe.to_dict(),
            "code": code(), "hardware": hardware(), "versions": versions(),
            "groups": groups(recipe, result), **result,
        }  # fmt: skip
        options.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
