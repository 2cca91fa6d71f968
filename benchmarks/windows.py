"""Compare the cost of sliding windows with full attention and with torch's flex attention.

    python benchmarks/windows.py --out windows.csv                 # 4 x 16,384 tokens
    python benchmarks/windows.py --windows 512 --encodings alibi,t5,fire,cope

It times attention alone, forward and backward in bfloat16, in one process and in turns. The systems
are torch's fused causal attention (which NoPE and RoPE use without a window) and our kernels
without a window; and for each window our kernels, the same with first keys and a sink, the same
with each encoding of ``--encodings``, and compiled `torch.nn.attention.flex_attention` with a block
mask. What an encoding does to queries, keys and the layer's input, and the gradients of its
parameters, are part of the time. With ``--compiled`` it is compiled together with its attention, as
in a training run, which fuses operations outside the kernels. Memory is the peak without the
inputs. Before that, the output of each system without a bias is compared with torch's attention
under a mask on the last `CHECKED` queries. This command measures a whole training step:

    pe speed --recipe tiny --lengths 16384 --modes train --peers none --name windows \\
        --encodings nope+window:512,rope+window:512
"""

from __future__ import annotations

import argparse
import csv
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
import torch._dynamo.config
import torch._functorch.config
from kernels import milliseconds
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

import pe
from pe.speed.names import title

HEADS, WIDTH, CHECKED, TRAINED = 8, 64, 256, 1024
TOLERANCE = 2e-2
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class System(NamedTuple):
    """One way to compute attention."""

    name: str
    window: int
    """0: full attention."""
    attend: Attend
    checked: bool = True
    """It computes plain attention in that window, without a bias or a sink."""
    parameters: tuple[Tensor, ...] = ()
    """What learns besides queries, keys and values."""


def ours(name: str, spec: str, window: int, layer_input: Tensor, compiled: bool = False) -> System:
    """Return the system that computes `pe.attend` with this encoding."""
    enc = pe.encoding(
        spec, head_dim=WIDTH, num_heads=HEADS, hidden_size=HEADS * WIDTH, original_length=TRAINED
    ).to("cuda")
    backend = "kernel" if spec == "nope" else None
    x = layer_input if enc.state_size else None

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return pe.attend(enc, q, k, v, backend=backend, layer_input=x)

    return System(
        name,
        window,
        torch.compile(attend) if compiled else attend,
        checked=name in ("ours", "ours full"),
        parameters=tuple(enc.parameters()),
    )


def flex(window: int, length: int) -> Attend:
    """Return torch's flex attention with the same window, compiled."""

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) & (i - j < window)

    mask = create_block_mask(seen, None, None, length, length, device="cuda")
    compiled = torch.compile(flex_attention)
    return lambda q, k, v: compiled(q, k, v, block_mask=mask)


def systems(
    windows: list[int],
    encodings: list[str],
    length: int,
    layer_input: Tensor,
    compiled: bool = False,
) -> Iterator[System]:
    yield System(
        "torch full", 0, lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=True)
    )
    yield ours("ours full", "nope", 0, layer_input)
    for window in windows:
        seen = f"window:{window}"
        yield ours("ours", seen, window, layer_input)
        yield ours("ours, 4 first keys and a sink", f"{seen}+sinks:4+sink", window, layer_input)
        for name in encodings:
            yield ours(f"ours, {title(name)}", f"{name}+{seen}", window, layer_input, compiled)
        yield System("flex attention", window, flex(window, length))


def error(system: System, inputs: list[Tensor]) -> float:
    """Return the relative error of the last queries' output; torch's attention is the reference."""
    q, k, v = (x.detach() for x in inputs[:3])
    length = q.shape[2]
    index = torch.arange(length, device="cuda")
    query = index[-CHECKED:, None]
    mask = (index <= query) & (query - index < (system.window or length))
    want = scaled_dot_product_attention(q[:, :, -CHECKED:], k, v, mask).float()
    got = system.attend(q, k, v)[:, :, -CHECKED:].float()
    return float((got - want).norm() / want.norm())


def measured(system: System, inputs: list[Tensor], repeats: int) -> tuple[float, float, float]:
    """Return the milliseconds forward and backward, and the peak memory in GiB."""
    q, k, v, gradient = inputs
    learned = (q, k, v, *system.parameters)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    out = system.attend(q, k, v)
    torch.autograd.grad(out, learned, gradient, retain_graph=True)
    peak = (torch.cuda.max_memory_allocated() - before) / 2**30
    forth = milliseconds(lambda: system.attend(q, k, v), repeats)
    back = milliseconds(
        lambda: torch.autograd.grad(out, learned, gradient, retain_graph=True), repeats
    )
    return forth, back, peak


def main() -> None:
    """Check, time in turns, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", default="128,512,2048", help="tokens, separated by commas")
    parser.add_argument("--encodings", default="alibi", help="separated by commas")
    parser.add_argument("--compiled", action="store_true", help="compile each of the encodings")
    parser.add_argument("--length", type=int, default=16_384, help="tokens of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences")
    parser.add_argument("--rounds", type=int, default=3, help="rounds; the median counts")
    parser.add_argument("--repeats", type=int, default=6, help="timed calls in each round")
    parser.add_argument("--out", type=Path, help="a CSV file")
    options = parser.parse_args()
    # Each backward pass is timed several times over one forward pass, so its buffers have to stay.
    torch._functorch.config.donated_buffer = False
    # All encodings share the code of `attend`. Beyond a limit torch would silently not compile it.
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if not torch.cuda.is_available():
        parser.error("this needs a CUDA device")
    generator = torch.Generator("cuda").manual_seed(0)
    shape = options.batch, options.length, HEADS, WIDTH
    inputs = [
        torch.randn(shape, device="cuda", generator=generator).bfloat16().transpose(1, 2)
        for _ in range(4)
    ]
    for x in inputs[:3]:
        x.requires_grad_()
    x = torch.randn(
        options.batch, options.length, HEADS * WIDTH, device="cuda", generator=generator
    )
    windows = [int(window) for window in options.windows.split(",")]
    every = list(
        systems(
            windows,
            options.encodings.split(","),
            options.length,
            x.bfloat16(),
            options.compiled,
        )
    )
    for system in every:
        if system.checked and (off := error(system, inputs)) > TOLERANCE:
            raise RuntimeError(f"{system.name}, window {system.window}: off by {off:.1g}")
        measured(system, inputs, 1)  # compiles
    results: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
    for _ in range(options.rounds):
        for system in every:
            key = system.name, system.window
            results.setdefault(key, []).append(measured(system, inputs, options.repeats))
    medians = {
        key: [statistics.median(column) for column in zip(*turns, strict=True)]
        for key, turns in results.items()
    }
    full = sum(medians["torch full", 0][:2])
    rows = []
    for (name, window), (forth, back, peak) in medians.items():
        ratio = full / (forth + back)
        rows.append([options.batch, options.length, name, window, round(forth, 4), round(back, 4),
                     round(ratio, 2), round(peak, 3)])  # fmt: skip
        print(f"{name:30} {window or 'all':>5} {forth:8.3f} ms {back:8.3f} ms back "
              f"{ratio:6.2f} x full {peak:7.3f} GiB")  # fmt: skip
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow("batch length system window forward backward times_full gib".split())
            writer.writerows(rows)


if __name__ == "__main__":
    main()
