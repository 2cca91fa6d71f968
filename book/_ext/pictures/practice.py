"""Pictures of the chapters on long context and on more than one dimension."""

from __future__ import annotations

from typing import Any

import torch
from book_models import entries, ledger
from matplotlib.figure import Figure
from torch import Tensor

from pe import figures
from pictures.common import BASE, NARROW, canvas, frequencies, picture

SIDE, HEAD_DIM = 16, 64


def least_base(length: Tensor) -> Tensor:
    """The smallest base for texts of a length, as fitted in arXiv:2405.14591, figure 1."""
    return 0.0424 * length**1.628


def _number(text: str) -> float:
    return float(text.split()[0].replace(",", ""))


def stated() -> list[tuple[str, float, float, bool]]:
    """Models with one base and one training length: name, length, base, and whether they have more
    (a window, or a method of extension)."""
    found = []
    for model in ledger()["models"]:
        bases, lengths = entries(model, "base"), entries(model, "trained")
        if len(bases) == len(lengths) == 1:
            more = bool(entries(model, "windows") or entries(model, "extension"))
            found.append(
                (model["name"], _number(lengths[0]["says"]), _number(bases[0]["says"]), more)
            )
    return found


_PLACES: dict[str, dict[str, Any]] = {
    "GPT-J": {"xytext": (-2, 9), "ha": "right"},
    "Llama 3": {"xytext": (-8, -13), "ha": "right"},
    "Code World Model": {"xytext": (-7, -5), "ha": "right"},
    "Qwen3": {"xytext": (6, -4), "ha": "left"},
    "DeepSeek-V3": {"xytext": (-2, 7), "ha": "left"},
    "Gemma 2": {"xytext": (0, -7), "va": "top", "ha": "center"},
    "Mistral Large 4": {"xytext": (-8, -7), "va": "top", "ha": "left"},
}
"""Where the names stand at points that are near others; elsewhere to the left, above."""


@picture("practice-base")
def draw_base() -> Figure:
    figure, axes = canvas(height=3.6, width=NARROW)
    ax = axes[0, 0]
    length = torch.logspace(9, 17, 50, base=2, dtype=torch.float64)
    ax.plot(length.numpy(), least_base(length).numpy(), color=figures.FAINT, lw=1.2,
            label="smallest base, by Men et al.")  # fmt: skip
    colour = figures.colour("rope")
    drawn: dict[tuple[float, float], list[str]] = {}
    for name, tokens, base, more in stated():
        ax.plot([tokens], [base], "o", ms=6, mfc="none" if more else colour, mec=colour)
        drawn.setdefault((tokens, base), []).append(name)
    for (tokens, base), names in drawn.items():
        look = _PLACES.get(names[0], {"xytext": (-6, 5), "ha": "right"})
        ax.annotate("\n".join(names), (tokens, base), textcoords="offset points", fontsize=9,
                    **look)  # fmt: skip
    ax.set(xscale="log", yscale="log", xlabel="tokens of a training text", ylabel="base of RoPE",
           xlim=(250, 200_000), ylim=(3e3, 2e7))  # fmt: skip
    ax.set_xticks([512, 2048, 8192, 32768, 131072], ["512", "2,048", "8,192", "32,768", "131,072"])
    ax.minorticks_off()
    ax.legend(fontsize=9, loc="upper left")
    return figure


def kernels() -> dict[str, Tensor]:
    """(SIDE, SIDE): mean cosine of the angles between each patch and the middle one."""
    rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    rows, columns = rows - SIDE // 2, columns - SIDE // 2
    whole = frequencies("rope", HEAD_DIM, theta=BASE)
    half = frequencies("rope", HEAD_DIM // 2, theta=BASE)
    flat = (rows * SIDE + columns)[..., None] * whole
    axial = torch.cat((rows[..., None] * half, columns[..., None] * half), dim=-1)
    return {"row by row": flat.cos().mean(-1), "axial": axial.cos().mean(-1)}


@picture("dimensions-kernels")
def draw_kernels() -> Figure:
    figure, axes = canvas(columns=2, height=2.5, width=NARROW)
    for ax, (title, values) in zip(axes[0], kernels().items(), strict=True):
        image = ax.imshow(values.numpy(), cmap=figures.SEQUENTIAL, vmin=0.2, vmax=1)
        ax.set(title=title, xlabel="column", ylabel="row")
        ax.grid(visible=False)
    figure.colorbar(image, ax=axes[0].tolist(), shrink=0.8, label="likeness")
    return figure
