"""Pictures of FoPE."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.fope import FoPE
from pictures.common import canvas, picture, randn

WIDTH, LENGTH = 64, 512


def encoding() -> FoPE:
    enc = pe.encoding("fope", head_dim=WIDTH, num_heads=4, original_length=LENGTH)
    assert isinstance(enc, FoPE)
    enc.reset_parameters(torch.Generator().manual_seed(0))
    return enc


def series_numbers(pair: int = 6, longest: int = 120) -> tuple[Tensor, Tensor]:
    """cos(p w) of RoPE's pair and C(p) of FoPE's, head 0, (longest,) each."""
    enc, positions = encoding(), torch.arange(longest)
    (cos, _), _ = enc.prepare(positions, positions, torch.float64).tables
    rope = (positions * enc.inv_freq[pair]).cos()
    return rope, cos[0, 0, :, pair].detach()


def logit_numbers(distance: int = 5, longest: int = 1024) -> dict[str, Tensor]:
    """(longest,) logit of a query at p + distance with a key at p, by p, in head 0."""
    q, k = randn(1, 1, 1, WIDTH, seed=3), randn(1, 1, 1, WIDTH, seed=4)
    place = torch.arange(longest)
    found = {}
    for name, enc in (("rope", pe.encoding("rope", head_dim=WIDTH, num_heads=4)),
                      ("fope", encoding())):  # fmt: skip
        shape = (1, 4, longest, WIDTH)
        a, b = enc.rotate(q.expand(shape), k.expand(shape), place + distance, place)
        found[name] = ((a * b)[0, 0].sum(-1) / math.sqrt(WIDTH)).detach()
    return found


@picture("fope-series")
def draw_fope_series() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    for name, values in zip(("rope", "fope"), series_numbers(), strict=True):
        left.plot(values.numpy(), color=figures.colour(name), lw=1.5, label=name)
    left.set(xlabel="position", ylabel="in place of the cosine of pair 6")
    left.legend(frameon=False, fontsize=8)
    for name, values in logit_numbers().items():
        right.plot(values.numpy(), color=figures.colour(name), lw=0.9)
    right.set(xlabel="position of the key", ylabel="logit at distance 5")
    return figure
