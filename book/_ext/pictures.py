"""The book's explanatory pictures: each is computed, none is drawn from memory.

A picture is two functions. One returns numbers, from `pe.encodings` wherever the encoding exists
there; tests/test_pictures.py holds those numbers to what the pages say. The other draws them.
`PICTURES` maps the name used by the `{picture}` directive to the drawing function.

Shapes: T positions, d head dimension, P = d/2 pairs of a rotation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import Tensor

import pe
from pe import figures
from pe.encodings.rope import RoPE
from pe.encodings.yarn import YaRN

SENTENCE = ("the", "dog", "bit", "the", "man")
SWAP = (0, 4, 2, 3, 1)  # "the man bit the dog": its own inverse
BASE = 10_000.0
# Transparent at zero only, so that small values show and the page's background does not matter.
SIGNED = LinearSegmentedColormap.from_list(
    "signed", [(0, "#2f7fc4ff"), (0.5, "#2f7fc400"), (0.5, "#d9541e00"), (1, "#d9541eff")]
)


# ---------------------------------------------------------------- helpers


def _randn(*shape: int, seed: int) -> Tensor:
    """Standard normal float64 numbers that do not depend on what ran before."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _canvas(columns: int = 1, rows: int = 1, height: float = 2.9) -> tuple[Figure, np.ndarray]:
    figure = Figure(figsize=(6.8, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def frequencies(name: str, head_dim: int, **options: Any) -> Tensor:
    """Angular frequencies (radians a position) an encoding of the package really uses."""
    encoding = pe.encoding(name, head_dim=head_dim, num_heads=1, hidden_size=head_dim, **options)
    assert isinstance(encoding, RoPE)
    return encoding.frequencies().inv_freq


def rotated(name: str, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (T, d), standing at positions 0..T-1, as the encoding rotates them."""
    encoding = pe.encoding(name, head_dim=q.shape[-1], num_heads=1, hidden_size=q.shape[-1])
    positions = torch.arange(q.shape[0])
    with torch.no_grad():
        out_q, out_k = encoding.rotate(q[None, None], k[None, None], positions, positions)
    return out_q[0, 0], out_k[0, 0]


def logits_by_distance(name: str, q: Tensor, k: Tensor, length: int) -> Tensor:
    """Logits (T,) of one query content at position T-1 with one key content at distances 0..T-1."""
    turned_q, turned_k = rotated(name, q.expand(length, -1), k.expand(length, -1))
    return (turned_k @ turned_q[-1]).flip(0) / math.sqrt(q.shape[-1])


# ---------------------------------------------------------------- the problem


def order_numbers(seed: int = 8) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits (5, 5) of a sentence, and of its swapped form with rows and columns put back."""
    d = 16
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(SENTENCE))}
    table = _randn(len(vocabulary), d, seed=seed)
    w_q, w_k = _randn(2, d, d, seed=seed + 1) / math.sqrt(d)
    x = table[[vocabulary[word] for word in SENTENCE]]
    swap = list(SWAP)
    result = {}
    for name in ("nope", "rope"):
        logits = []
        for rows in (x, x[swap]):
            q, k = rotated(name, rows @ w_q, rows @ w_k)
            logits.append(q @ k.T / math.sqrt(d))
        result[name] = (logits[0], logits[1][swap][:, swap])
    return result


def draw_order() -> Figure:
    numbers = order_numbers()
    figure, axes = _canvas(columns=3, rows=2, height=4.6)
    top = max(float(a.abs().max()) for pair in numbers.values() for a in pair)
    titles = ("the dog bit the man", "the man bit the dog,\nput back in order", "difference")
    for row, (name, (first, second)) in enumerate(numbers.items()):
        for column, matrix in enumerate((first, second, second - first)):
            ax = axes[row, column]
            ax.imshow(matrix.numpy(), cmap=SIGNED, vmin=-top, vmax=top)
            ax.set_xticks(range(5), SENTENCE if row == 1 else [""] * 5, rotation=60)
            ax.set_yticks(range(5), SENTENCE if column == 0 else [""] * 5)
            ax.grid(False)
            if row == 0:
                ax.set_title(titles[column], fontsize=9)
        axes[row, 0].set_ylabel("no encoding" if name == "nope" else "RoPE", fontsize=10)
        largest = float((second - first).abs().max())
        verdict = f"largest: {largest:.1f}" if largest > 1e-9 else "nothing, to rounding"
        axes[row, 2].set_xlabel(verdict, fontsize=9)
    return figure


def _random_decoder(tokens: Tensor, depth: int, seed: int, causal: bool = True) -> Tensor:
    """Hidden states (T, 16) of a random attention + MLP stack without any positional encoding."""
    d = 16
    x = _randn(32, d, seed=seed)[tokens]
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    for layer in range(depth):
        w = _randn(6, d, d, seed=1000 * seed + layer + 1) / math.sqrt(d)
        logits = (x @ w[0]) @ (x @ w[1]).T / math.sqrt(d)
        if causal:
            logits = logits.masked_fill(~mask, -torch.inf)
        x = x + logits.softmax(-1) @ (x @ w[2]) @ w[3]
        x = x + torch.tanh(x @ w[4]) @ w[5]
    return x


def causal_numbers(depths: tuple[int, ...] = (1, 2, 3, 4), seeds: int = 12) -> dict[str, Tensor]:
    """How far the last position's output moves, relative to its size: (depths, seeds) each.

    shuffled: the eleven earlier tokens in another order. doubled: every token said twice.
    constant: spread over the positions of a sequence that repeats one token.
    """
    out = {key: torch.zeros(len(depths), seeds) for key in ("shuffled", "doubled", "constant")}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randperm(32, generator=generator)[:12]
        shuffled = torch.cat([tokens[:-1].flip(0), tokens[-1:]])
        doubled = tokens.repeat_interleave(2)
        for row, depth in enumerate(depths):
            plain = _random_decoder(tokens, depth, seed)[-1]
            for key, other in (("shuffled", shuffled), ("doubled", doubled)):
                moved = (_random_decoder(other, depth, seed)[-1] - plain).norm() / plain.norm()
                out[key][row, seed] = moved
            same = _random_decoder(torch.full((12,), 5), depth, seed)
            out["constant"][row, seed] = (same - same[0]).norm(dim=-1).max() / same[0].norm()
    return out


def draw_causal() -> Figure:
    numbers = causal_numbers()
    figure, axes = _canvas(columns=3, height=2.7)
    titles = {
        "shuffled": "earlier tokens shuffled",
        "doubled": "every token said twice",
        "constant": "one token repeated",
    }
    for ax, (key, values) in zip(axes[0], numbers.items(), strict=True):
        for depth in range(values.shape[0]):
            y = values[depth].clamp_min(1e-17).numpy()
            ax.scatter([depth + 1] * len(y), y, s=14, color=figures.colour("nope"), alpha=0.6)
        ax.axhline(2.0**-52, color=figures.INK, lw=0.8, ls=":")
        ax.set(yscale="log", ylim=(1e-18, 10), xlim=(0.5, 4.5), xticks=[1, 2, 3, 4])
        ax.set_title(titles[key], fontsize=9)
        ax.set_xlabel("layers")
    axes[0, 0].set_ylabel("relative change")
    axes[0, 0].annotate("rounding of float64", (4.4, 4e-16), fontsize=7.5, ha="right")
    for ax in axes[0, 1:]:
        ax.set_yticklabels([])
    return figure


# ---------------------------------------------------------------- the places


def draw_places() -> Figure:
    """A diagram, not data: where a decoder layer can be told about order."""
    figure, axes = _canvas(height=3.3)
    ax: Axes = axes[0, 0]
    ax.set(xlim=(0, 10.3), ylim=(0, 4.6))
    ax.axis("off")

    def box(x: float, y: float, w: float, h: float, text: str, colour: str | None = None) -> None:
        edge = colour or figures.INK
        style = "round,pad=0.02,rounding_size=0.12"
        fill = {"facecolor": colour, "alpha": 0.18} if colour else {"facecolor": "none"}
        ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=style, edgecolor="none", **fill))
        ax.add_patch(
            FancyBboxPatch((x, y), w, h, boxstyle=style, facecolor="none", edgecolor=edge, lw=1.1)
        )
        ax.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=8.5)

    def arrow(x0: float, y0: float, x1: float, y1: float) -> None:
        ax.add_patch(
            FancyArrowPatch(
                (x0, y0), (x1, y1), arrowstyle="-|>", mutation_scale=9, color=figures.INK, lw=1
            )
        )

    one, two, three = figures.colour("yarn"), figures.colour("rope"), figures.colour("pope")
    box(0.05, 1.5, 1.15, 0.8, "token\nembeddings")
    box(1.65, 1.5, 1.15, 0.8, "1  embed", one)
    box(3.35, 2.5, 1.0, 0.65, "queries")
    box(3.35, 1.55, 1.0, 0.65, "keys")
    box(3.35, 0.6, 1.0, 0.65, "values")
    box(4.85, 1.55, 1.1, 1.6, "2  rotate", two)
    box(6.4, 2.0, 0.95, 0.7, "q · k")
    box(6.15, 3.45, 1.45, 0.62, "logit scale", three)
    box(7.75, 2.0, 0.95, 0.7, "3  bias", three)
    box(9.0, 2.0, 0.95, 0.7, "softmax")
    box(9.0, 0.6, 0.95, 0.65, "mix")
    arrow(1.2, 1.9, 1.63, 1.9)
    for y in (2.82, 1.87, 0.92):
        arrow(2.82, 1.9, 3.33, y)
    arrow(4.37, 2.82, 4.83, 2.82)
    arrow(4.37, 1.87, 4.83, 1.87)
    arrow(5.97, 2.82, 6.38, 2.45)
    arrow(5.97, 1.87, 6.38, 2.25)
    arrow(6.87, 3.43, 6.87, 2.72)
    arrow(7.37, 2.35, 7.73, 2.35)
    arrow(8.72, 2.35, 8.98, 2.35)
    arrow(9.47, 1.98, 9.47, 1.27)
    arrow(4.37, 0.92, 8.98, 0.92)
    ax.plot([3.1, 3.1, 10.2, 10.2, 3.1], [0.35, 4.3, 4.3, 0.35, 0.35], color=figures.GRID, lw=1)
    ax.text(10.2, 0.05, "in every layer", fontsize=8, ha="right")
    ax.text(2.22, 1.2, "once", fontsize=8, ha="center")
    return figure


