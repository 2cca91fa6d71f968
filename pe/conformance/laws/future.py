"""No token sees the future, neither through a bias nor through what is kept of a key."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, law
from pe.conformance.subject import Subject, attended, inputs


@law
def future(subject: Subject, measure: Measure) -> None:
    """Changing a token changes no output before it."""
    length = subject.lengths(2, 12)[-1]
    changed = length // 2
    given, other = inputs(length), inputs(length, seed=40)
    for x, y, axis in zip(given, other, (2, 2, 2, 1), strict=True):
        y.narrow(axis, 0, changed).copy_(x.narrow(axis, 0, changed))
    positions = torch.arange(length)
    before = attended(subject.enc, given, positions)[:, :, :changed]
    after = attended(subject.enc, other, positions)[:, :, :changed]
    measure.close(f"outputs before token {changed}", after, before, 1e-6, 1e-6)
