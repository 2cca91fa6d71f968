"""Find the fastest block sizes of each attention kernel on this GPU.

    python benchmarks/kernels.py --out blocks.csv                  # all kernels, both shapes
    python benchmarks/kernels.py --kinds keys --lengths 1024

Times each kernel of `pe.attention.kernels` alone, with random numbers, for every kind of bias and
every block size in `CUTS`, and torch's own attention for comparison. Triton compiles a kernel for
each block size, so sixteen processes compile all of them first. The chosen block sizes are in
`pe/attention/kernels/flash/blocks.py`.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import pe
from pe.attention.kernels.flash import backward as gradients
from pe.attention.kernels.flash import forward as flash
from pe.attention.kernels.flash import launch, learned
from pe.attention.kernels.flash.blocks import Blocks, Plan, plan_for
from pe.encodings.core import forms

HEADS, WIDTH, TOKENS = 8, 64, 65_536
KINDS = {
    "none": (forms.NONE, 0), "keys": (forms.KEYS, 0), "table": (forms.TABLE, 0),
    "table-113": (forms.TABLE, 113), "fire": (forms.FIRE, 0),
}  # fmt: skip
CUTS = {
    "forward": [(64, 64, 4, 3), (64, 64, 4, 3, 168), (128, 64, 8, 3), (128, 64, 8, 3, 128),
                (128, 64, 4, 3), (64, 128, 4, 2), (64, 128, 4, 2, 168)],
    "by_keys": [(64, 64, 4, 3), (64, 64, 4, 2), (32, 64, 4, 3), (64, 128, 8, 3), (32, 128, 4, 2)],
    "by_queries": [(64, 64, 4, 2), (64, 64, 4, 2, 168), (128, 64, 8, 2, 128), (64, 32, 4, 3),
                   (64, 32, 4, 3, 128)],
    "of_table": [(64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2), (128, 128, 8, 2)],
    "of_network": [(64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2)],
}  # fmt: skip
MODULES = {
    "forward": flash, "by_keys": gradients, "by_queries": gradients, "of_table": learned,
    "of_network": learned,
}  # fmt: skip
KERNELS = {name: getattr(module, name) for name, module in MODULES.items()}


class Job(NamedTuple):
    """One kernel with one kind of bias and one block size."""

    kernel: str
    kind: str
    cut: tuple[int, ...]
    """Of `Blocks`; without a fifth number, registers are not limited."""


class Nothing:
    """Replaces a kernel that is not timed."""

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *arguments, **options: None


def jobs(kinds: list[str]) -> Iterator[Job]:
    for kind in kinds:
        for kernel, cuts in CUTS.items():
            if (kernel == "of_table") <= kind.startswith("table") and (kernel == "of_network") <= (
                kind == "fire"
            ):
                yield from (Job(kernel, kind, cut) for cut in cuts)


def drawn(batch: int, length: int, kind: str) -> tuple[list[Tensor], forms.Form]:
    """Return random q, k, v and gradient of the output (bfloat16, tokens first), and a bias."""
    generator = torch.Generator("cuda").manual_seed(0)
    shape = (batch, length, HEADS, WIDTH)
    tensors = [
        torch.randn(shape, device="cuda", generator=generator).bfloat16().transpose(1, 2)
        for _ in range(4)
    ]
    number, reach = KINDS[kind]
    form = forms.Form()
    if number == forms.KEYS:
        steps = torch.randn(batch, HEADS, length, device="cuda", dtype=torch.float64)
        form = forms.by_key((0.1 * steps).cumsum(-1))
    elif number == forms.TABLE:
        slopes = torch.rand(HEADS, 1, device="cuda", generator=generator)
        table = -slopes * torch.log1p(0.3 * torch.arange(length, device="cuda"))
        if reach:
            table[:, reach:] = table[:, reach : reach + 1]
        form = forms.by_distance(table, reach or None)
    elif number == forms.FIRE:
        enc = pe.encoding("fire", head_dim=WIDTH, num_heads=HEADS, original_length=1024).to("cuda")
        form = enc.bias_form(length, torch.device("cuda"), None)
    return tensors, form


def call(job: Job, tensors: list[Tensor], form: forms.Form) -> Callable[[], object]:
    """Return a function that runs only the kernel of ``job``."""
    q, k, v, gradient = tensors
    own, parts = form.own if form.own is None else form.own.detach(), list(form.parts)
    bias = form.kind, own, parts, form.reach
    lse = torch.full(q.shape[:3], 8.0, device="cuda")
    base = plan_for(WIDTH, WIDTH, form.kind, form.reach)
    field = {"by_keys": "keys", "by_queries": "queries", "forward": "forward"}.get(
        job.kernel, "table"
    )
    plan: Plan = base._replace(**{field: Blocks(*job.cut)})

    def run() -> object:
        launch.plan_for = lambda *widths: plan
        for name, module in MODULES.items():
            setattr(module, name, KERNELS[name] if name == job.kernel else Nothing())
        if job.kernel == "forward":
            return launch.forward(q, k, v, WIDTH**-0.5, *bias)
        return launch.backward(
            gradient, q, k, v, v, lse, lse.new_empty(0), WIDTH**-0.5, *bias, form.kind != forms.NONE
        )

    return run


def compiled(job: Job) -> tuple[Job, str]:
    """Run ``job`` once on small inputs. Return the error, or an empty text."""
    try:
        call(job, *drawn(2, 256, job.kind))()
        torch.cuda.synchronize()
    except Exception as error:  # usually too much shared memory; the next cut may work
        return job, f"{type(error).__name__}: {error}"[:200]
    return job, ""


def milliseconds(run: Callable[[], object], repeats: int) -> float:
    """Return the median time on the GPU over ``repeats`` calls, after two warm-up calls."""
    found: list[float] = []
    for repeat in range(repeats + 2):
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        torch.cuda._sleep(3_000_000)  # about 2 ms, in which Python launches all there is to launch
        begin.record()
        run()
        end.record()
        end.synchronize()
        if repeat > 1:
            found.append(begin.elapsed_time(end))
    return float(statistics.median(found))


def torchs_own(tensors: list[Tensor], repeats: int) -> tuple[float, float]:
    """Return the milliseconds of torch's fused attention without a bias, forward and backward."""
    q, k, v = (t.detach().requires_grad_() for t in tensors[:3])
    out = scaled_dot_product_attention(q, k, v, is_causal=True)
    return (
        milliseconds(lambda: scaled_dot_product_attention(q, k, v, is_causal=True), repeats),
        milliseconds(
            lambda: torch.autograd.grad(out, (q, k, v), tensors[3], retain_graph=True), repeats
        ),
    )


