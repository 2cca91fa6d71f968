"""Pictures of partial RoPE and p-RoPE."""

from __future__ import annotations

import math
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pictures.common import canvas, frequencies, picture

WIDTH = 64
SPECTRA: dict[str, tuple[str, dict[str, Any]]] = {
    "RoPE": ("rope", {}),
    "partial, 1/4": ("partial", {}),
    "p-RoPE, p = 3/4": ("p_rope", {}),
    "p-RoPE, p = 1/4": ("p_rope", {"p": 0.25}),
}


def spectra_numbers() -> dict[str, Tensor]:
    """Wavelengths in tokens of the pairs that rotate, fastest first."""
    found = {}
    for label, (name, options) in SPECTRA.items():
        omega = frequencies(name, WIDTH, **options)
        found[label] = 2 * math.pi / omega[omega > 0]
    return found


def logit_numbers(farthest: int = 30_000, bins: int = 60) -> tuple[Tensor, dict[str, Tensor]]:
    """Logit of a query with a key of the same content, all channels 1, by distance.

    Averaged over bins of the distance that get wider, (bins,), each given by its first one.
    """
    edges = torch.logspace(0, math.log10(farthest), bins + 1).long().unique()
    bin_of = torch.bucketize(torch.arange(1, farthest), edges[1:], right=True)
    found = {}
    for label, (name, options) in SPECTRA.items():
        enc = pe.encoding(name, head_dim=WIDTH, num_heads=1, **options)
        one = torch.ones(1, 1, 1, WIDTH, dtype=torch.float64)
        q, k = enc.rotate(one.expand(1, 1, farthest - 1, WIDTH), one,
                          torch.arange(1, farthest), torch.tensor([0]))  # fmt: skip
        logits = (q[0, 0] @ k[0, 0, 0]) / math.sqrt(WIDTH)
        total = torch.zeros(len(edges) - 1, dtype=torch.float64).index_add(0, bin_of, logits)
        found[label] = total / torch.bincount(bin_of)
    return edges[:-1], found


@picture("partial-spectra")
def draw_partial_spectra() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    looks = ((figures.colour("rope"), "-", "."), (figures.colour("pope"), "-", "s"),
             (figures.colour("yarn"), "-", "^"), (figures.colour("yarn"), ":", "v"))  # fmt: skip
    distances, logits = logit_numbers()
    for (label, waves), (ink, line, mark) in zip(spectra_numbers().items(), looks, strict=True):
        left.plot(waves.numpy(), color=ink, ls="none", marker=mark, ms=4, label=label)
        right.plot(distances.numpy(), logits[label].numpy(), color=ink, ls=line, lw=1.3)
    left.set(yscale="log", xlabel="pair i", ylabel="wavelength, tokens")
    left.legend(frameon=False, fontsize=8)
    right.set(xscale="log", xlabel="distance", ylabel="mean logit of equal contents")
    return figure
