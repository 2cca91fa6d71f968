"""Pictures of FoX."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pe.encodings.fox import FoX
from pictures.common import canvas, picture

GATE, CUTS, CUT = 0.97, (40, 90), 0.02
BIASES = (0.0, 2.0, 5.0)


def bias_numbers(log_gates: Tensor) -> Tensor:
    """(T,) what the last of these tokens adds to the logits of all, by distance."""
    encoding = FoX(num_heads=1, hidden_size=1)
    q, places = torch.zeros(1, 1, 1, 1), torch.arange(len(log_gates))
    with torch.no_grad():
        return encoding.bias(q, q, places[-1:], places, log_gates[None, None, :, None])[
            0, 0, 0
        ].flip(0)


def forgetting_numbers(length: int = 128) -> dict[str, Tensor]:
    """Bias by distance where all gates are alike, and where two tokens forget."""
    gates = torch.full((length,), GATE)
    alike = bias_numbers(gates.log())
    gates[[length - 1 - back for back in CUTS]] = CUT
    return {"alike": alike, "cuts": bias_numbers(gates.log())}


def reach_numbers(gate_bias: float, length: int = 2048) -> Tensor:
    """(T,) share of attention within so many keys before training, all contents being equal."""
    encoding = FoX(num_heads=1, hidden_size=1, gate_bias=gate_bias, gate_std=0.0)
    with torch.no_grad():
        state = encoding.key_state(torch.zeros(1, length, 1))[0, 0, :, 0]
    return bias_numbers(state).double().softmax(-1).cumsum(-1)


@picture("fox-forgetting")
def draw_fox_forgetting() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("fox")
    numbers = forgetting_numbers()
    left.plot(numbers["alike"], color=ink, ls="--", lw=1.5, label=f"every gate {GATE:g}")
    left.plot(numbers["cuts"], color=ink, lw=1.5, label=f"two gates of {CUT:g}")
    left.set(xlabel="distance", ylabel="bias")
    left.legend(fontsize=8)
    for gate_bias, line in zip(BIASES, ("-", "--", ":"), strict=True):
        reach = reach_numbers(gate_bias)
        keys = torch.arange(1, len(reach) + 1)
        right.plot(keys, reach, color=ink, ls=line, lw=1.5, label=f"$\\beta$ = {gate_bias:g}")
    right.axhline(0.5, color=figures.INK, lw=0.8, ls=":")
    right.set(xscale="log", xlabel="keys counted backwards", ylabel="share of attention")
    right.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    right.minorticks_off()
    right.legend(fontsize=8)
    return figure