def main() -> None:
    """Compile, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="kinds of bias, separated by commas"
    )
    parser.add_argument("--lengths", default="1024,16384", help="tokens; a batch has 65,536")
    parser.add_argument("--repeats", type=int, default=6, help="how often a kernel is timed")
    parser.add_argument("--out", type=Path, help="a CSV file")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {sorted(unknown)}; there are {sorted(KINDS)}")
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    todo = list(jobs(kinds))
    workers = max(1, min(16, (os.cpu_count() or 1) - 1))
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        failed = dict(pool.map(compiled, todo, chunksize=2))
    rows = []
    for length in map(int, options.lengths.split(",")):
        for kind in kinds:
            tensors, form = drawn(TOKENS // length, length, kind)
            for job in (j for j in todo if j.kind == kind):
                if failed[job]:
                    print(f"{job.kernel} {kind} {job.cut}: {failed[job]}")
                    continue
                spent = milliseconds(call(job, tensors, form), options.repeats)
                rows.append([length, job.kernel, kind, *Blocks(*job.cut), round(spent, 4)])
                print(f"{length:>6} {job.kernel:10} {kind:9} {job.cut!s:18} {spent:.3f} ms")
        forth, back = torchs_own(tensors, options.repeats)
        print(f"{length:>6} torch's attention: {forth:.3f} ms forward, {back:.3f} backward")
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow("length kernel kind queries keys warps stages registers ms".split())
            writer.writerows(rows)


if __name__ == "__main__":
    main()
