"""Pictures of dynamic NTK."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.dynamic_ntk import DynamicNTK
from pe.encodings.rope import RoPE
from pictures.common import canvas, frequencies, picture, randn


def ratios_by_length(head_dim: int, original: int, factor: float, lengths: Tensor) -> Tensor:
    """New frequency over RoPE's, (lengths, P), as one batch of rows with these lengths."""
    enc = _dynamic(head_dim, original, factor)
    return enc.frequencies(lengths[:, None]).inv_freq / frequencies("rope", head_dim)


def _dynamic(head_dim: int, original: int, factor: float) -> RoPE:
    enc = pe.encoding(
        "dynamic_ntk", head_dim=head_dim, num_heads=1, original_length=original, factor=factor
    )
    assert isinstance(enc, RoPE)
    return enc


def decoding_errors(
    original: int = 32, longest: int = 128, head_dim: int = 32
) -> dict[str, Tensor]:
    """Largest error of a decoding step's logits against the whole text read at once, by length.

    raw: keys cached before the rotation, and all rotated at each step. stale: each key kept as it
    was rotated when it was new.
    """
    enc = _dynamic(head_dim, original, 2.0)
    q, k = randn(1, 1, longest, head_dim, seed=1), randn(1, 1, longest, head_dim, seed=2)
    positions = torch.arange(longest)
    kept, errors = k.clone(), {"raw": [], "stale": []}
    for end in range(1, longest + 1):
        new, seen = positions[end - 1 : end], positions[:end]
        whole_q, whole_k = enc.rotate(q[:, :, :end], k[:, :, :end], seen, seen)
        want = whole_q[0, 0, -1] @ whole_k[0, 0].T
        step_q, step_k = enc.rotate(q[:, :, end - 1 : end], k[:, :, :end], new, seen)
        kept[:, :, end - 1] = step_k[:, :, -1]
        for name, keys in (("raw", step_k), ("stale", kept[:, :, :end])):
            error = (step_q[0, 0, -1] @ keys[0, 0].T - want).abs().max() / math.sqrt(head_dim)
            errors[name].append(float(error))
    return {name: torch.tensor(values) for name, values in errors.items()}


@picture("dynamic-ntk-alpha")
def draw_dynamic_ntk_alpha() -> Figure:
    head_dim, original = 64, 2048
    lengths = torch.arange(1, 8 * original + 1, 64)
    ink = figures.colour("dynamic_ntk")
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    for factor, line in ((1.0, ":"), (2.0, "-"), (4.0, "--")):
        alpha = DynamicNTK(original, factor).alpha(lengths)
        left.plot(lengths / original, alpha.numpy(), color=ink, ls=line, label=f"s = {factor:g}")
    left.set(xlabel="length / L₀", ylabel="α", ylim=(0, 30))
    left.legend(frameon=False, fontsize=8)
    multiples = (1, 2, 4, 8)
    rows = ratios_by_length(head_dim, original, 2.0, original * torch.tensor(multiples))
    for multiple, ratio, line in zip(multiples, rows, ("-", "--", "-.", ":"), strict=True):
        right.plot(ratio.numpy(), color=ink, ls=line, label=f"L = {multiple} L₀")
    right.set(xlabel="pair i", ylabel="new frequency / old", ylim=(0, 1.05))
    right.legend(frameon=False, fontsize=8, loc="lower left")
    return figure


@picture("dynamic-ntk-decoding")
def draw_dynamic_ntk_decoding() -> Figure:
    errors = decoding_errors()
    figure, axes = canvas(height=2.5)
    ax = axes[0, 0]
    lengths = torch.arange(1, len(errors["raw"]) + 1)
    ax.plot(
        lengths,
        errors["stale"],
        color=figures.INK,
        ls="--",
        label="keys as they were rotated when new",
    )
    ax.plot(
        lengths,
        errors["raw"],
        color=figures.colour("dynamic_ntk"),
        label="all keys rotated in each step",
    )
    ax.axvline(32, color=figures.FAINT, lw=0.8, ls=":")
    ax.annotate("L₀ = 32", (33, float(errors["stale"].max()) * 0.9), fontsize=8)
    ax.set(xlabel="length at this step", ylabel="largest error of a logit")
    ax.legend(frameon=False, fontsize=8, loc="lower right")
    return figure
