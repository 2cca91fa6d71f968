"""Pictures of CoPE."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure

from pe import figures
from pe.encodings.cope import CoPE
from pictures.common import canvas, picture

# Tokens of each sentence, its mark included; the query is the last token of all.
TEXTS = {"short sentences": (6, 4, 5, 4, 3), "long sentences": (9, 3, 12, 8, 7)}
SURE = 8.0
"""Logit of a mark, and minus that of any other token."""


def counting_numbers(sentences: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """One query that counts the marks at the ends of sentences, and looks for the second last.

    counts: of each key. weights: its attention. marks: places of the marks. From the first token.
    """
    width, length = 4, sum(sentences)
    marks = torch.tensor(sentences).cumsum(0)[:-1] - 1  # the last sentence is not over
    key = torch.zeros(length, width)
    key[:, 0] = -SURE * width**0.5
    key[marks, 0] = SURE * width**0.5
    query = torch.zeros(length, width)
    query[:, 0], query[:, 1] = 1.0, 1.0
    encoding = CoPE(width, npos=8, divide=False)
    with torch.no_grad():
        encoding.table[2, 1] = 10.0  # what stands at the count of 2 is wanted
        q, k, places = query[None, None], key[None, None], torch.arange(length)
        counts = encoding.counts(encoding.gates(q, k))[0, 0, -1]
        logits = q @ k.transpose(-1, -2) / width**0.5 + encoding.bias(q, k, places, places)
    return {"counts": counts, "weights": logits[0, 0, -1].softmax(-1), "marks": marks}


@picture("cope-counting")
def draw_cope_counting() -> Figure:
    figure, axes = canvas(columns=2)
    left, right = axes[0]
    ink = figures.colour("cope")
    for (name, sentences), line, dot in zip(TEXTS.items(), ("-", "--"), ("o", "s"), strict=True):
        found = counting_numbers(sentences)
        back = torch.arange(len(found["counts"])).flip(0)
        look = {"color": ink, "ls": line, "lw": 1.5}
        left.plot(back, found["counts"], label=name, drawstyle="steps-mid", **look)
        marks = found["marks"]
        left.plot(back[marks], found["counts"][marks], color=ink, ls="", marker=dot, ms=4)
        right.plot(back, found["weights"], label=name, marker=dot, ms=3, **look)
    left.set(xlabel="tokens back", ylabel="position")
    right.set(xlabel="tokens back", ylabel="attention")
    left.legend(fontsize=8)
    right.legend(fontsize=8)
    return figure
