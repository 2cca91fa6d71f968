"""Pictures of the problem: attention without positions, and what the causal mask tells."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import SIGNED, canvas, picture, randn, rotated

SENTENCE = ("the", "dog", "bit", "the", "man")
SWAP = (0, 4, 2, 3, 1)  # "the man bit the dog": its own inverse


def order_numbers(seed: int = 8) -> dict[str, tuple[Tensor, Tensor]]:
    """Logits (5, 5) of a sentence, and of its swapped form with rows and columns put back."""
    d = 16
    vocabulary = {word: i for i, word in enumerate(dict.fromkeys(SENTENCE))}
    table = randn(len(vocabulary), d, seed=seed)
    w_q, w_k = randn(2, d, d, seed=seed + 1) / math.sqrt(d)
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


@picture("order")
def draw_order() -> Figure:
    numbers = order_numbers()
    figure, axes = canvas(columns=3, rows=2, height=4.6)
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
    x = randn(32, d, seed=seed)[tokens]
    mask = torch.ones(len(tokens), len(tokens), dtype=torch.bool).tril()
    for layer in range(depth):
        w = randn(6, d, d, seed=1000 * seed + layer + 1) / math.sqrt(d)
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


@picture("causal")
def draw_causal() -> Figure:
    numbers = causal_numbers()
    figure, axes = canvas(columns=3, height=2.7)
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
