"""Rows of a made-up study, for tests of results."""

from __future__ import annotations

import math
from pathlib import Path

import book_records

from pe.results import rows as results


def row(root: Path, pe: str, shift: float = 0.0, right: int = 5, seed: int = 0) -> results.Row:
    """One run whose windows lose 2, 3, 4 nats plus ``shift``, and find ``right`` of 10 needles."""
    run = book_records.write(root, pe, seed, study="made-up")
    evaluation = book_records.evaluation(pe)
    nll = [2 + shift, 3 + 1.01 * shift, 4 + 0.99 * shift]
    cell = {"value": math.exp(3 + shift), "nll": 3 + shift, "window_nll": nll, "reason": None}
    evaluation["perplexity"]["256"] = cell
    counts = {"exact": [right, right], "greedy": [0, 0], "digits": [50, 50], "reason": None,
              "controls": {k: {"exact": 0, "greedy": 0, "digits": 9} for k in
                           ("removed", "another")}}  # fmt: skip
    evaluation["retrieval"] = {
        "samples": 10, "depths": [0.0, 1.0], "digits": 5,
        "tasks": {"needle": {"256": counts}, "passkey": {"256": counts}},
    }  # fmt: skip
    run.write_evaluation(evaluation)
    return results.Row(pe, pe, pe, (run,))
