"""Pictures of Resonance RoPE."""

from __future__ import annotations

import math

import torch
from matplotlib.figure import Figure
from torch import Tensor

import pe
from pe import figures
from pe.encodings.rope import RoPE
from pictures.common import canvas, frequencies, picture


def points(name: str, head_dim: int, length: int) -> Tensor:
    """Where each pair stands at positions 0..length-1, as (P, length, 2) points on its circle."""
    enc = pe.encoding(name, head_dim=head_dim, num_heads=1)
    positions = torch.arange(length)
    cos, sin = enc.prepare(positions, positions, torch.float64).tables[0]
    return torch.stack((cos[0, 0], sin[0, 0]), dim=-1).transpose(0, 1)


def gaps(name: str, head_dim: int = 64, trained: int = 256, tested: int = 2048) -> Tensor:
    """Largest angle (P,) between a position trained..tested-1 and the nearest one of training."""
    where = points(name, head_dim, tested)
    turn = 2 * math.pi
    angles = torch.atan2(where[..., 1], where[..., 0]).remainder(turn)
    seen, new = angles[:, :trained].sort(1).values, angles[:, trained:].contiguous()
    # The circle closes: before the smallest angle lies the largest, a full rotation earlier.
    seen = torch.cat((seen[:, -1:] - turn, seen, seen[:, :1] + turn), 1)
    after = torch.searchsorted(seen, new)
    gap = torch.minimum(seen.gather(1, after) - new, new - seen.gather(1, after - 1))
    return gap.amax(1)


def changes(head_dim: int, **options: float) -> Tensor:
    """Resonance's frequency over RoPE's, less 1, (P,)."""
    rope = frequencies("rope", head_dim, **options)
    return frequencies("resonance", head_dim, **options) / rope - 1


def wavelengths(name: str, head_dim: int, **options: float) -> Tensor:
    """Rounded wavelengths (P,) that an encoding with resonance uses."""
    enc = pe.encoding(name, head_dim=head_dim, num_heads=1, **options)
    assert isinstance(enc, RoPE)
    period = enc.frequencies().period
    assert period is not None
    return period


@picture("resonance-gap")
def draw_resonance_gap() -> Figure:
    head_dim, trained = 64, 256
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    step = frequencies("rope", head_dim)  # the angle per token
    for name, label, line in (("rope", "RoPE", "-"), ("resonance", "Resonance", "--")):
        gap = (gaps(name, head_dim, trained) / step).numpy()
        look = {"color": figures.colour(name), "marker": figures.marker(name), "markersize": 3.5}
        left.plot(gap, ls=line, lw=1.2, label=label, **look)
    first = int((2 * math.pi / step > trained).nonzero()[0])
    left.axvspan(first, head_dim // 2 - 1, color=figures.FAINT, alpha=0.15, lw=0)
    left.set(xlabel="pair i", ylabel="gap to seen angles, in tokens")
    left.set_yscale("symlog", linthresh=0.1)
    left.legend(frameon=False, fontsize=8, loc="upper left")
    change = 100 * changes(64)
    right.bar(range(len(change)), change.numpy(), color=figures.colour("resonance"), width=0.7)
    right.axhline(0, color=figures.INK, lw=0.8)
    right.set(xlabel="pair i", ylabel="change of frequency, %")
    right.set_title("what rounding costs", fontsize=9)
    return figure
