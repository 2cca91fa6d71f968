"""Rows of a batch have positions of their own."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, NotPromised, law
from pe.conformance.subject import SIZES, Subject, inputs, same_draw, scores


@law
def rows(subject: Subject, measure: Measure) -> None:
    """Positions (B, T) give each row what it gets alone."""
    enc, batch = subject.enc, SIZES["num_heads"]  # as many rows as heads: axes may be mixed up
    if enc.random:
        raise NotPromised("each row has a draw of its own")
    length = subject.lengths(1, 2, 9)[-1]
    positions = torch.stack([torch.arange(length) + 50 * b for b in range(batch)])
    if enc.max_positions is not None:
        positions = positions.clamp(max=enc.max_positions - 1)
    given = inputs(length, batch=batch)
    whole = scores(enc, given, positions)
    with same_draw():
        embedded = enc.embed(given.x, positions)
    for b in range(batch):
        row = given.rows(slice(b, b + 1))
        measure.close(f"row {b}", whole[b : b + 1], scores(enc, row, positions[b]), 1e-5, 1e-5)
        measure.close(f"row {b}, embedded", embedded[b : b + 1], enc.embed(row.x, positions[b]),
                      1e-6, 1e-6)  # fmt: skip
