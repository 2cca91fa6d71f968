"""Fit one number to a trained model: how much sharper attention should be on longer texts.

    logits of a query that sees n > L tokens  <-  logits x (1 + c ln(n / L))

DroPE's long-context results use such a temperature, and fit c for each model at each length
(arXiv:2512.12167). It helps other encodings as well, so every run may have its own c per length. It
is fitted on validation text. The results are measured on test text and shown beside those of the
model as it was trained (c = 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pe.evaluation.scorer import NOT_FINITE, Scorer

BOUNDS = (-0.5, 1.5)
"""The range of c."""
TRIALS = 14
"""The most values of c that are tried besides 0."""
WINDOWS = 16
"""The number of windows of validation text on which c is fitted."""


def fit_temperatures(scorer: Scorer, lengths: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Return the record of `fit_temperature` for each length.

    All lengths have the same targets of validation text.

    Raises:
        ValueError: no document of the validation split is longer than the longest length.
    """
    text = Scorer(
        scorer.model, scorer.data, scorer.recipe, lengths, split="validation", windows=WINDOWS,
        float32_residual=scorer.float32_residual,
    )  # fmt: skip
    return {length: fit_temperature(text, length) for length in text.lengths}


def fit_temperature(text: Scorer, length: int) -> dict[str, Any]:
    """Find the c with the least mean loss after ``length`` tokens, by Brent's bounded search.

    Args:
        text: the model on windows of validation text.

    Returns:
        The record: ``value`` (c), its loss ``nll`` and the loss ``nll_without`` at c = 0 in nats,
        the length, the number of windows, and every trial as [c, nll]. ``at_bound`` is true if the
        best c is the smallest or largest that was tried; then a better one may lie beyond `BOUNDS`.
        A loss that is not finite is None. If that at c = 0 is, nothing is fitted, and ``reason``
        says so.
    """
    from scipy.optimize import minimize_scalar

    trials: list[tuple[float, float]] = []

    def loss(c: float) -> float:
        with text.temperature(float(c)):
            nll = text.nll(length)
        nll = nll if math.isfinite(nll) else math.inf  # NaN would mislead the search
        trials.append((round(float(c), 6), round(nll, 6)))
        return nll

    without = loss(0.0)
    finite = math.isfinite(without)
    if finite:
        with np.errstate(invalid="ignore"):  # the search computes with losses that are infinite
            minimize_scalar(
                loss, bounds=BOUNDS, method="bounded", options={"maxiter": TRIALS, "xatol": 0.005}
            )
    value, nll = min(trials, key=lambda trial: trial[1])  # c = 0 is among them
    tried = [c for c, _ in trials]
    return {
        "value": value if finite else None,
        "nll": nll if finite else None,
        "nll_without": round(without, 6) if finite else None,
        "lengths": [length],
        "windows": len(text.ends),
        "trials": [[c, loss if math.isfinite(loss) else None] for c, loss in trials],
        "at_bound": finite and value in (min(tried), max(tried)),
        "reason": None if finite else NOT_FINITE,
    }