# ---------------------------------------------------------------- NoPE


def counting_numbers(length: int = 2048) -> dict[str, Tensor]:
    """Signal 1/t of the first-token head at t = 1..length, and t read back from it.

    The head is a real softmax over equal logits, in float64; the signal is then stored as named
    and t is the integer nearest to its inverse.
    """
    first = torch.zeros(length, dtype=torch.float64)
    first[0] = 1.0  # the value vector of the first token; all others hold 0
    visible = torch.ones(length, length, dtype=torch.bool).tril()
    zeros = torch.zeros(length, length, dtype=torch.float64)
    signal = zeros.masked_fill(~visible, -torch.inf).softmax(-1) @ first
    stored = {"float32": signal.float().double(), "bfloat16": signal.bfloat16().double()}
    return {"signal": signal} | {key: (1 / value).round() for key, value in stored.items()}


def first_confusion(length: int = 2048) -> int:
    """The first t whose bfloat16 signal is the same number as that of t + 1."""
    stored = counting_numbers(length)["signal"].bfloat16()
    return int((stored[1:] == stored[:-1]).nonzero()[0]) + 1


def draw_counting() -> Figure:
    numbers = counting_numbers()
    t = np.arange(1, len(numbers["signal"]) + 1)
    figure, axes = _canvas(columns=2)
    left, right = axes[0]
    left.plot(t, numbers["signal"].numpy(), color=figures.colour("nope"))
    left.axvline(256, color=figures.INK, lw=0.8, ls=":")
    left.annotate("training length\nof the demo", (275, 0.2), fontsize=8)
    left.set(xscale="log", yscale="log", xlabel="position t", ylabel="first token's share, 1/t")
    for key, ink in (("bfloat16", figures.colour("nope")), ("float32", figures.INK)):
        right.plot(t, numbers[key].numpy() - t, color=ink, lw=1, label=key)
    right.set(xlabel="position t", ylabel="position read back − t")
    right.legend(frameon=False, fontsize=8)
    return figure


