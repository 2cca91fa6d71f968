"""Pictures of dropping an encoding after training."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pictures.common import canvas, picture, randn

HEAD_DIM, TRAINED, FACTOR = 64, 256, 4
WANTED, SPREAD = 9.0, 1.0


def logits_after(name: str, length: int, **options: float) -> Tensor:
    """Logits (T,) of one query content with one key content at distances 0..T-1."""
    enc = pe.encoding(name, head_dim=HEAD_DIM, num_heads=1, original_length=TRAINED, **options)
    content = randn(1, 1, 1, HEAD_DIM, seed=3) + 1.0  # alike in part, so that there is a logit
    other = randn(1, 1, 1, HEAD_DIM, seed=4) + 1.0
    positions = torch.arange(length)
    shape = (1, 1, length, HEAD_DIM)
    q, k = enc.rotate(content.expand(shape), other.expand(shape), positions, positions)
    return (k[0, 0] @ q[0, 0, -1]).flip(0) / math.sqrt(HEAD_DIM)


def best_weight(wanted: float, spread: float) -> float:
    """c of the factor 1 + c ln(n / L0) that keeps the wanted key's weight, to first order."""
    return 1 / (wanted - spread**2)


def wanted_weight(lengths: Tensor, c: float, draws: int = 400) -> Tensor:
    """Mean softmax weight of one key with logit `WANTED` among n - 1 keys from Normal(0, `SPREAD`).

    All logits are multiplied by 1 + c ln(n / L0).
    """
    found = []
    for n in lengths.tolist():
        logits = randn(draws, n, seed=n) * SPREAD
        logits[:, 0] = WANTED
        factor = 1 + c * math.log(n / TRAINED)
        found.append((logits * factor).softmax(dim=-1)[:, 0].mean())
    return torch.stack(found)


@picture("dropping-logits")
def draw_logits() -> Figure:
    figure, axes = canvas(height=2.7)
    ax = axes[0, 0]
    length = TRAINED * FACTOR
    for name, label, options in (
        ("rope", "RoPE, as trained", {}),
        ("yarn", "YaRN, s = 4", {"factor": float(FACTOR)}),
        ("nope", "dropped", {}),
    ):
        ax.plot(
            logits_after(name, length, **options).numpy(),
            color=figures.colour(name),
            lw=1.0 if name != "nope" else 2.0,
            label=label,
        )
    ax.axvline(TRAINED, color=figures.FAINT, lw=0.8, ls=":")
    ax.annotate("trained up to here", (TRAINED + 8, ax.get_ylim()[0]), fontsize=8, va="bottom")
    ax.set(xlabel="distance in tokens", ylabel="logit", xlim=(0, length - 1))
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return figure


@picture("dropping-temperature")
def draw_temperature() -> Figure:
    figure, axes = canvas(height=2.7)
    ax = axes[0, 0]
    lengths = TRAINED * 2 ** torch.arange(5)
    c = best_weight(WANTED, SPREAD)
    for value, colour, label in (
        (0.0, "nope", "c = 0: as trained"),
        (c, "pope", f"c = {c:.3f}, from the formula"),
        (2 * c, "rope", f"c = {2 * c:.2f}, twice as much"),
    ):
        ax.plot(
            lengths.numpy(),
            wanted_weight(lengths, value).numpy(),
            color=figures.colour(colour),
            marker=figures.marker(colour),
            label=label,
        )
    ax.set(xscale="log", xlabel="tokens that the query sees", ylabel="weight of the wanted key")
    ax.set_xticks(lengths.tolist(), [f"{n:,}" for n in lengths.tolist()])
    ax.minorticks_off()
    ax.set_ylim(0.5, 1.0)
    ax.legend(frameon=False, fontsize=8, loc="lower left")
    return figure
