"""Pictures of LongRoPE."""

from __future__ import annotations

import math
import random

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.core.frequencies import base_frequencies
from pe.encodings.longrope import magnitude_of
from pe.encodings.rope import RoPE
from pe.evaluation.longrope.evolution import Evolution, seeds
from pictures.common import BASE, canvas, picture

HEAD_DIM, TRAINED, FACTOR = 64, 4096, 8.0
NAMES = {"pi": "PI", "ntk": "NTK", "yarn": "YaRN", "blend": "blend of factors"}


def first_generation() -> dict[str, Tensor]:
    """Factors (P,) of what the search begins with, by name."""
    found = seeds(base_frequencies(HEAD_DIM, BASE), FACTOR, TRAINED)
    return {c.origin: torch.tensor(c.factors, dtype=torch.float64) for c in found}


def mutations(origin: str, count: int) -> Tensor:
    """(count, P): mutations of one seed."""
    first = seeds(base_frequencies(HEAD_DIM, BASE), FACTOR, TRAINED)
    rules, rng = Evolution(first, FACTOR, 64, seed=0), random.Random(0)
    parent = next(c.factors for c in first if c.origin == origin)
    made = [rules.mutated(rng, parent) for _ in range(count)]
    return torch.tensor(made, dtype=torch.float64)


def factors_by_length(lengths: Tensor, dynamic: bool) -> Tensor:
    """(lengths, P): by how much each pair is slowed in texts of these lengths."""
    enc = pe.encoding(
        "longrope", head_dim=HEAD_DIM, num_heads=1, original_length=TRAINED, factor=FACTOR,
        dynamic=dynamic,
    )  # fmt: skip
    assert isinstance(enc, RoPE)
    own = base_frequencies(HEAD_DIM, BASE).inv_freq
    return own / enc.frequencies(lengths[:, None]).inv_freq


def magnitudes(factors: Tensor, policy: str, original_length: int) -> Tensor:
    """m for each factor."""
    return torch.tensor([magnitude_of(policy, float(s), original_length) for s in factors])


def sequences(pairs: int, factor: float) -> float:
    """log10 of the number of rising factors on the grid of a hundredth, from 1 to 1 + s."""
    values = round(100 * factor) + 1
    return math.log10(math.comb(values + pairs - 1, pairs))


@picture("longrope-seeds")
def draw_longrope_seeds() -> Figure:
    figure, axes = canvas(height=3.1)
    ax = axes[0, 0]
    for number, child in enumerate(mutations("yarn", 6)):
        ax.plot(
            child.numpy(), color=figures.FAINT, lw=0.8, alpha=0.7,
            label=None if number else "mutations of YaRN",
        )  # fmt: skip
    looks = {"pi": ":", "ntk": "--", "yarn": "-", "blend": "-."}
    for name, factors in first_generation().items():
        colour = figures.colour("longrope" if name == "blend" else name)
        ax.plot(factors.numpy(), color=colour, ls=looks[name], label=NAMES[name])
    ax.set(xlabel="pair i", ylabel="λ, by how much it is slowed", ylim=(0.5, 9.5))
    ax.legend(frameon=False, fontsize=8)
    return figure


@picture("longrope-switch")
def draw_longrope_switch() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    lengths = torch.arange(256, int(FACTOR) * TRAINED + 1, 256)
    for dynamic, line, name in ((False, "-", "as it is"), (True, "--", "dynamic")):
        last = factors_by_length(lengths, dynamic)[:, -1]
        left.plot(
            lengths / TRAINED, last, color=figures.colour("longrope"), ls=line, label=name,
            drawstyle="steps-post" if not dynamic else "default",
        )  # fmt: skip
    left.set(xlabel="length / L₀", ylabel="λ of the last pair", ylim=(0, 9))
    left.legend(frameon=False, fontsize=8, loc="lower right")
    s = torch.linspace(1, 32, 200)
    for policy, length, ink, line in (
        ("su", 256, "longrope", "--"), ("su", 4096, "longrope", "-"), ("yarn", 4096, "yarn", ":"),
    ):  # fmt: skip
        name = f"su, L₀ = {length:,}" if policy == "su" else "yarn"
        right.plot(s, magnitudes(s, policy, length), color=figures.colour(ink), ls=line, label=name)
    right.set(xlabel="s", ylabel="μ")
    right.legend(frameon=False, fontsize=8)
    return figure