# ---------------------------------------------------------------- RoPE


def draw_rope_turns() -> Figure:
    head_dim, steps, pairs = 32, 13, (0, 2, 5, 10)
    omega = frequencies("rope", head_dim)
    figure, axes = _canvas(columns=4, height=2.2)
    for ax, pair in zip(axes[0], pairs, strict=True):
        content = torch.zeros(steps, head_dim, dtype=torch.float64)
        content[:, pair] = 1.0  # first half of the pair (i, i + d/2)
        turned, _ = rotated("rope", content, content)
        xy = turned[:, [pair, pair + head_dim // 2]].numpy()
        circle = np.linspace(0, 2 * np.pi, 100)
        ax.plot(np.cos(circle), np.sin(circle), color=figures.GRID, lw=0.8)
        for step, (x, y) in enumerate(xy):
            strength = 0.25 + 0.75 * step / (steps - 1)
            ax.plot([0, x], [0, y], color=figures.colour("rope"), alpha=strength, lw=1.4)
        ax.set(xlim=(-1.15, 1.15), ylim=(-1.15, 1.15), aspect="equal")
        ax.axis("off")
        turn = 2 * math.pi / float(omega[pair])
        shown = f"{turn:,.0f}" if turn > 100 else f"{turn:.3g}"
        ax.set_title(f"pair {pair}: one turn in\n{shown} positions", fontsize=8.5)
    return figure


def draw_rope_distance() -> Figure:
    head_dim, length = 32, 24
    q, k = _randn(1, head_dim, seed=1), _randn(1, head_dim, seed=2)
    turned_q, turned_k = rotated("rope", q.expand(length, -1), k.expand(length, -1))
    logits = (turned_q @ turned_k.T / math.sqrt(head_dim)).numpy()
    figure, axes = _canvas(columns=2)
    top = np.abs(logits).max()
    axes[0, 0].imshow(logits, cmap=SIGNED, vmin=-top, vmax=top)
    axes[0, 0].grid(False)
    axes[0, 0].set(xlabel="key position n", ylabel="query position m")
    axes[0, 0].set_title("one query content, one key content", fontsize=9)
    for seed in (1, 5, 9):
        curve = logits_by_distance(
            "rope", _randn(1, head_dim, seed=seed), _randn(1, head_dim, seed=seed + 1), 65
        )
        axes[0, 1].plot(curve.numpy(), color=figures.colour("rope"), alpha=0.35 + seed / 15, lw=1.2)
    axes[0, 1].set(xlabel="distance m − n", ylabel="logit")
    axes[0, 1].set_title("three pairs of contents", fontsize=9)
    return figure


def unturned_pairs(head_dim: int = 32, length: int = 256) -> int:
    """Pairs that complete no full turn within `length` positions."""
    return int((2 * math.pi / frequencies("rope", head_dim) > length).sum())


def draw_rope_wavelengths() -> Figure:
    figure, axes = _canvas()
    ax = axes[0, 0]
    head_dim, trained, tested = 32, 256, 2048
    wavelength = (2 * math.pi / frequencies("rope", head_dim)).numpy()
    pairs = np.arange(len(wavelength))
    full = wavelength <= trained
    colour = figures.colour("rope")
    ax.scatter(pairs[full], wavelength[full], color=colour, zorder=3, label="full turns seen")
    ax.scatter(
        pairs[~full],
        wavelength[~full],
        facecolors="none",
        edgecolors=colour,
        zorder=3,
        label="only an arc seen",
    )
    for value, text in ((trained, "training length 256"), (tested, "tested length 2,048")):
        ax.axhline(value, color=figures.INK, lw=0.8, ls=":")
        ax.annotate(text, (0, value * 1.15), fontsize=8)
    ax.set(yscale="log", xlabel="pair i", ylabel="wavelength λ (positions)")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return figure


def decay_numbers(
    head_dim: int = 64, length: int = 1025, favourite: int = 300
) -> dict[str, Tensor]:
    """Everything divided by its value at distance 0 of the equal-content kernel, (length,) each.

    bound: mean over pairs of |S_j|, the sum that bounds the logit. equal: q = k = ones.
    chosen: unit pairs whose content phases cancel the rotation at distance `favourite`.
    """
    pairs = head_dim // 2
    omega = frequencies("rope", head_dim)
    distance = torch.arange(length, dtype=torch.float64)
    turning = torch.polar(torch.ones(length, pairs).double(), distance[:, None] * omega)
    ones = torch.ones(1, head_dim, dtype=torch.float64) / math.sqrt(2)
    phase = favourite * omega  # key content turned forward by what the distance turns back
    chosen = torch.cat([phase.cos(), phase.sin()])[None]
    unit = torch.cat([torch.ones(pairs), torch.zeros(pairs)])[None].double()
    scale = math.sqrt(head_dim) / pairs
    return {
        "bound": turning.cumsum(1).abs().mean(1) / ((pairs + 1) / 2),
        "equal": logits_by_distance("rope", ones, ones, length) * scale,
        "chosen": logits_by_distance("rope", unit, chosen, length) * scale,
    }


def draw_rope_decay() -> Figure:
    numbers = decay_numbers()
    figure, axes = _canvas()
    ax = axes[0, 0]
    labels = {
        "bound": "mean of |S_j|, scaled",
        "equal": "equal contents",
        "chosen": "contents chosen for distance 300",
    }
    colours = {
        "bound": figures.INK,
        "equal": figures.colour("rope"),
        "chosen": figures.colour("yarn"),
    }
    for key, values in numbers.items():
        ax.plot(values.numpy(), color=colours[key], lw=1.2, label=labels[key])
    ax.set(xlabel="distance", ylabel="logit, largest possible = 1", ylim=(-0.6, 1.25))
    ax.legend(frameon=False, fontsize=8, ncol=3, loc="upper center")
    return figure


# ---------------------------------------------------------------- YaRN


def cutoffs(head_dim: int, original_length: int) -> tuple[int, int]:
    """(low, high), the pair indices where YaRN's ramp begins and ends."""
    low, high = YaRN(original_length).ramp_bounds(head_dim, BASE)
    return int(low), int(high)


def yarn_ratios(head_dim: int, original_length: int, factor: float) -> dict[str, Tensor]:
    """New frequency over RoPE's, (P,), for position interpolation, NTK-aware scaling and YaRN."""
    omega = frequencies("rope", head_dim)
    pair = torch.arange(head_dim // 2, dtype=torch.float64)
    yarn = frequencies("yarn", head_dim, original_length=original_length, factor=factor)
    return {
        "PI": torch.full_like(omega, 1 / factor),
        "NTK": factor ** (-2 * pair / (head_dim - 2)),
        "YaRN": yarn / omega,
    }


def draw_yarn_frequencies() -> Figure:
    head_dim, original, factor = 128, 4096, 16.0
    ratios = yarn_ratios(head_dim, original, factor)
    turns = (original * frequencies("rope", head_dim) / (2 * math.pi)).numpy()
    low, high = cutoffs(head_dim, original)
    figure, axes = _canvas(columns=2)
    left, right = axes[0]
    left.plot(turns, color=figures.colour("rope"))
    for value, name in ((32, "fast: 32 turns"), (1, "slow: 1 turn")):
        left.axhline(value, color=figures.INK, lw=0.8, ls=":")
        left.annotate(name, (0, value * 1.25), fontsize=8)
    left.set(yscale="log", xlabel="pair i", ylabel="turns in the original length")
    looks = {
        "PI": (figures.INK, ":"),
        "NTK": (figures.FAINT, "--"),
        "YaRN": (figures.colour("yarn"), "-"),
    }
    for key, values in ratios.items():
        ink, line = looks[key]
        right.plot(values.numpy(), color=ink, ls=line, label=key, lw=1.5)
    for ax in (left, right):
        ax.axvspan(low, high, color=figures.colour("yarn"), alpha=0.12, lw=0)
    right.set(xlabel="pair i", ylabel="new frequency / old", ylim=(0, 1.05))
    right.legend(frameon=False, fontsize=8)
    return figure


def draw_yarn_small() -> Figure:
    head_dim, factor = 32, 8.0
    figure, axes = _canvas()
    ax = axes[0, 0]
    lengths = (4096, 1024, 256, 64, 6)
    for shade, length in enumerate(lengths):
        ratio = yarn_ratios(head_dim, length, factor)["YaRN"].numpy()
        low, high = cutoffs(head_dim, length)
        ax.plot(
            ratio,
            marker=".",
            color=figures.colour("yarn"),
            alpha=1 - 0.18 * shade,
            ls=("-", "--", "-.", ":", "-")[shade],
            label=f"{length:,}: low {low}, high {high}",
        )
    ax.axhline(1 / factor, color=figures.INK, lw=0.8, ls=":")
    ax.annotate("1/s: fully interpolated", (12.3, 1 / factor + 0.03), fontsize=8)
    ax.set(xlabel="pair i", ylabel="new frequency / old", ylim=(0, 1.08))
    ax.legend(frameon=False, fontsize=8, title="original length", title_fontsize=8)
    return figure


# ---------------------------------------------------------------- PoPE


def plane_numbers(position: int = 3) -> dict[str, Tensor]:
    """Six key contents at one position, as points (6, 2): one RoPE pair, one PoPE channel."""
    d, frequency = 8, 1  # pair 1 of RoPE, channel 1 of PoPE
    contents = _randn(6, d, seed=7)
    here = torch.full((6,), position)
    points = {}
    for name in ("rope", "pope"):
        encoding = pe.encoding(name, head_dim=d, num_heads=1, hidden_size=d)
        with torch.no_grad():
            _, k = encoding.rotate(contents[None, None], contents[None, None], here, here)
        half = k.shape[-1] // 2
        points[name] = k[0, 0][:, [frequency, frequency + half]].double()
    return points


def draw_pope_plane() -> Figure:
    figure, axes = _canvas(columns=2, height=3.1)
    titles = {"rope": "RoPE: one pair of the key", "pope": "PoPE: one channel of the key"}
    for ax, (name, points) in zip(axes[0], plane_numbers().items(), strict=True):
        reach = float(points.norm(dim=1).max()) * 1.1
        for x, y in points.tolist():
            ax.plot([0, x], [0, y], color=figures.colour(name), lw=1.3, alpha=0.5)
            ax.plot(x, y, "o", color=figures.colour(name), ms=5)
        ax.axhline(0, color=figures.GRID, lw=0.8)
        ax.axvline(0, color=figures.GRID, lw=0.8)
        ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xticks=[], yticks=[])
        ax.grid(False)
        ax.set_title(titles[name], fontsize=9)
    return figure


def what_where_numbers(curves: int = 12, head_dim: int = 32, reach: int = 48) -> dict[str, Tensor]:
    """Logits (curves, 2 reach + 1) of random contents at signed distances, mean removed."""
    length = 2 * reach + 1
    result = {}
    for name in ("rope", "pope"):
        rows = []
        for seed in range(curves):
            q, k = _randn(1, head_dim, seed=2 * seed), _randn(1, head_dim, seed=2 * seed + 1)
            turned_q, turned_k = rotated(name, q.expand(length, -1), k.expand(length, -1))
            row = turned_k @ turned_q[reach] / math.sqrt(head_dim)  # key n at distance reach - n
            rows.append(row.flip(0) - row.mean())
        result[name] = torch.stack(rows)
    return result


def draw_pope_what_where() -> Figure:
    numbers = what_where_numbers()
    figure, axes = _canvas(columns=2)
    for ax, (name, curves) in zip(axes[0], numbers.items(), strict=True):
        reach = curves.shape[1] // 2
        x = np.arange(-reach, reach + 1)
        for curve in curves.numpy():
            ax.plot(x, curve, color=figures.colour(name), alpha=0.35, lw=0.9)
            peak = int(curve.argmax())
            ax.plot(x[peak], curve[peak], "o", color=figures.colour(name), ms=4)
        ax.set_title({"rope": "RoPE", "pope": "PoPE"}[name] + ": same contents", fontsize=9)
        ax.set_xlabel("distance m − n")
    axes[0, 0].set_ylabel("logit − mean of the curve")
    return figure


def kernel_numbers(head_dim: int = 64, length: int = 513) -> dict[str, Tensor]:
    """Logit by distance (length,): PoPE for zero contents; RoPE for equal contents, same height.

    estimate: sqrt(d) (ln 2)^2 (1 - (ln distance + 0.577) / ln theta), from distance 1 on.
    """
    zeros = torch.zeros(1, head_dim, dtype=torch.float64)
    pope = logits_by_distance("pope", zeros, zeros, length)
    ones = torch.full((1, head_dim), math.log(2), dtype=torch.float64)
    log_distance = torch.arange(length, dtype=torch.float64).clamp_min(1).log()
    estimate = pope[0] * (1 - (log_distance + np.euler_gamma) / math.log(BASE))
    rope = logits_by_distance("rope", ones, ones, length)
    return {"pope": pope, "rope": rope, "estimate": estimate}


def draw_pope_kernel() -> Figure:
    figure, axes = _canvas()
    ax = axes[0, 0]
    numbers = kernel_numbers()
    labels = {"pope": "PoPE, contents 0", "rope": "RoPE, every entry ln 2"}
    for name, label in labels.items():
        ax.plot(numbers[name].numpy(), color=figures.colour(name), lw=1.2, label=label)
    distance = np.arange(1, len(numbers["estimate"]))
    ax.plot(distance, numbers["estimate"][1:].numpy(), color=figures.INK, ls=":", label="estimate")
    ax.set(xlabel="distance", ylabel="logit", xscale="symlog", xlim=(0, 512))
    ax.legend(frameon=False, fontsize=8)
    return figure


PICTURES: dict[str, Callable[[], Figure]] = {
    "order": draw_order,
    "causal": draw_causal,
    "places": draw_places,
    "nope-counting": draw_counting,
    "rope-turns": draw_rope_turns,
    "rope-distance": draw_rope_distance,
    "rope-wavelengths": draw_rope_wavelengths,
    "rope-decay": draw_rope_decay,
    "yarn-frequencies": draw_yarn_frequencies,
    "yarn-small": draw_yarn_small,
    "pope-plane": draw_pope_plane,
    "pope-what-where": draw_pope_what_where,
    "pope-kernel": draw_pope_kernel,
}
