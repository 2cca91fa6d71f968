"""The attention of a decoding step is the last rows of the whole, at every length."""

from __future__ import annotations

import torch

from pe.conformance.law import Measure, law
from pe.conformance.subject import Subject, attended, inputs


@law
def decode(subject: Subject, measure: Measure) -> None:
    """The last queries alone give the end of the whole, at lengths around L."""
    n = subject.length
    for length in subject.lengths(n - 1, n, n + 1, 2 * n):
        given, positions = inputs(length), torch.arange(length)
        whole = attended(subject.enc, given, positions)
        for queries in (1, 3):
            step = attended(subject.enc, given.last(queries), positions, positions[-queries:])
            measure.close(f"{queries} of {length} tokens", step, whole[:, :, -queries:],
                          1e-5, 1e-5)  # fmt: skip
