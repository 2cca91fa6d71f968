"""What models multiply logits by as the number of keys grows, and what becomes of one key."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import NARROW, canvas, picture

LEAD, TRAINED = 8.0, 1024
Rule = Callable[[Tensor], Tensor]
RULES: dict[str, tuple[str, str, Rule]] = {
    "none": ("nope", ":", torch.ones_like),
    "1 + ln r / 8": ("ssmax", "-", lambda r: 1 + r.log() / LEAD),
    "YaRN": ("yarn", "--", lambda r: (1 + 0.1 * r.log()) ** 2),
    "LongRoPE": ("longrope", "-.", lambda r: 1 + r.log() / math.log(4096)),
    "Llama 4": ("irope", (0, (4, 1, 1, 1, 1, 1)), lambda r: 1 + 0.1 * torch.log1p(r.floor())),
}
"""By name: the encoding whose colour it has, a dash, and the factor at r times the length."""


def weights(rule: Rule, ratio: Tensor) -> Tensor:
    """Weight of a key that is `LEAD` above the others, at r times `TRAINED` keys."""
    return 1 / (1 + (TRAINED * ratio - 1) * torch.exp(-rule(ratio) * LEAD))


@picture("temperature-rules")
def draw_rules() -> Figure:
    figure, axes = canvas(rows=2, height=5.6, width=NARROW)
    top, bottom = axes[:, 0]
    ratio = torch.logspace(0, 8, 400, base=2, dtype=torch.float64)
    for name, (encoding, dash, rule) in RULES.items():
        look = {"color": figures.colour(encoding), "ls": dash, "lw": 1.6}
        top.plot((TRAINED * ratio).numpy(), weights(rule, ratio).numpy(), **look)
        bottom.plot(ratio.numpy(), rule(ratio).numpy(), label=name, **look)
    top.set(xscale="log", xlabel="keys", ylabel="weight of the wanted key", ylim=(0, 1))
    top.set_xticks([1024, 8192, 65536, 262144], ["1k", "8k", "64k", "256k"])
    bottom.set(
        xscale="log", xlabel="r, times the length of training", ylabel="factor on the logits"
    )
    bottom.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    for ax in (top, bottom):
        ax.minorticks_off()
    bottom.legend(fontsize=9, loc="upper left")
    return figure
