"""Pictures of what is added to the token embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.core.additive import Additive
from pictures.common import canvas, picture


def vectors(name: str, hidden: int, positions: Tensor, **options: Any) -> Tensor:
    """(n, hidden) float64: what a token of zeros becomes at these positions."""
    found = pe.encoding(
        name, head_dim=hidden, num_heads=1, hidden_size=hidden, original_length=256, **options
    )
    assert isinstance(found, Additive)
    found.reset_parameters(torch.Generator().manual_seed(0))
    zeros = torch.zeros(len(positions), hidden, dtype=torch.float64)
    return found.embed(zeros, positions).detach()


def cosines(name: str, hidden: int, here: int, length: int, **options: Any) -> Tensor:
    """(length,): cosine of the angle between the vector of position ``here`` and each other."""
    rows = vectors(name, hidden, torch.arange(length), **options)
    rows = rows / rows.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return rows @ rows[here]


def _table(ax: Any, values: Tensor, low: float, high: float, signed: bool) -> None:
    colours = figures.DIVERGING if signed else figures.SEQUENTIAL
    ax.imshow(
        values.numpy(), aspect="auto", cmap=colours, vmin=low, vmax=high,
        interpolation="nearest", origin="lower",
    )  # fmt: skip
    ax.grid(visible=False)
    ax.set(xlabel="column", ylabel="position")


# ---------------------------------------------------------------- sinusoidal


def product_numbers(hidden: int = 128, length: int = 512) -> dict[str, Tensor]:
    """Inner product of two vectors over that of a vector with itself, by distance."""
    found = {}
    for grid in ("paper", "tensor2tensor"):
        rows = vectors("sinusoidal", hidden, torch.arange(length), grid=grid)
        found[grid] = rows @ rows[0] / (rows[0] @ rows[0])
    return found


@picture("sinusoidal-table")
def draw_sinusoidal() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    _table(left, vectors("sinusoidal", 64, torch.arange(128)), -1, 1, signed=True)
    colour = figures.colour("sinusoidal")
    for (grid, values), look in zip(product_numbers().items(), ("-", ":"), strict=True):
        right.plot(values.numpy(), color=colour, ls=look, lw=1.4, label=f"grid {grid}")
    right.axhline(0, color=figures.INK, lw=0.6)
    right.set(xlabel="distance", ylabel="inner product (1 at distance 0)")
    right.legend(fontsize=8)
    return figure


# ---------------------------------------------------------------- sinonly


def sinonly_numbers(hidden: int = 128, reach: int = 60) -> dict[int, Tensor]:
    """Inner products (2 reach + 1,) over hidden/2, at distances -reach .. reach, by position."""
    found = {}
    for here in (60, 120, 1000):
        rows = vectors("sinonly", hidden, torch.arange(here - reach, here + reach + 1))
        found[here] = rows @ rows[reach] / (hidden / 2)
    return found


@picture("sinonly-table")
def draw_sinonly() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    _table(left, vectors("sinonly", 64, torch.arange(128)), -1, 1, signed=True)
    styles = ("-", "--", ":")
    for (here, values), look in zip(sinonly_numbers().items(), styles, strict=True):
        distance = torch.arange(len(values)) - len(values) // 2
        right.plot(
            distance, values, color=figures.colour("sinonly"), ls=look, lw=1.4,
            label=f"around position {here:,}",
        )  # fmt: skip
    right.set(xlabel="distance", ylabel="inner product / (d/2)", ylim=(-0.05, 1.25))
    right.legend(fontsize=8)
    return figure


# ---------------------------------------------------------------- learned


@picture("learned-start")
def draw_learned() -> Figure:
    figure, axes = canvas()
    ax, length = axes[0, 0], 256
    for name, label in (("sinusoidal", "sinusoidal"), ("learned", "learned, before training")):
        ax.plot(
            cosines(name, 128, 100, length).numpy(), color=figures.colour(name), lw=1.3,
            label=label,
        )  # fmt: skip
    ax.axvspan(length, 320, color=figures.FAINT, alpha=0.2, lw=0)
    ax.text(288, 0.5, "no row", ha="center", color=figures.INK, fontsize=9)
    ax.set(xlabel="position", ylabel="cosine with position 100", xlim=(0, 320))
    ax.legend(fontsize=8)
    return figure


# ---------------------------------------------------------------- binary, decimal


def steps(name: str, length: int, hidden: int = 16) -> Tensor:
    """(length,): distance between the vectors of each position and the next."""
    return vectors(name, hidden, torch.arange(length + 1)).diff(dim=0).norm(dim=-1)


def constant_share(name: str, hidden: int, length: int) -> float:
    """Share of the mean squared norm that is the same vector at every position below length."""
    rows = vectors(name, hidden, torch.arange(length))
    return float(rows.mean(0).square().sum() / rows.square().sum(-1).mean())


def _draw_digits(name: str, shown: int, most: float, columns: int) -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    _table(left, vectors(name, 16, torch.arange(shown))[:, -columns:], 0, most, signed=False)
    base = int(most) + 1
    left.set_xticks(range(columns), [f"{base**n:,}" for n in reversed(range(columns))])
    left.set_xlabel("column, by what its digit is worth")
    right.vlines(range(shown), 0, steps(name, shown).numpy(), color=figures.colour(name), lw=1.2)
    right.set(xlabel="position p", ylabel="|P(p + 1) - P(p)|", ylim=(0, None))
    return figure


@picture("binary-digits")
def draw_binary() -> Figure:
    return _draw_digits("binary", 128, 1, 8)


@picture("decimal-digits")
def draw_decimal() -> Figure:
    return _draw_digits("decimal", 128, 9, 4)


# ---------------------------------------------------------------- randomized


def draws(tokens: int, most: int, count: int) -> Tensor:
    """(count, tokens) positions, as the package draws them."""
    enc = pe.encoding("randomized", head_dim=2, num_heads=1, max_position=most)
    where = torch.arange(tokens)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return torch.stack([enc.prepare(where, where).k_positions for _ in range(count)])


def sample_mean(tokens: int, most: int) -> Tensor:
    """(tokens,): expected position of each token."""
    return torch.arange(1, tokens + 1) * (most + 1) / (tokens + 1) - 1


def sample_spread(tokens: int, most: int) -> Tensor:
    """(tokens,): standard deviation of the position of each token."""
    k = torch.arange(1, tokens + 1, dtype=torch.float64)
    ahead = (most + 1) * (most - tokens) / ((tokens + 1) ** 2 * (tokens + 2))
    return (k * (tokens + 1 - k) * ahead).sqrt()


def gap_numbers(most: int = 4096, reach: int = 64) -> dict[int, Tensor]:
    """(reach,): probability that the next token stands 1, 2, ... places on, by tokens drawn."""
    gap, found = torch.arange(1, reach + 1, dtype=torch.float64), {}
    for tokens in (256, 1024, 4096):
        # Of N places n are drawn. All but one of the first `gap` places behind a token are not:
        # C(N - gap, n - 1) of C(N, n) choices.
        n, big = float(tokens), float(most)
        logs = (
            torch.lgamma(big - gap + 1) - math.lgamma(n) - torch.lgamma(big - gap - n + 2)
            - math.lgamma(big + 1) + math.lgamma(n + 1) + math.lgamma(big - n + 1)
        )  # fmt: skip
        found[tokens] = torch.where(gap <= big - n + 1, logs.exp(), 0.0).nan_to_num()
    return found


@picture("randomized-draws")
def draw_randomized() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    tokens, most, colour = 24, 384, figures.colour("randomized")
    index = torch.arange(tokens)
    for row in draws(tokens, most, 5):
        left.plot(index, row, color=colour, lw=1, alpha=0.8, marker=".", ms=3)
    mean, spread = sample_mean(tokens, most), sample_spread(tokens, most)
    left.fill_between(index, mean - spread, mean + spread, color=figures.FAINT, alpha=0.25, lw=0)
    left.plot(index, index, color=figures.INK, lw=0.9, ls=":")
    left.set(xlabel="token", ylabel="position")
    for (count, chance), look in zip(gap_numbers().items(), ("-", "--", ":"), strict=True):
        right.plot(
            torch.arange(1, len(chance) + 1), chance, color=colour, ls=look, lw=1.4,
            label=f"{count:,} tokens",
        )  # fmt: skip
    right.set(xlabel="places to the next token", ylabel="probability", yscale="log",
              ylim=(1e-3, 1.5))  # fmt: skip
    right.legend(fontsize=8)
    return figure
